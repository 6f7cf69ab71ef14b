"""Each checker lets a good history pass and catches one that is minimally broken: a check that cannot fail is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from boki.verify.histories.appends import Conditions, Deadlines, Keys, LinearizableAppends, NoEarlyTimeouts
from boki.verify.histories.checkers import Checker, all_checkers, find_violations
from boki.verify.histories.cursors import Cursors
from boki.verify.histories.history import (
    Appending,
    Condition,
    Getting,
    History,
    Ordered,
    Reading,
    Refused,
    Request,
    Result,
    Seen,
    Shown,
    Syncing,
    Told,
    Trimming,
    Written,
    payload_name,
)
from boki.verify.histories.order import NothingLost, NothingTwice, TimeForward, TotalOrder
from boki.verify.histories.sessions import (
    Causality,
    FreshReads,
    MonotonicReads,
    ReadYourWrites,
    TrimSafety,
    WholePrefix,
)

MAX = 1 << 63
ALL = Reading(limit=1000)


class Clients:
    """Writes a history by hand: each call takes one tick of the clock, unless its times are given."""

    def __init__(self) -> None:
        self.history = History()
        self.now = 0

    def call(
        self,
        session: str,
        request: Request,
        result: Result | None,
        *,
        book: str = "b",
        start: int | None = None,
        end: int | None = None,
        needs: Mapping[int, int] | None = None,
        positions: Mapping[int, int] | None = None,
    ) -> None:
        self.now += 10
        at = self.now if start is None else start
        call = self.history.begin(session, book, request, at, at + 1_000, needs)
        if result is not None:
            self.now = max(self.now, at + 5 if end is None else end)
            self.history.end(call, result, at + 5 if end is None else end, positions)

    def append(
        self,
        session: str,
        payload: str,
        seqnum: int | None,
        *tags: str,
        start: int | None = None,
        end: int | None = None,
        when: tuple[Condition, ...] = (),
        key: str | None = None,
    ) -> None:
        result = Ordered((seqnum,)) if seqnum is not None else None
        self.call(session, Appending((Written(payload, tags),), when, key), result, start=start, end=end)

    def refuse(self, session: str, payload: str, actual: int, *tags: str, when: tuple[Condition, ...]) -> None:
        refused = Refused("condition_failed", "not_applied", actual)
        self.call(session, Appending((Written(payload, tags),), when), refused)

    def read(self, session: str, *records: Seen, request: Reading = ALL, start: int | None = None) -> None:
        self.call(session, request, Shown(tuple(records)), start=start)

    def read_out(self, *records: Seen, reader: str = "fresh", tag: str | None = None) -> None:
        self.now += 10
        self.history.read_out(reader, "b", self.now, records, tag)

    def broken(self, checker: Checker) -> list[str]:
        return [violation.text for violation in find_violations(self.history, [checker])]


@pytest.fixture
def clients() -> Clients:
    """Two records, x at 10 and y at 20, appended by one session each."""
    made = Clients()
    made.append("one", "x", 10, "t")
    made.append("two", "y", 20, "t")
    return made


X, Y = Seen(10, "x", ("t",)), Seen(20, "y", ("t",))


def test_a_good_history_breaks_nothing(clients: Clients) -> None:
    """Every checker at once, over a history with a bit of everything."""
    clients.read("one", X, Y)
    clients.call("one", Reading("t", backward=True), Shown((Y,), 20, is_end=False))
    clients.call("one", Getting(10), Shown((X,)))
    clients.call("two", Syncing(), Told())
    clients.history.fork("one", "child", clients.now)
    clients.read("child", X, Y)
    clients.history.join("child", "one", clients.now)
    clients.append("one", "z", 30, "u", when=(Condition("u", 0),))
    clients.refuse("two", "never", 30, "u", when=(Condition("u", 0),))
    clients.append("two", "w", 40, key="k")
    clients.call("two", Appending((Written("w"),), key="k"), Ordered((40,)))
    clients.call("two", Appending((Written("lost"),)), Refused("deadline_exceeded", "unknown"))
    clients.call("one", Trimming(20), Told())
    clients.call("one", Getting(10), Refused("trimmed", "not_applied"))
    clients.read("one", Y, Seen(30, "z", ("u",)), Seen(40, "w"))
    clients.read_out(Y, Seen(30, "z", ("u",)), Seen(40, "w"))
    assert find_violations(clients.history) == []


def test_a_history_survives_its_file(clients: Clients) -> None:
    """What is written as JSON lines comes back equal, and is judged alike."""
    clients.read("one", X, Y)
    clients.history.fork("one", "child", 1)
    clients.call("one", Reading(), None)
    clients.read_out(X)
    again = History.from_lines(list(clients.history.to_lines()))
    assert again.rows == clients.history.rows
    assert [str(each) for each in find_violations(again)] == [str(each) for each in find_violations(clients.history)]


def test_long_payloads_have_names_of_their_own() -> None:
    """Two payloads that differ in the last byte only have different names."""
    assert payload_name(b"x" * 1000 + b"a") != payload_name(b"x" * 1000 + b"b")


# the order


@pytest.mark.parametrize(
    "wrong",
    [Seen(10, "y", ("t",)), Seen(10, "x", ("other",)), Seen(15, "unheard of", ("t",)), Seen(10, "x", ("t",), 7)],
)
def test_one_seqnum_has_one_record(clients: Clients, wrong: Seen) -> None:
    """Other bytes, other tags, another time, or a record that nobody appended."""
    clients.read("one", X, Y)
    assert clients.broken(TotalOrder()) == []
    clients.read("two", wrong)
    assert clients.broken(TotalOrder())


@pytest.mark.parametrize(
    ("request_", "records"),
    [(ALL, (Y, X)), (Reading(limit=1), (X, Y)), (Reading(start=11, limit=9), (X, Y)), (Reading("u"), (X,))],
)
def test_a_reader_gets_what_it_asked_for(clients: Clients, request_: Reading, records: Sequence[Seen]) -> None:
    """In ascending order, no more than the limit, from the range, with the tag."""
    clients.read("one", *records, request=request_)
    assert clients.broken(TotalOrder())


def test_a_record_is_not_seen_before_it_was_asked_for(clients: Clients) -> None:
    """A reader cannot know the future."""
    clients.append("one", "later", 30, start=500)
    clients.call("two", ALL, Shown((X, Y, Seen(30, "later"))), start=100, end=110)
    assert clients.broken(TotalOrder())


def test_an_acknowledged_seqnum_is_that_record(clients: Clients) -> None:
    """Two appends cannot both be given one seqnum."""
    clients.append("one", "z", 20)
    assert clients.broken(TotalOrder())


def test_all_readers_agree_in_the_end(clients: Clients) -> None:
    """Two engines that read everything find the same."""
    clients.read_out(X, Y)
    clients.read_out(X, Y, reader="other")
    assert clients.broken(TotalOrder()) == []
    clients.read_out(X, reader="third")
    assert clients.broken(TotalOrder())


def test_what_was_acknowledged_is_there_in_the_end(clients: Clients) -> None:
    """An append that was answered must be read in the end."""
    clients.read_out(X)
    assert clients.broken(NothingLost())


def test_what_was_read_is_there_in_the_end(clients: Clients) -> None:
    """An append whose outcome is unknown, once read by anybody, counts as acknowledged."""
    clients.call("one", Appending((Written("maybe"),)), Refused("deadline_exceeded", "unknown"))
    clients.read("two", X, Y, Seen(30, "maybe"))
    clients.read_out(X, Y)
    assert clients.broken(NothingLost())


def test_only_a_trim_excuses_a_loss(clients: Clients) -> None:
    """A trim below 20 may take x, and never y; one that was refused for certain takes nothing."""
    clients.call("one", Trimming(20), Refused("deadline_exceeded", "unknown"))
    clients.read_out(Y)
    assert clients.broken(NothingLost()) == []
    clients.read_out(reader="other")
    assert len(clients.broken(NothingLost())) == 1


def test_a_trim_that_was_refused_takes_nothing(clients: Clients) -> None:
    """`not_applied` is a promise."""
    clients.call("one", Trimming(20), Refused("unavailable", "not_applied"))
    clients.read_out(Y)
    assert clients.broken(NothingLost())


def test_a_trim_never_takes_what_was_appended_after_it(clients: Clients) -> None:
    """`trim(MAX)` is clamped to the tail at its own place in the order."""
    clients.call("one", Trimming(MAX), Told())
    clients.append("one", "z", 30)
    clients.read_out()
    assert len(clients.broken(NothingLost())) == 1


def test_a_payload_stands_in_the_order_once(clients: Clients) -> None:
    """An engine that appends again what had been ordered doubles it."""
    clients.read("one", X, Y)
    assert clients.broken(NothingTwice()) == []
    clients.read_out(X, Y, Seen(30, "x", ("t",)))
    assert clients.broken(NothingTwice())


def test_what_was_refused_for_certain_does_not_appear(clients: Clients) -> None:
    """`not_applied` is a promise, whatever its code."""
    clients.refuse("one", "no", 20, "t", when=(Condition("t", 10),))
    assert clients.broken(NothingTwice()) == []
    clients.read("one", X, Y, Seen(30, "no", ("t",)))
    assert clients.broken(NothingTwice())


@pytest.mark.parametrize("there", [(Seen(30, "p"),), (Seen(30, "p"), Seen(32, "q"))])
def test_records_of_one_append_stand_together(clients: Clients, there: tuple[Seen, ...]) -> None:
    """All or none, as neighbours."""
    clients.call("one", Appending((Written("p"), Written("q"))), Refused("connection_lost", "unknown"))
    clients.read_out(X, Y)
    assert clients.broken(NothingTwice()) == []
    clients.read_out(X, Y, *there, reader="other")
    assert clients.broken(NothingTwice())


@pytest.mark.parametrize(("tag", "broken"), [("u", 0), ("v", 1)])
def test_a_trim_may_take_a_record_of_a_group_that_was_never_seen(clients: Clients, tag: str, broken: int) -> None:
    """Its place follows from its neighbour's. A trim of another tag is no excuse."""
    group = Appending((Written("p", ("t",)), Written("q", ("u",))))
    clients.call("one", group, Refused("connection_lost", "unknown"))
    clients.call("two", Trimming(MAX, tag), Told())
    clients.read_out(X, Y, Seen(30, "p", ("t",)))
    assert len(clients.broken(NothingTwice())) == broken


def test_time_never_goes_back(clients: Clients) -> None:
    """A record with a higher seqnum has no earlier time."""
    clients.read("one", Seen(10, "x", ("t",), 5), Seen(20, "y", ("t",), 5))
    assert clients.broken(TimeForward()) == []
    clients.append("one", "z", 30)
    clients.read("one", Seen(30, "z", (), 4), request=Reading(start=30))
    assert clients.broken(TimeForward())


# sessions


def test_a_read_shows_a_prefix(clients: Clients) -> None:
    """Whoever sees y sees x, which stands before it."""
    clients.read("three", X)
    assert clients.broken(WholePrefix()) == []
    clients.read("three", Y)
    assert clients.broken(WholePrefix())


def test_a_page_covers_only_what_it_says(clients: Clients) -> None:
    """A page that ends early, in either direction, is not blamed for what is beyond it."""
    clients.read("three", X, Y)
    clients.call("three", Reading(limit=1), Shown((X,), 11, is_end=False))
    clients.call("three", Reading(limit=1, backward=True), Shown((Y,), 20, is_end=False))
    assert clients.broken(MonotonicReads()) == []
    clients.call("three", Reading(limit=1, backward=True), Shown((X,), 10, is_end=False))
    assert clients.broken(MonotonicReads())


def test_reads_never_go_back(clients: Clients) -> None:
    """What a session has read, it reads again; another session may be behind."""
    clients.read("three", X, Y)
    clients.read("four", X)
    assert clients.broken(MonotonicReads()) == []
    clients.read("three", X)
    assert clients.broken(MonotonicReads())


def test_a_record_that_was_read_is_found(clients: Clients) -> None:
    """`get` must not deny what the session has seen."""
    clients.read("three", X, Y)
    clients.call("three", Getting(20), Refused("not_found", "not_applied"))
    assert clients.broken(MonotonicReads())


def test_positions_never_go_back(clients: Clients) -> None:
    """An answer is as new as the token that asked for it."""
    clients.call("three", ALL, Shown((X, Y)), needs={0: 7}, positions={0: 7})
    assert clients.broken(MonotonicReads()) == []
    clients.call("three", ALL, Shown((X, Y)), needs={0: 7}, positions={0: 6})
    assert clients.broken(MonotonicReads())


def test_a_session_reads_what_it_wrote(clients: Clients) -> None:
    """Even if it has never read before."""
    clients.read("one", X)
    assert clients.broken(ReadYourWrites()) == []
    clients.read("two", X)
    assert clients.broken(ReadYourWrites())


def test_a_child_sees_what_its_parent_saw(clients: Clients) -> None:
    """Its first read covers it."""
    clients.history.fork("two", "child", clients.now)
    clients.read("child", X, Y)
    assert clients.broken(Causality()) == []
    clients.history.fork("two", "next", clients.now)
    clients.read("next", X)
    assert clients.broken(Causality())


def test_a_parent_sees_what_its_child_saw(clients: Clients) -> None:
    """Once the child has returned."""
    clients.read("child", X, Y)
    clients.read("parent", X)
    clients.history.join("child", "parent", clients.now)
    assert clients.broken(Causality()) == []
    clients.read("parent", X)
    assert clients.broken(Causality())


def test_a_fresh_read_sees_all_that_was_acknowledged(clients: Clients) -> None:
    """By anybody, before it was asked; what is acknowledged meanwhile it may miss."""
    clients.append("one", "z", 30, start=100, end=200)
    clients.read("three", X, Y, request=Reading(limit=9, fresh=True), start=150)
    assert clients.broken(FreshReads()) == []
    clients.read("three", X, Y, request=Reading(limit=9, fresh=True), start=201)
    assert clients.broken(FreshReads())


def test_after_a_sync_reads_see_all_that_was_acknowledged(clients: Clients) -> None:
    """Without it they need not."""
    clients.read("three", X)
    assert clients.broken(FreshReads()) == []
    clients.call("three", Syncing(), Told())
    clients.history.fork("three", "child", clients.now)
    clients.read("child", X)
    assert clients.broken(FreshReads())


def test_what_was_trimmed_is_gone_for_who_knows(clients: Clients) -> None:
    """The session that trimmed must not read it again; another may be behind."""
    clients.call("one", Trimming(20, "t"), Told())
    clients.read("two", X, Y)
    clients.read("one", Y, request=Reading("t", limit=9))
    assert clients.broken(TrimSafety()) == []
    clients.read("one", X, Y, request=Reading("t", limit=9))
    assert clients.broken(TrimSafety())


def test_what_was_trimmed_is_gone_for_fresh_readers_and_children(clients: Clients) -> None:
    """A linearizable read and a child call know of the trim, too."""
    clients.call("one", Trimming(20), Told())
    clients.history.fork("one", "child", clients.now)
    clients.call("child", Getting(10), Shown((X,)))
    clients.read("two", X, Y, request=Reading(limit=9, fresh=True))
    assert len(clients.broken(TrimSafety())) == 2


def test_what_was_trimmed_does_not_rise_again(clients: Clients) -> None:
    """In the end it is gone for every reader; a system tag keeps its own row alone."""
    clients.call("one", Trimming(20), Told())
    clients.read_out(Y)
    assert clients.broken(TrimSafety()) == []
    clients.read_out(X, Y)
    assert clients.broken(TrimSafety())


# appends


def test_appends_keep_their_order_in_real_time(clients: Clients) -> None:
    """One that began after another was acknowledged, or seen, stands behind it."""
    clients.append("one", "z", 15, start=5, end=600)
    assert clients.broken(LinearizableAppends()) == []
    clients.append("one", "w", 17, start=650)
    assert clients.broken(LinearizableAppends())


T0, T10, T20 = Condition("t", 0), Condition("t", 10), Condition("t", 20)


def test_a_condition_held_where_the_record_stands(clients: Clients) -> None:
    """Of two appends that expect the same, one wins."""
    clients.append("one", "z", 30, "t", when=(T20,))
    assert clients.broken(Conditions()) == []
    clients.append("two", "w", 40, "t", when=(T20,))
    assert clients.broken(Conditions())


def test_a_refusal_names_what_was_last(clients: Clients) -> None:
    """`actual_seqnum` was the tag's last record at some moment of the call, and not the expected one."""
    clients.refuse("one", "a", 20, "t", when=(T10,))
    assert clients.broken(Conditions()) == []
    for actual, when in ((20, T20), (10, T0), (0, T20), (15, T20)):
        clients.refuse("one", f"b{actual}{when}", actual, "t", when=(when,))
    assert len(clients.broken(Conditions())) == 4


def test_a_tag_whose_records_are_trimmed_counts_as_empty(clients: Clients) -> None:
    """So the condition on 0 may hold again, and one on the last record may fail."""
    clients.call("one", Trimming(MAX, "t"), Told())
    clients.refuse("one", "a", 0, "t", when=(T20,))
    clients.append("one", "z", 30, "t", when=(T0,))
    assert clients.broken(Conditions()) == []


def test_every_call_ends_by_its_deadline(clients: Clients) -> None:
    """Answered late, or never; a client that was killed is owed nothing."""
    clients.call("one", ALL, None)
    clients.history.calls[-1].is_abandoned = True
    clients.append("one", "z", 30, start=100, end=1_150)
    assert clients.broken(Deadlines(100)) == []
    clients.append("one", "w", 40, start=2_000, end=3_101)
    clients.call("two", ALL, None, start=1_500)
    assert len(clients.broken(Deadlines(100))) == 2


def test_nothing_is_given_up_before_its_deadline(clients: Clients) -> None:
    """Who is told that it is too late although it is not was given up; a wrong clock is forgiven."""
    given_up = Refused("deadline_exceeded", "not_applied")
    clients.call("one", Appending((Written("a"),)), given_up, start=100, end=1_000)
    clients.call("one", Appending((Written("b"),)), Refused("unavailable", "not_applied"), start=1_100, end=1_200)
    assert clients.broken(NoEarlyTimeouts(100)) == []
    clients.call("one", Appending((Written("c"),)), given_up, start=2_000, end=2_899)
    assert len(clients.broken(NoEarlyTimeouts(100))) == 1


def test_nothing_is_passed_over_between_two_pages(clients: Clients) -> None:
    """Below `next_start` nothing may ever be that was neither shown nor, of a tag, told to be trimmed."""
    clients.call("two", Reading("t", start=21), Shown((), 25, first_seqnum=21))
    assert clients.broken(Cursors()) == []
    clients.append("one", "z", 24, "t")
    assert len(clients.broken(Cursors())) == 2  # it is passed over, and the page says that it has all
    clients.call("one", Trimming(MAX, "t"), None, start=0)
    assert len(clients.broken(Cursors())) == 1  # it may be trimmed, but then the page would say so


def test_a_key_is_used_once(clients: Clients) -> None:
    """Every call under it returns the same, and one record stands in the order."""
    clients.append("one", "z", 30, key="k")
    clients.append("one", "z", 30, key="k")
    assert clients.broken(Keys()) == []
    clients.append("two", "w", 40, key="k")
    assert len(clients.broken(Keys())) == 2


def test_each_checker_is_tested_here_and_has_a_name_of_its_own() -> None:
    """`all_checkers` is the list that everybody runs."""
    checkers = all_checkers()
    assert len({checker.name for checker in checkers}) == len(checkers)
    tested = {*globals(), "Counts"}  # that one in test_counts.py
    assert {type(checker).__name__ for checker in checkers} <= tested


def test_a_long_history_is_checked_in_few_steps() -> None:
    """10,000 appends and reads of one book, with trims all along: n log n, or this test would take minutes."""
    clients = Clients()
    for n in range(1, 10_001):
        clients.append("one", f"p{n}", n, "t")
        shown = tuple(Seen(m, f"p{m}", ("t",)) for m in range(max(1, n - 3), n + 1))
        clients.call("one", Reading("t", backward=True, limit=4), Shown(shown, max(1, n - 3), is_end=n < 4))
        if n % 100 == 0:
            clients.call("two", Trimming(n - 50), Told())
    assert find_violations(clients.history) == []
