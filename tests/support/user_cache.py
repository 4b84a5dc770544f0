"""The cache of whoever runs the tests, seen before a fixture hides it."""

from __future__ import annotations

from kvstream.store.stores import cache_folder

CACHE = cache_folder()
"""`make real` fetches a model into it."""
