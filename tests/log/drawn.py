"""What Hypothesis draws for tests of the log: names, and the groups of records that appends are made of."""

from __future__ import annotations

from hypothesis import strategies as st

from boki.log.chunk import Group
from boki.log.record import Expect

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
payloads = st.binary(max_size=20)
records = st.tuples(payloads, st.lists(names, max_size=3, unique=True).map(tuple))
expects = st.one_of(
    st.builds(Expect, names, st.integers(0, (1 << 63) - 1)),
    st.builds(Expect, names, count=st.integers(0, (1 << 63) - 2)),
)
groups = st.builds(
    Group,
    st.lists(records, min_size=1, max_size=4),
    st.lists(expects, max_size=2),
    st.one_of(st.none(), names),
)
many_groups = st.lists(groups, min_size=1, max_size=4)
