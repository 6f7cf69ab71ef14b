"""What is remembered of what was used last."""

from __future__ import annotations

from boki.libs.fold.recent import Recent


class Value:
    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes


def test_what_was_used_longest_ago_is_forgotten() -> None:
    """Unless somebody still holds it."""
    recent: Recent[int, Value] = Recent(3)
    held = recent.find(0, Value)
    for key in (1, 2, 3, 1, 4):
        recent.find(key, Value)
    assert len(recent) == 3
    assert recent.find(0, Value) is held
    kept = recent.find(1, Value)
    recent.clear()
    assert len(recent) == 0
    assert recent.find(1, Value) is not kept


def test_bytes_are_bounded() -> None:
    """Of all but the one that is in use."""
    recent: Recent[int, Value] = Recent(10, size_of=lambda value: value.size_bytes, most_bytes=100)
    for key in range(10):
        recent.find(key, lambda: Value(40))
    assert len(recent) == 2
    recent.find(10, lambda: Value(400))
    assert len(recent) == 1
