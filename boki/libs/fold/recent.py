"""A bounded cache of what many callers share: the values that were used last, and those that a caller still holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, which any thread may ask for. What was forgotten and is still in use is found, not made again."""

    def __init__(self, most: int, *, size_of: Callable[[V], int] | None = None, most_bytes: int = 0) -> None:
        """`most`: number of values that are kept. `size_of`: bytes of each, of which `most_bytes` are kept."""
        self._most = most
        self._size_of = size_of
        self._most_bytes = most_bytes
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._alive: WeakValueDictionary[K, V] = WeakValueDictionary()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[V]:
        return iter(list(self._alive.values()))

    def find(self, key: K, make: Callable[[], V]) -> V:
        """The value of that key, made if there is none. It is used now; what was used longest ago is forgotten."""
        with self._lock:
            found = self._alive.get(key)
            if found is None:
                found = self._alive[key] = make()
            self._kept[key] = found
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and self._is_too_much():
                self._kept.popitem(last=False)
            return found

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._kept.clear()
            self._alive.clear()

    def _is_too_much(self) -> bool:
        size_of = self._size_of
        size_bytes = 0 if size_of is None else sum(size_of(value) for value in self._kept.values())
        return len(self._kept) > self._most or size_bytes > self._most_bytes
