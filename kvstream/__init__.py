"""Questions and summaries of texts far longer than a model's context, in a fixed KV cache."""

from kvstream.version import __version__

__all__ = ["__version__"]
