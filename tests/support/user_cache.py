"""The cache folder of the user who runs the tests, read before a fixture hides it."""

from __future__ import annotations

from kvstream.store.stores import cache_folder

CACHE = cache_folder()
"""`make real` fetches a model into this folder."""
