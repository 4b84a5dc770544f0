"""Questions and summaries of documents far longer than a model's context, inside a fixed KV cache."""

from kvstream.version import __version__

__all__ = ["__version__"]
