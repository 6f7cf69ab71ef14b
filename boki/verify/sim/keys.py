"""What stands under the keys of a node's disk, in words, for whoever reads a story."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from boki.log.ids import NodeId
from boki.protocol.effects import Delete, Put, Store
from boki.sequencer.metalog_store import base_key, entry_key, index_of, led_key, seal_key, whole_key
from boki.storage.shards import batch_key, split_batch_key

_BATCH_BYTES: Final = len(batch_key((0, 0, 0), 0))
_ENTRY_BYTES: Final = len(entry_key(0, 0, 0))
_KINDS: Final = {
    seal_key(0)[:1]: "seal of term {term}",
    led_key(0)[:1]: "has led term {term}",
    base_key(0, 0)[:1]: "base of {term}/{log}",
    whole_key()[:1]: "first term that may lack entries",
}
_SHOWN: Final = 6


def told_key(node: NodeId | str, key: bytes) -> str:
    """A key in words: which batch, which entry, which seal.

    >>> told_key("sequencer-1", entry_key(2, 0, 17))
    'entry 17 of 2/0'
    >>> told_key("storage-1", batch_key((2, 0, 5), 100))
    'batch of 2/0/5 from 100'
    """
    if node.startswith("storage") and key[:1] == batch_key((0, 0, 0), 0)[:1] and len(key) == _BATCH_BYTES:
        (term, log, shard), first_lid = split_batch_key(key)
        return f"batch of {term}/{log}/{shard} from {first_lid}"
    if node.startswith("sequencer") and len(key) == _ENTRY_BYTES:
        term, log = int.from_bytes(key[1:5], "big"), key[5]
        if key[:1] == entry_key(0, 0, 0)[:1]:
            return f"entry {index_of(key)} of {term}/{log}"
        if key[:1] in _KINDS:
            return _KINDS[key[:1]].format(term=term, log=log)
    return repr(key)[1:]


class ToldStores:
    """Stores in words, put together only if somebody reads the story."""

    def __init__(self, node: str, stores: Iterable[Store]) -> None:
        self._node = node
        self._stores = tuple(stores)

    def __str__(self) -> str:
        writes = [write for store in self._stores for write in store.writes]
        words = [_told_write(self._node, write) for write in writes[:_SHOWN]]
        more = f" and {len(writes) - _SHOWN} more" if len(writes) > _SHOWN else ""
        return f"{', '.join(words) or 'nothing new'}{more}"


def _told_write(node: str, write: Put | Delete) -> str:
    if isinstance(write, Put):
        return told_key(node, write.key)
    return f"without {told_key(node, write.start)} to {told_key(node, write.stop)}"
