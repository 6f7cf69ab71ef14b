"""The counting rules, checked by going through every case of up to five members."""

from __future__ import annotations

from itertools import combinations, product

from boki.log.quorum import majority, quorum_reached

SIZES = range(1, 6)


def test_two_majorities_always_share_a_member() -> None:
    """And one member less would not be enough for that."""
    for count in SIZES:
        members = range(count)
        quorums = [set(quorum) for quorum in combinations(members, majority(count))]
        assert all(one & two for one, two in product(quorums, quorums))
        smaller = [set(quorum) for quorum in combinations(members, majority(count) - 1)]
        assert count == 1 or any(not one & two for one, two in product(smaller, smaller))


def test_what_a_quorum_has_reached_is_the_largest_position_that_so_many_members_hold() -> None:
    """Never more: a record that is called durable is on that many disks."""
    for count, quorum in product(range(6), SIZES):
        for reports in product(range(4), repeat=count):
            held = [position for position in range(4) if sum(report >= position for report in reports) >= quorum]
            assert quorum_reached(reports, quorum) == max(held, default=0)
            assert quorum_reached(iter(reports), quorum) == max(held, default=0)
