"""Order tables and shard orders against plain lists of what each cut ordered."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.log.cuts import OrderTable, Piece, ShardOrder, pack_column, unpack_column
from boki.log.ids import make_seqnum
from boki.log.metalog import Cut

TERM, LOG = 3, 2
FIRST = make_seqnum(TERM, LOG, 0)
SHARDS = (5, 6, 1 << 60)

# of each cut: how much later than the last one, and how far each shard moves
drawn_cuts = st.lists(
    st.tuples(st.integers(0, 2), st.dictionaries(st.sampled_from(SHARDS), st.integers(1, 4))), max_size=30
)


@dataclass
class PlainOrder:
    """Every record that was ordered, one by one: (shard, local id, time), in the order of the seqnums from `FIRST`."""

    records: list[tuple[int, int, int]] = field(default_factory=list)
    until: dict[int, int] = field(default_factory=dict)
    time_us: int = 100

    def cut(self, later_us: int, moves: dict[int, int]) -> tuple[Cut, list[Piece]]:
        self.time_us += later_us
        pieces = []
        for shard, count in sorted(moves.items()):
            lid = self.until.get(shard, 0)
            pieces.append(Piece(shard, lid, lid + count, FIRST + len(self.records)))
            self.records += [(shard, lid + i, self.time_us) for i in range(count)]
            self.until[shard] = lid + count
        return Cut(self.time_us, tuple((shard, self.until[shard]) for shard in sorted(moves))), pieces


def check(table: OrderTable, plain: PlainOrder, start: int = 0) -> None:
    """The table says of every record from `start` on what the plain order says."""
    for i, (shard, lid, time_us) in enumerate(plain.records):
        seqnum = FIRST + i
        if not table.first_seqnum <= seqnum < table.next_seqnum:
            continue
        found_shard, found_lid, run = table.locate(seqnum)
        assert (found_shard, found_lid, table.time_of(seqnum)) == (shard, lid, time_us)
        followers = [record[:2] for record in plain.records[i : i + run]]
        assert followers == [(shard, lid + n) for n in range(run)]
        first_of_cut, _ = table.cut_of(seqnum)
        assert plain.records[first_of_cut - FIRST][2] == time_us
    for seqnum in (table.first_seqnum - 1, table.next_seqnum):
        with pytest.raises(KeyError):
            table.locate(seqnum)
        with pytest.raises(KeyError):
            table.time_of(seqnum)
    times = {time_us for _, _, time_us in plain.records[start:]}
    for time_us in {time_us + later for time_us in times for later in (0, 1)}:
        expected = next((FIRST + i for i, row in enumerate(plain.records) if i >= start and row[2] >= time_us), None)
        found = table.first_seqnum_at(time_us)
        # a cut that ordered nothing may stand first
        assert found == expected or (expected is None and found == table.next_seqnum)


@given(drawn_cuts)
def test_the_table_is_what_the_cuts_say(cuts: list[tuple[int, dict[int, int]]]) -> None:
    """Pieces (as foretold), places, runs and times; and it comes back from its bytes."""
    table, plain = OrderTable(TERM, LOG), PlainOrder()
    for later_us, moves in cuts:
        cut, pieces = plain.cut(later_us, moves)
        assert table.pieces(cut) == pieces
        assert table.apply_cut(cut) == pieces
    assert table.next_seqnum == FIRST + len(plain.records)
    assert table.ordered_until == plain.until
    check(table, plain)
    copy = OrderTable.decode(table.encode())
    assert (copy.term, copy.log, copy.next_seqnum, copy.ordered_until) == (TERM, LOG, table.next_seqnum, plain.until)
    assert copy.size_bytes == table.size_bytes
    check(copy, plain)


@given(drawn_cuts, st.sets(st.integers(0, 30)))
def test_a_history_in_several_tables_is_the_same_history(
    cuts: list[tuple[int, dict[int, int]]], ends: set[int]
) -> None:
    """Each table continues where its predecessor ended, also after it was read back from its bytes."""
    plain = PlainOrder()
    tables = [OrderTable(TERM, LOG)]
    for number, (later_us, moves) in enumerate(cuts):
        if number in ends:
            tables[-1] = OrderTable.decode(tables[-1].encode())
            tables.append(tables[-1].successor())
        cut, pieces = plain.cut(later_us, moves)
        assert tables[-1].apply_cut(cut) == pieces
    for table, following in pairwise(tables):
        assert table.next_seqnum == following.first_seqnum
    for table in tables:
        until_here = PlainOrder(plain.records[: table.next_seqnum - FIRST])
        check(table, until_here, start=table.first_seqnum - FIRST)


@given(drawn_cuts)
def test_the_order_of_a_shard_is_the_other_direction(cuts: list[tuple[int, dict[int, int]]]) -> None:
    """From local id to seqnum, also after a checkpoint; what is not ordered yet has none."""
    table, plain = OrderTable(TERM, LOG), PlainOrder()
    orders = {shard: ShardOrder() for shard in SHARDS}
    for later_us, moves in cuts:
        for piece in table.apply_cut(plain.cut(later_us, moves)[0]):
            orders[piece.shard].add(piece)
    again = {shard: ShardOrder(order.until_lid, order.runs()) for shard, order in orders.items()}
    from_bytes = {shard: ShardOrder(order.until_lid) for shard, order in orders.items()}
    for shard, unpacked in from_bytes.items():
        for first in range(0, orders[shard].run_count, 2):
            unpacked.extend(orders[shard].packed(first, first + 2))
    for order in (orders, again, from_bytes):
        for i, (shard, lid, _) in enumerate(plain.records):
            assert order[shard].seqnum_of(lid) == FIRST + i
        for shard in SHARDS:
            assert order[shard].until_lid == plain.until.get(shard, 0)
            assert order[shard].seqnum_of(order[shard].until_lid) is None
            assert order[shard].seqnum_of(-1) is None


def test_a_quiet_log_costs_sixteen_bytes_a_cut() -> None:
    """One engine writing alone is one run, however many cuts there are."""
    table = OrderTable(TERM, LOG)
    for number in range(1_000):
        table.apply_cut(Cut(number, ((SHARDS[0], number + 1),)))
    assert table.size_bytes <= 16 * 1_000 + 200
    assert table.entry_count == 1_001
    assert table.locate(FIRST)[2] == 1_000
    full = table.successor()
    assert table.ordered_until == full.ordered_until == {SHARDS[0]: 1_000}
    full.apply_cut(Cut(1_000, ((SHARDS[0], 1_001),)))
    assert table.ordered_until == {SHARDS[0]: 1_000}, "what a table says of its end stays so"


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (Cut(9, ((5, 3),)), "never goes back"),
        (Cut(10, ((5, 1),)), "forward"),
        (Cut(10, ((5, 0),)), "forward"),
        (Cut(10, ((6, 1), (5, 2))), "ascending"),
        (Cut(10, ((5, 2), (5, 3))), "ascending"),
    ],
)
def test_a_cut_that_cannot_follow_is_a_bug(cut: Cut, reason: str) -> None:
    """Asserted, because two tables that took it differently would order records differently."""
    table = OrderTable(TERM, LOG)
    table.apply_cut(Cut(10, ((5, 1),)))
    with pytest.raises(AssertionError, match=reason):
        table.apply_cut(cut)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_columns_are_little_endian_bytes(numbers: list[int]) -> None:
    """On every machine, as readers of slabs expect them."""
    column = array("q", numbers)
    data = pack_column(column)
    assert data == b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
    assert unpack_column("q", data) == column
