"""Updates of a value: what each does, compared with a model that copies everything and counts bytes by encoding."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki import BokiError, InvalidArgument, TooLarge, WrongType
from boki.libs.bokistore.json_values import MAX_INT, MISSING, encode, plain, size_of
from boki.libs.bokistore.paths import parse_path
from boki.libs.bokistore.refusals import WrongShape
from boki.libs.bokistore.updates import (
    MAX_OBJECT_BYTES,
    Append,
    Delete,
    Increment,
    Insert,
    Merge,
    Pop,
    Set,
    Update,
    apply,
    look_up,
)

keys = st.sampled_from(["a", "b", "é", "0", "1", "-1"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["", "x", '"\u2028'])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
paths = st.lists(keys, max_size=3).map(tuple)
updates = st.one_of(
    st.builds(Set, paths, values.map(encode)),
    st.builds(Delete, paths),
    st.builds(Increment, paths, st.integers(-2, 2) | st.floats(-1, 1)),
    st.builds(Append, paths, st.lists(values, max_size=3).map(encode), st.integers(0, 2)),
    st.builds(Pop, paths, st.sampled_from([0, -1])),
    st.builds(Insert, paths, values.map(encode)),
    st.builds(Merge, paths, values.map(encode)),
)


@given(values | st.just(MISSING), st.lists(updates, max_size=6))
def test_updates_share_nothing_that_they_change_and_count_every_byte(value: Any, some: list[Update]) -> None:
    """The value before is as it was, the size is that of the JSON, and what was refused has changed nothing."""
    size_bytes = 0 if value is MISSING else size_of(value)
    for update in some:
        before = deepcopy(value)
        try:
            changed = apply(value, size_bytes, [update])
        except WrongShape:
            assert value == before
            continue
        assert value == before
        assert changed.size_bytes == (0 if changed.value is MISSING else size_of(changed.value))
        value, size_bytes = changed.value, changed.size_bytes


@given(values | st.just(MISSING), st.lists(updates, max_size=5))
def test_updates_of_one_record_are_those_of_several_or_none(value: Any, some: list[Update]) -> None:
    """Together they come to what they come to one by one; if one does not fit, nothing has happened."""
    size_bytes = 0 if value is MISSING else size_of(value)
    one_by_one, size = value, size_bytes
    results: list[Any] = []
    try:
        for update in some:
            changed = apply(one_by_one, size, [update])
            one_by_one, size = changed.value, changed.size_bytes
            results += changed.results
    except WrongShape:
        with pytest.raises(WrongShape):
            apply(value, size_bytes, some)
        return
    together = apply(value, size_bytes, some)
    assert (together.value, together.size_bytes) == (one_by_one, size)
    assert repr(together.results) == repr(tuple(results))


def changed(value: Any, *some: Update) -> Any:
    return apply(value, 0 if value is MISSING else size_of(value), some).value


def result(value: Any, update: Update) -> Any:
    return apply(value, 0 if value is MISSING else size_of(value), [update]).results[0]


@pytest.mark.parametrize(
    ("before", "update", "after"),
    [
        (MISSING, Set((), b"5"), 5),
        (MISSING, Set(("a", "b"), b"1"), {"a": {"b": 1}}),
        ({"a": [1, 2]}, Set(("a", "-1"), b"9"), {"a": [1, 9]}),
        ({"a": [1, 2, 3]}, Delete(("a", "0")), {"a": [2, 3]}),
        ({"a": 1}, Delete(()), MISSING),
        ({"a": 1}, Delete(("b", "c")), {"a": 1}),
        (MISSING, Increment(("n",), 2), {"n": 2}),
        ({"n": 1}, Increment(("n",), 0.5), {"n": 1.5}),
        (MISSING, Append(("l",), b"[1,2,3]", 2), {"l": [2, 3]}),
        ({"l": [1, 2, 3]}, Pop(("l",), 0), {"l": [2, 3]}),
        (MISSING, Pop(("l",)), MISSING),
        ({"l": [1, 3]}, Insert(("l", "1"), b"2"), {"l": [1, 2, 3]}),
        ({"l": [1]}, Insert(("l", "-1"), b"2"), {"l": [1, 2]}),
        (
            {"a": 1, "b": {"c": 2, "d": 3}},
            Merge((), b'{"a":null,"b":{"c":null,"e":{"f":null}}}'),
            {"b": {"d": 3, "e": {}}},
        ),
        ({"a": [1]}, Merge(("a",), b"[null]"), {"a": [None]}),
    ],
)
def test_each_update_does_what_it_says(before: Any, update: Update, after: Any) -> None:
    """The table is the meaning."""
    assert changed(before, update) == after


@pytest.mark.parametrize(
    ("before", "update", "outcome"),
    [
        ({"n": 1}, Increment(("n",), 2), 3),
        ({"l": [1]}, Append(("l",), b"[2,3]"), 3),
        ({"l": [1, 2]}, Pop(("l",)), 2),
        ({"l": [1, 2]}, Pop(("l",), 0), 1),
        ({"l": []}, Pop(("l",)), MISSING),
        ({"a": 1}, Delete(("a",)), True),
        ({"a": 1}, Delete(("b",)), False),
        ({"l": [1]}, Insert(("l", "0"), b"0"), 2),
    ],
)
def test_each_update_has_a_result(before: Any, update: Update, outcome: Any) -> None:
    """As the docstrings say."""
    assert result(before, update) == outcome


@pytest.mark.parametrize(
    ("before", "update", "reason"),
    [
        ({"a": 1}, Set(("a", "b"), b"1"), "leads through a, which is the number 1"),
        ({"a": None}, Set(("a", "b"), b"1"), "leads through a, which is null"),
        ("x", Set(("a",), b"1"), "leads through the whole object, which is text"),
        ({"a": []}, Set(("a", "0"), b"1"), "array of 0 items"),
        ({"a": []}, Set(("a", "x"), b"1"), "no index"),
        ({"a": "x"}, Increment(("a",), 1), "a is text, not a number"),
        ({"a": True}, Increment(("a",), 1), "a is true, not a number"),
        ({"a": MAX_INT}, Increment(("a",), 1), "64 bits"),
        ({"a": 1e308}, Increment(("a",), 1e308), "JSON can say"),
        ({"a": {}}, Append(("a",), b"[1]"), "a is an object, not an array"),
        ({"a": 1}, Pop(("a",)), "not an array"),
        ({"a": 1}, Delete(("a", "b")), "leads through a"),
        ({}, Insert((), b"1"), "no index"),
        ({"l": []}, Insert(("l", "1"), b"1"), "nothing can be inserted at 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_place(before: Any, update: Update, reason: str) -> None:
    """The message names the path and what stands there."""
    with pytest.raises(WrongShape, match=reason):
        changed(before, update)


def test_an_object_cannot_grow_beyond_its_limit() -> None:
    """To the byte."""
    fits = encode("x" * (MAX_OBJECT_BYTES - 2))
    assert changed(MISSING, Set((), fits)) == "x" * (MAX_OBJECT_BYTES - 2)
    with pytest.raises(TooLarge, match="1,000,001"):
        changed(MISSING, Set((), encode("x" * (MAX_OBJECT_BYTES - 1))))
    full = {"a": "x" * (MAX_OBJECT_BYTES - 8)}
    assert size_of(full) == MAX_OBJECT_BYTES
    with pytest.raises(TooLarge):
        changed(full, Append(("b",), b"[]"))


def test_reading_a_path() -> None:
    """What is not there is missing, and a path through a scalar is an error."""
    value = {"a": {"b": [1, {"c": None}]}}
    assert look_up(value, ()) == value
    assert look_up(value, ("a", "b", "-1", "c")) is None
    assert look_up(value, ("a", "x", "y")) is MISSING
    assert look_up(value, ("a", "b", "2")) is MISSING
    assert look_up(MISSING, ("a",)) is MISSING
    with pytest.raises(WrongShape, match=r"through a\.b\.0"):
        look_up(value, ("a", "b", "0", "x"))


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("a..b", InvalidArgument),
        (".a", InvalidArgument),
        ("a.", InvalidArgument),
        ("a\\", InvalidArgument),
        (5, WrongType),
        (("a", 1.5), WrongType),
        (".".join("x" * 33), TooLarge),
        ("x" * 1001, TooLarge),
        ("\ud800", InvalidArgument),
    ],
)
def test_wrong_paths_are_refused(path: Any, error: type[BokiError]) -> None:
    """With what to write instead."""
    with pytest.raises(error) as refused:
        parse_path(path)
    assert refused.value.field == "path"


class Strange:
    pass


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "error", "reason"),
    [
        ({"a": [float("nan")]}, InvalidArgument, r"value\.a\.0 is nan"),
        (float("inf"), InvalidArgument, "inf"),
        ({1: 2}, WrongType, "keys in JSON are text"),
        ({"a": b"x"}, WrongType, r"value\.a is of type bytes"),
        ({1, 2}, WrongType, "set"),
        (Strange(), WrongType, "Strange"),
        (MAX_INT + 1, InvalidArgument, "64 bits"),
        ("\ud800", InvalidArgument, "surrogate"),
        ({"\ud800": 1}, InvalidArgument, "surrogate"),
        (deep(33), TooLarge, "32 deep"),
    ],
)
def test_what_is_not_json_is_refused_with_the_place(value: Any, error: type[BokiError], reason: str) -> None:
    """NaN, bytes, sets, keys that are no text, numbers of more than 64 bits, and what is nested too deep."""
    with pytest.raises(error, match=reason):
        plain(value)
    assert plain(deep(32)) == deep(32)
