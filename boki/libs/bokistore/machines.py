"""Objects of your own: classes whose methods are applied in the order of the log, in every process alike.

::

    class Auction(ReplicatedObject):
        def __init__(self) -> None:
            self.best = 0
            self.who = ""

        @mutator
        def bid(self, who: str, amount: int) -> bool:
            if amount <= self.best:
                return False
            self.best, self.who = amount, who
            return True

        @accessor
        def winner(self) -> str:
            return self.who

A call of a mutator is a record, and every process that uses the object carries it out when it comes to it: so its
result is what the order of the log says, without a conflict and without a condition. That holds as long as mutators are
**deterministic**: no clock, no chance, no files, no other objects, no iteration over sets. `check_deterministic` tries.

What a mutator raises is its result, and the object is as it was before. All state is in attributes that JSON gives
back as they are, or in what `to_json` makes of it; with that the object is saved, so that others need not begin with
the first call. A
method that is changed would mean something else to calls that were made before: raise `version`, and no process of the
old code takes part from the first call of the new one on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from inspect import signature
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from boki import (
    BokiError,
    ConditionFailed,
    Expect,
    InvalidArgument,
    NewRecord,
    Page,
    Record,
    Trimmed,
    VersionTooNew,
    WrongType,
)
from boki.libs.bokistore.json_values import check_exact, decode, encode, plain
from boki.libs.bokistore.reading import certain
from boki.libs.bokistore.refusals import WrongShape
from boki.libs.fold import steps
from boki.libs.fold.arguments import check_size
from boki.libs.fold.codec import RecordCodec
from boki.libs.fold.recent import Recent
from boki.libs.fold.steps import Append, ReadPage, Steps

_log: Final = logging.getLogger("boki.libs.bokistore")

CALLS: Final = "!or:"
SAVED: Final = "!oq:"
SAVE_AFTER: Final = 256
MACHINES_KEPT: Final = 1_024
"""Maximum number of replicated objects that a process remembers though no call uses them."""
MAX_STATE_BYTES: Final = 1_000_000
MAX_ARGUMENT_BYTES: Final = 500_000

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T", bound="ReplicatedObject")


class ReplicatedObject:
    """The class to derive from. Instances are made without arguments."""

    version: ClassVar[int] = 1
    """Of the code: raise it when a method means something else than it did."""

    def to_json(self) -> Any:
        """The whole state as a JSON value; without another one, all attributes, which then must be dict, list, str,
        int, float, bool or None themselves: a `Counter` or a tuple would come back as another type.
        """
        return dict(vars(self))

    def from_json(self, state: Any) -> None:
        """Take the state in that `to_json` has made, of this version of the code or an older one."""
        vars(self).clear()
        vars(self).update(state)


def mutator(method: C) -> C:
    """A method that changes the object: each call is a record."""
    method.__boki_kind__ = "mutator"  # type: ignore[attr-defined]
    return method


def accessor(method: C) -> C:
    """A method that only reads the object: it is called in this process, on what the log says by now."""
    method.__boki_kind__ = "accessor"  # type: ignore[attr-defined]
    return method


class Called(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A call of a mutator. `arguments` is JSON: those by position, and those by name."""

    method: str
    arguments: bytes
    version: int
    nonce: bytes


class Saved(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """The state after all calls up to `last`, as JSON."""

    last: int
    state: bytes
    version: int


codec: Final = RecordCodec[Called | Saved]("a replicated object", 1, Called | Saved)


class Outcome(msgspec.Struct, frozen=True):
    """What a call came to."""

    result: Any = None
    error: str = ""


class Machine:
    """One object in this process: its state, and how far the calls were applied. Pure."""

    def __init__(self, name: str, kind: type[ReplicatedObject]) -> None:
        self.name = name
        self.kind = kind
        self.state = kind()
        self.last = 0
        self.known_to = 0
        self.floor = 0
        """Below this, trims have taken the calls away, and `state` has what was in them."""
        self.applied = 0
        self.saved = 0
        self.has_older_calls = False
        """Whether calls of older code were carried out by this one, to which they may mean something else."""
        self.awaited: dict[bytes, Outcome | None] = {}

    def restart(self) -> None:
        """Begin with nothing: the book was deleted, or nothing was ever called."""
        self.state, self.last, self.known_to, self.saved, self.applied = self.kind(), 0, 0, 0, 0
        self.has_older_calls = False

    def begin(self, saved: Saved, seqnum: int) -> None:
        """Begin with a state that was saved."""
        self._check(saved.version)
        self.state = self.kind()
        self.state.from_json(decode(saved.state))
        self.last, self.known_to, self.saved, self.applied = saved.last, saved.last + 1, seqnum, 0
        self.has_older_calls = False

    def take(self, page: Page) -> None:
        """Carry out the calls of a page that began at or below `known_to`."""
        for record in page.records:
            if record.seqnum >= self.known_to and record.seqnum > self.last:
                called = codec.own(record.data)
                if isinstance(called, Called):
                    outcome = self.apply(called)
                    if called.nonce in self.awaited:
                        self.awaited[called.nonce] = outcome
                self.last = record.seqnum
                self.applied += 1
        self.known_to = max(self.known_to, page.next_start)

    def apply(self, called: Called) -> Outcome:
        """Carry out one call; `VersionTooNew` if it is of newer code than this."""
        self._check(called.version)
        self.has_older_calls = self.has_older_calls or called.version < self.kind.version
        method = method_of(self.kind, called.method, "mutator")
        if method is None:
            return Outcome(error=f"{self.kind.__name__} has no mutator {called.method!r:.60}")
        before = deepcopy(vars(self.state))
        try:
            by_position, by_name = decode(called.arguments)
            result = plain(method(self.state, *by_position, **by_name), "result")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it raises this everywhere, and ends no process
            vars(self.state).clear()
            vars(self.state).update(before)
            return Outcome(error=f"{type(error).__name__}: {error}")
        return Outcome(result)

    def _check(self, version: int) -> None:
        if version > self.kind.version:
            raise VersionTooNew(
                f"replicated object {self.name!r} has calls of version {version} of {self.kind.__name__}, newer than "
                f"this code's {self.kind.version}: deploy the new code here, too"
            )

    def snapshot(self) -> bytes:
        """The whole state. `WrongType` if a process that begins with it would have another one."""
        state = self.state.to_json()
        data = encode(plain(state, "state"))
        base = ReplicatedObject
        if self.kind.to_json is base.to_json and self.kind.from_json is base.from_json:
            check_exact(state, "state")
        thing = f"the state of replicated object {self.name!r} as JSON"
        return check_size(data, "state", MAX_STATE_BYTES, thing, "it cannot be saved")


class Machines:
    """The machines of a connection to the log. Made by `session.shared(Machines)`."""

    def __init__(self) -> None:
        self._machines: Recent[tuple[str, str, type[ReplicatedObject]], Machine] = Recent(MACHINES_KEPT)

    def __len__(self) -> int:
        return len(self._machines)

    def find(self, book: str, name: str, kind: type[ReplicatedObject]) -> Machine:
        """The machine of that object."""
        return self._machines.find((book, name, kind), lambda: Machine(name, kind))

    def forget(self) -> None:
        """Forget all states: whoever asks next begins with the log."""
        self._machines.clear()


def name_of(method: object) -> str:
    """The name of a method that a caller gives as `Auction.bid`."""
    name = getattr(method, "__name__", None)
    if not isinstance(name, str):
        raise WrongType(f"give the method itself, such as Auction.bid, not {method!r:.60}", field="method")
    return name


def method_of(kind: type[ReplicatedObject], name: str, wanted: str) -> Callable[..., Any] | None:
    """The method of that name, if it is a mutator, or an accessor."""
    method = getattr(kind, name, None)
    return method if getattr(method, "__boki_kind__", "") == wanted else None


# acting


def catch_up(machine: Machine) -> Steps[None]:
    """Carry out all calls that have come by now."""
    while True:
        start = machine.known_to
        page: Page = yield ReadPage(CALLS + machine.name, start)
        if machine.known_to < start:  # another caller has begun again meanwhile: calls below this page are missing
            continue
        floor = page.first_seqnum
        # what older code has saved may differ from what its calls mean here: all processes take what was saved
        if floor > machine.floor and (floor > start or 0 < machine.last < floor or machine.has_older_calls):
            yield from _begin_again(machine, floor)
            continue
        machine.take(page)
        if page.is_end:
            return


def _begin_again(machine: Machine, floor: int) -> Steps[None]:
    """Calls were trimmed that this has not applied, or the book was deleted."""
    record: Record | None = yield from steps.tail(SAVED + machine.name)
    while record is not None:
        saved = codec.own(record.data)
        if isinstance(saved, Saved) and saved.last < record.seqnum:
            machine.begin(saved, record.seqnum)
            break
        record = yield from steps.tail(SAVED + machine.name, max_seqnum=record.seqnum - 1)
    else:
        machine.restart()
    machine.known_to = max(machine.known_to, floor)
    machine.floor = floor


def open_saved(machine: Machine) -> Steps[None]:
    """Begin with the newest state that was saved, if this process has applied nothing yet."""
    if not machine.known_to:
        yield from _begin_again(machine, 0)


def call(
    machine: Machine, method: str, by_position: Sequence[Any], by_name: Mapping[str, Any], nonce: bytes
) -> Steps[Any]:
    """Append a call and carry it out; its result, or a `WrongShape` with what it raised."""
    if method_of(machine.kind, method, "mutator") is None:
        raise InvalidArgument(f"{machine.kind.__name__} has no mutator {method!r:.60}", field="method")
    arguments = encode([plain(list(by_position), "arguments"), plain(dict(by_name), "arguments")])
    check_size(arguments, "arguments", MAX_ARGUMENT_BYTES, "arguments as JSON", "put what is large into an object")
    yield from open_saved(machine)
    called = Called(method, arguments, machine.kind.version, nonce)
    machine.awaited[nonce] = None
    try:
        yield from steps.append([NewRecord(codec.encode(called), (CALLS + machine.name,))])
        yield from certain(catch_up(machine))  # it stands in the log, whatever a read of it says
        outcome = machine.awaited[nonce]
    finally:
        del machine.awaited[nonce]
    if outcome is None:
        raise Trimmed(
            f"the call of {method} was carried out, and what it returned was trimmed before this process came to it",
            outcome="unknown",
        )
    if outcome.error:
        raise WrongShape(f"{machine.name}.{method}: {outcome.error}; nothing was changed", error=outcome.error)
    return outcome.result


def ask(machine: Machine, method: str, by_position: Sequence[Any], by_name: Mapping[str, Any]) -> Steps[Any]:
    """The answer of an accessor, on all calls that this caller can see."""
    found = method_of(machine.kind, method, "accessor")
    if found is None:
        raise InvalidArgument(f"{machine.kind.__name__} has no accessor {method!r:.60}", field="method")
    yield from open_saved(machine)
    yield from catch_up(machine)
    return plain(found(machine.state, *by_position, **by_name), "result")


def save(machine: Machine) -> Steps[None]:
    """Save the state and trim the calls that are in it, if there were many since; of two processes one does.

    If that fails it is due again after as many calls. It is no error of the call that met it, which was carried out.
    """
    try:
        yield from _save(machine)
    except BokiError as error:
        _log.warning("replicated object %s was not saved; all of its calls stay in the log: %s", machine.name, error)


def _save(machine: Machine) -> Steps[None]:
    if machine.applied < SAVE_AFTER or machine.known_to <= machine.saved:
        return  # what others have saved is newer than what this process knows
    machine.applied, last = 0, machine.last
    saved = Saved(last, machine.snapshot(), machine.kind.version)
    tag = SAVED + machine.name
    try:
        seqnums: list[int] = yield Append(
            (NewRecord(codec.encode(saved), (tag,)),), (Expect(tag, last_seqnum=machine.saved),)
        )
    except ConditionFailed as error:
        machine.saved = error.actual_seqnum
        return
    machine.saved = seqnums[0]
    machine.floor = max(machine.floor, last + 1)
    yield from steps.trim(last + 1, CALLS + machine.name)
    yield from steps.trim(seqnums[0], tag)


def check_kind(kind: type[T]) -> type[T]:
    """`kind`, if it is a class of replicated objects."""
    if not isinstance(kind, type) or not issubclass(kind, ReplicatedObject):
        raise InvalidArgument(f"a replicated object's class derives from ReplicatedObject: {kind!r:.60}", field="kind")
    try:
        signature(kind).bind()
    except TypeError as error:
        raise InvalidArgument(
            f"{kind.__name__} is made without arguments in every process, and {error}: give them defaults, and set "
            "them by a mutator",
            field="kind",
        ) from None
    return kind


def replay(
    kind: type[ReplicatedObject], calls: Iterable[tuple[str, Sequence[Any]]], *, is_saved: bool = False
) -> tuple[bytes, list[Outcome]]:
    """State and outcomes of these calls, as every process must come to them. `is_saved`: before each call the state is
    saved, and another process begins with it.
    """
    machine = Machine("replayed", kind)
    outcomes = []
    for number, (method, arguments) in enumerate(calls):
        if is_saved:
            machine.begin(Saved(0, machine.snapshot(), kind.version), 0)
        called = Called(method, encode([plain(list(arguments)), {}]), kind.version, b"%d" % number)
        outcomes.append(machine.apply(called))
    return machine.snapshot(), outcomes
