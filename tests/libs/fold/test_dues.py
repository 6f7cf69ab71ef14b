"""Keys by the time when they are due: as a dict says that is looked through."""

from __future__ import annotations

from random import Random

from boki.libs.fold.dues import Dues, Rate


def test_what_is_due_comes_in_order_and_stays() -> None:
    """Whatever was put, put again and dropped before; and the heap does not grow with what is gone."""
    for seed in range(30):
        random, dues, plain = Random(seed), Dues[int](), dict[int, int]()
        for _ in range(400):
            key, due_us = random.randrange(12), random.randrange(1, 40)
            if random.random() < 0.6:
                dues.put(key, due_us)
                plain[key] = due_us
            else:
                dues.drop(key)
                plain.pop(key, None)
            now_us, limit = random.randrange(50), random.randrange(1, 14)
            due = sorted((due_us, key) for key, due_us in plain.items() if due_us <= now_us)
            assert dues.due(now_us, limit) == [key for _, key in due][:limit]
            assert dues.is_due(now_us) == bool(due)
            assert dues.next_us() == min(plain.values(), default=0)
            assert len(dues._heap) <= 2 * 12 + 100


def test_a_rate_is_that_of_the_last_seconds() -> None:
    """Of this window of ten seconds and a share of the one before; after a pause it is nothing."""
    rate = Rate()
    rate.add(50, 5_000_000)
    assert rate.per_s(5_000_000) == 5.0
    rate.add(10, 12_000_000)
    assert (rate.per_s(15_000_000), rate.per_s(25_000_000), rate.per_s(31_000_000)) == (3.5, 1.0, 0.0)
