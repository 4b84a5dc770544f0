"""A queue with turns among clients: many requests of one client do not delay the others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of each client in order of arrival. After its turn, a client goes to the end."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def put(self, client: str, item: Item) -> None:
        """Add an item behind the other items of its client."""
        self._clients.setdefault(client, deque()).append(item)

    def peek(self) -> Item | None:
        """Return the next item without removing it, or None if the queue is empty."""
        return next((items[0] for items in self._clients.values()), None)

    def pop(self) -> Item:
        """Remove and return the next item. Its client moves behind all other clients."""
        client, items = next(iter(self._clients.items()))
        item = items.popleft()
        del self._clients[client]
        if items:
            self._clients[client] = items
        return item

    def remove(self, item: Item) -> bool:
        """Remove an item and return whether it was in the queue."""
        for client, items in self._clients.items():
            if item in items:
                items.remove(item)
                if not items:
                    del self._clients[client]
                return True
        return False

    def clear(self) -> list[Item]:
        """Remove and return all items."""
        found = [item for items in self._clients.values() for item in items]
        self._clients.clear()
        return found
