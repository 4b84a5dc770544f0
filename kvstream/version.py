"""The one place where the version is written; CHANGELOG.md's newest heading must equal it."""

__version__ = "0.2.0"
