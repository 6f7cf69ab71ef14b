"""Pages that do not fit into the record cache, or over a page's bytes: shorter, never stuck, never the end."""

from __future__ import annotations

import msgspec
import pytest

from boki.engine.cache import RecordCache
from boki.log.limits import DEFAULT_LIMITS
from boki.log.operations import Found, Read
from tests.engine.cluster import CONFIG, Cluster, records_of

COUNT = 40
TEXTS = [f"{number:03}" * 100 for number in range(COUNT)]


def made(*, cache_bytes: int, page_bytes: int = DEFAULT_LIMITS.page_bytes) -> Cluster:
    """Records in a batch each, one run of them, and a cold cache."""
    limits = msgspec.structs.replace(DEFAULT_LIMITS, page_bytes=page_bytes)
    cluster = Cluster(config=msgspec.structs.replace(CONFIG, limits=limits))
    cluster.until_ready()
    for text in TEXTS:
        cluster.append(text)
    core = cluster.core_of("engine-1")
    core.cache = core.reads._cache = RecordCache(cache_bytes)
    return cluster


def read_backward(cluster: Cluster, limit: int) -> list[str]:
    """Page after page, until one says that there is nothing more."""
    found: list[str] = []
    stop = 1 << 62
    while True:
        page: Found = cluster.do(Read("book", stop=stop, limit=limit, backward=True))
        found[:0] = [record.data.decode() for record in records_of(page)]
        if page.is_end:
            return found
        assert page.slabs
        stop = page.next_start


def test_what_is_fetched_beyond_the_record_that_is_wanted_does_not_displace_it() -> None:
    """All that follows comes with it, and is more than the cache holds (seeds 1807, 1875 and 2649 of the simulator)."""
    assert made(cache_bytes=2_000).texts() == TEXTS


@pytest.mark.parametrize("limit", [1, 7, COUNT, 1000])
@pytest.mark.parametrize("sizes", [{"cache_bytes": 2_000}, {"cache_bytes": 1 << 20, "page_bytes": 2_000}])
def test_a_backward_page_that_is_too_large_is_shorter_and_not_the_end(limit: int, sizes: dict[str, int]) -> None:
    """Whether the cache does not hold it or a page may not: the records before it come with the next ones."""
    assert read_backward(made(**sizes), limit) == TEXTS


def test_a_record_that_no_cache_entry_holds_is_refused() -> None:
    """With the size that would be needed."""
    cluster = made(cache_bytes=100)
    with pytest.raises(Exception, match=r"in a batch of \d+ bytes: the record cache is too small"):
        cluster.texts()
