"""Retwis as a load: the paper's mix."""

from __future__ import annotations

from collections import Counter
from random import Random

from boki.bench.retwis import MIX, draw


def test_the_mix_is_the_papers() -> None:
    """Of 10,000 requests each kind has its share, and each is of a user that there is."""
    random = Random(7)
    requests = [draw(random, 50) for _ in range(10_000)]
    found = Counter(request.kind for request in requests)
    assert sum(MIX.values()) == 100
    for kind, share in MIX.items():
        assert abs(found[kind] - 100 * share) < 250
    named = {request.body["name"] for request in requests if request.body is not None}
    assert named <= {f"u{number}" for number in range(50)}
