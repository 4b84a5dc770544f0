"""The only place that sets the version. The newest heading of CHANGELOG.md must equal it."""

__version__ = "0.3.0"
