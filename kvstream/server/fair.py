"""A queue that takes turns among clients: many requests of one do not hold up those of others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of each client in the order they came; the client of the last one waits longest."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def put(self, client: str, item: Item) -> None:
        """Behind the other items of this client."""
        self._clients.setdefault(client, deque()).append(item)

    def peek(self) -> Item | None:
        """The next one, which stays; None where there is none."""
        return next((items[0] for items in self._clients.values()), None)

    def pop(self) -> Item:
        """The next one; its client is the last to have another turn."""
        client, items = next(iter(self._clients.items()))
        item = items.popleft()
        del self._clients[client]
        if items:
            self._clients[client] = items
        return item

    def remove(self, item: Item) -> bool:
        """Take an item out; whether it was there."""
        for client, items in self._clients.items():
            if item in items:
                items.remove(item)
                if not items:
                    del self._clients[client]
                return True
        return False

    def clear(self) -> list[Item]:
        """Take all items out."""
        found = [item for items in self._clients.values() for item in items]
        self._clients.clear()
        return found
