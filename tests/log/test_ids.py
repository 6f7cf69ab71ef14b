"""Names and numbers: seqnums keep the order of what they are made of, and names are held to their rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.errors import InvalidArgument, TooLarge
from boki.log.ids import (
    KEY_TAG_PREFIX,
    MAX_LOG,
    MAX_POSITION,
    MAX_SEQNUM,
    MAX_TERM,
    check_name,
    check_tag,
    is_system_tag,
    make_seqnum,
    make_shard,
    shard_incarnation,
    split_seqnum,
)
from tests.log.drawn import names

places = st.tuples(st.integers(1, MAX_TERM), st.integers(0, MAX_LOG), st.integers(0, MAX_POSITION))


@given(places, places)
def test_seqnums_are_in_the_order_of_term_log_and_position(
    one: tuple[int, int, int], two: tuple[int, int, int]
) -> None:
    """So that numeric order is the order of a book; and they say what they were made of."""
    assert split_seqnum(make_seqnum(*one)) == one
    assert (make_seqnum(*one) < make_seqnum(*two)) == (one < two)
    assert 0 < make_seqnum(*one) <= MAX_SEQNUM < 1 << 63


@given(st.integers(1, 1 << 40), st.integers(0, (1 << 20) - 1), st.integers(1, 1 << 40), st.integers(0, (1 << 20) - 1))
def test_shards_of_different_incarnations_are_different(one: int, n: int, two: int, m: int) -> None:
    """No engine, and no later life of one, can pick a shard that another has."""
    assert shard_incarnation(make_shard(one, n)) == one
    assert (make_shard(one, n) == make_shard(two, m)) == ((one, n) == (two, m))


@pytest.mark.parametrize("name", ["a", "orders", "boki:calls", "A.b_c:d-9", "x" * 128])
def test_names_of_books_and_functions(name: str) -> None:
    """What may name a book or a function."""
    assert check_name(name, "book") == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "größe", "x" * 129, "a\n", "\x00", None, 5, b"a"])
def test_other_names_are_refused(name: object) -> None:
    """With the field and the rule in the message."""
    with pytest.raises(InvalidArgument, match="book must be 1 to 128 characters") as refused:
        check_name(name, "book")
    assert refused.value.field == "book"


@given(names)
def test_tags_are_any_text_without_control_characters(tag: str) -> None:
    """Strings stay strings, in any script."""
    assert check_tag(tag, 255) == tag


@given(st.text(st.characters(categories=["Cc", "Cs"]), min_size=1, max_size=2), names, names)
def test_control_characters_and_lone_surrogates_are_refused(bad: str, before: str, after: str) -> None:
    """The runtime's own tags start with one, and a lone surrogate has no UTF-8."""
    with pytest.raises(InvalidArgument, match="control characters"):
        check_tag(before + bad + after, 255)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20), st.integers(1, 30))
def test_the_limit_of_a_tag_counts_bytes(tag: str, max_bytes: int) -> None:
    """Bytes of UTF-8, not characters."""
    if len(tag.encode()) <= max_bytes:
        assert check_tag(tag, max_bytes) == tag
    else:
        with pytest.raises(TooLarge) as refused:
            check_tag(tag, max_bytes)
        assert refused.value.limit == max_bytes


@pytest.mark.parametrize("tag", ["", None, 5, b"a", ["a"]])
def test_what_is_no_tag_is_refused(tag: object) -> None:
    """The empty string is not the whole book, and bytes are not a tag."""
    with pytest.raises((InvalidArgument, TypeError)):
        check_tag(tag, 255)


def test_system_tags_are_told_by_their_first_character() -> None:
    """Those that outlive a trim of the whole book: the libraries' own, and those of idempotency keys."""
    assert is_system_tag("!lock")
    assert is_system_tag(KEY_TAG_PREFIX + "key")
    assert not is_system_tag("lock!")
