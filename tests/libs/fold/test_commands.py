"""Numbered commands: each counts once, its outcome is kept until the next, and old sessions are forgotten alike."""

from __future__ import annotations

import msgspec

from boki.libs.fold.commands import Sessions

ADA, BOB = b"ada", b"bob"


class Answer(msgspec.Struct, frozen=True):
    number: int
    time_us: int
    text: str = ""


def test_a_number_counts_once_and_its_answer_is_kept_until_the_next() -> None:
    """However often it comes, and also from a snapshot; an older number counts no more."""
    sessions: Sessions[Answer] = Sessions({})
    assert sessions.counts(ADA, 1)
    sessions.note(ADA, Answer(1, 10, "one"))
    sessions.note(ADA, Answer(3, 20, "three"))
    for again in (sessions, Sessions(dict(sessions.last))):
        assert [again.counts(ADA, number) for number in (1, 2, 3, 4)] == [False, False, False, True]
        assert again.last[ADA] == Answer(3, 20, "three")
        assert again.counts(BOB, 1)


def test_sessions_are_forgotten_by_the_time_of_records_and_by_their_number() -> None:
    """The longest silent first; one that repeats its command was heard of."""
    sessions: Sessions[Answer] = Sessions({}, keep_us=100, most=3)
    for number, name in enumerate((b"a", b"b", b"c")):
        sessions.note(name, Answer(1, number))
    assert not sessions.counts(b"a", 1)  # a repetition
    sessions.note(b"d", Answer(1, 50))
    assert sessions.forget_old(50) == [b"b"]
    assert list(sessions.last) == [b"c", b"a", b"d"]
    assert sessions.forget_old(102) == [b"c", b"a"]
    assert sessions.forget_old(1_000) == [b"d"]
    assert sessions.forget_old(1_000) == []
