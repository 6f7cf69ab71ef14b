"""`Retry`: the retry policy of everything that tries again: how often, and with what backoff.

Pure: a policy is a value that travels, and it decides from an error, a count and a time. The jitter is drawn from the
work's own id, so that every process which looks at the same failure comes to the same delay.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from hashlib import sha256
from inspect import iscoroutinefunction
from math import inf, isfinite
from typing import Any, Final

import msgspec
from msgspec import StructMeta

from boki.errors import BokiError, CallLost, FunctionFailed, InvalidArgument, WrongType
from boki.log.operations import Failure

MAX_ATTEMPTS: Final = 10_000
MAX_DELAY_S: Final = 365 * 24 * 3_600.0
"""A year: the longest delay of a call and between its runs, as of a queue's message."""
MAX_NAMES: Final = 32
"""Maximum number of errors that a policy names, in `errors` and in `never` each."""
MAX_NAME_CHARS: Final = 128
ALL_ERRORS: Final = "*"
_MAX_DOUBLINGS: Final = 32


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to pause between tries, and for how many of them."""

    first_s: float = 0.05
    """The first pause; each is twice as long as the one before."""
    longest_s: float = 2.0
    jitter: float = 0.5
    """Up to this part of each pause is taken away at random, so that work that failed together spreads out."""
    tries: float = inf
    """Maximum number of tries, the first one included."""

    def pause_s(self, tries: int, drawn: float = 0.0) -> float:
        """Seconds to pause after that many tries; `drawn` is random, from 0 to 1.

        >>> [Backoff().pause_s(tries) for tries in (1, 2, 3, 1000)]
        [0.05, 0.1, 0.2, 2.0]
        >>> Backoff().pause_s(1, drawn=1.0)
        0.025
        """
        pause_s: float = self.first_s * (1 << min(tries - 1, _MAX_DOUBLINGS))
        return min(pause_s, self.longest_s) * (1 - self.jitter * drawn)

    def pause_us(self, tries: int) -> int:
        """The same in whole microseconds, without jitter.

        >>> Backoff(first_s=0.1, longest_s=10.0).pause_us(3)
        400000
        """
        return int(self.pause_s(tries) * 1e6)


class _ByName(StructMeta):
    """Refuses what is not a field of the policy, and names those that are: msgspec's own error says neither."""

    def __call__(cls, *values: Any, **given: Any) -> Any:  # noqa: N805 - a metaclass
        known = cls.__struct_fields__
        if values:
            raise WrongType(
                f"{cls.__name__} takes its fields by name: write {cls.__name__}({known[0]}=3)", field=known[0]
            )
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.5)
                guess = f"; did you mean {near[0]}?" if near else "."
                raise InvalidArgument(
                    f"{cls.__name__} has no field {name}{guess} Its fields: {', '.join(known)}", field=name
                )
        return super().__call__(**given)


class Retry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, metaclass=_ByName
):
    """When a call that failed runs again.

    An error goes by several names: its `code` ("function_failed", "deadline_exceeded", "call_lost"), and the name of
    its class, which for a function that raised is the class of what it raised ("ValueError"). Names are compared as
    they are; base classes do not count.

    - A call that lost its worker process or its engine runs again, whatever `errors` says, unless `never` names
      "call_lost".
    - An error that says that nothing happened and that trying again is of no use (a payload that does not fit) is
      final, unless `errors` names it.
    - `TerminalError` is final, always.
    - An error with an attribute `retry_after_s` sets the delay itself.
    """

    attempts: int = 4
    """Maximum number of runs, the first one included. 1: never run twice."""
    first_s: float = 1.0
    """Delay before the second run."""
    factor: float = 2.0
    """How much longer each delay is than the one before."""
    max_s: float = 60.0
    """Longest delay."""
    jitter: float = 0.1
    """Up to this part of each delay is taken away, by the call's id, so that calls that failed together spread out."""
    deadline_s: float | None = None
    """No run begins later than this after the call was due. None: only `attempts` counts."""
    errors: tuple[str, ...] = (ALL_ERRORS,)
    """Names of the errors to run again after. ("*",): all; (): none, but for lost workers and engines."""
    never: tuple[str, ...] = ()
    """Names of errors that are final. They win over `errors`."""
    should_retry: Callable[[Exception], bool] | None = None
    """A `def` that is asked about each error after which the work may run again; False makes it final. For steps of
    workflows, whose errors are where their policy is: the policy of a logged call travels, and a function cannot.
    """

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise _refused("attempts", f"an int from 1 to {MAX_ATTEMPTS:,}", self.attempts)
        _check_number("first_s", self.first_s, 0.0, MAX_DELAY_S)
        _check_number("factor", self.factor, 1.0, 1_000.0)
        _check_number("max_s", self.max_s, 0.0, MAX_DELAY_S)
        if self.first_s > self.max_s:
            raise InvalidArgument(
                f"first_s of Retry must be at most max_s, which is {self.max_s:g}, not {self.first_s:g}",
                field="first_s",
            )
        _check_number("jitter", self.jitter, 0.0, 1.0)
        if self.deadline_s is not None:
            _check_number("deadline_s", self.deadline_s, 0.0, MAX_DELAY_S)
        for field in ("errors", "never"):
            msgspec.structs.force_setattr(self, field, _checked_names(field, getattr(self, field)))
        if self.should_retry is not None:
            if not callable(self.should_retry):
                raise _refused("should_retry", "a def with one parameter, the error", self.should_retry)
            if iscoroutinefunction(self.should_retry):
                raise InvalidArgument(
                    "should_retry of Retry is a plain def: what it asks others for, the step asks", field="should_retry"
                )

    def allows(self, failure: Failure) -> bool:
        """Whether work that ended with this failure may run again, if attempts and time are left.

        >>> busy = Failure("function_failed", "f: Busy", "failed", False, {"error_type": "Busy"})
        >>> [policy.allows(busy) for policy in (Retry(), Retry(errors=("Busy",)), Retry(never=("Busy",)))]
        [True, True, False]
        """
        names = names_of(failure)
        if failure.details.get("terminal") is True or names.intersection(self.never):
            return False
        if failure.code == CallLost.code or names.intersection(self.errors):
            return True
        is_useless = failure.outcome == "not_applied" and not failure.retryable
        return ALL_ERRORS in self.errors and not is_useless

    def delay_us(self, runs: int, work_id: str, failure: Failure) -> int:
        """Microseconds between run `runs` (the first is 1), which ended with this failure, and the next one.

        >>> lost = Failure("call_lost", "gone", "unknown", True)
        >>> [Retry(jitter=0, max_s=3).delay_us(runs, "id", lost) for runs in (1, 2, 3, 4000)]
        [1000000, 2000000, 3000000, 3000000]
        """
        asked_s = failure.details.get("retry_after_s")
        if isinstance(asked_s, int | float) and 0 <= asked_s <= MAX_DELAY_S:
            return int(asked_s * 1e6)
        delay_s = self.first_s
        for _ in range(runs - 1):
            if delay_s >= self.max_s or self.factor == 1 or delay_s == 0:
                break
            delay_s *= self.factor
        drawn = int.from_bytes(sha256(f"{work_id} {runs}".encode()).digest()[:4], "big") / (1 << 32)
        return int(min(delay_s, self.max_s) * (1 - self.jitter * drawn) * 1e6)

    def again_us(self, failure: Failure, runs: int, work_id: str, elapsed_us: int) -> int | None:
        """In how many microseconds to run again after `runs` runs, `elapsed_us` after the work was due.

        None: the failure is final.
        """
        if runs >= self.attempts or not self.allows(failure):
            return None
        delay_us = self.delay_us(runs, work_id, failure)
        is_late = self.deadline_s is not None and elapsed_us + delay_us > self.deadline_s * 1e6
        return None if is_late else delay_us


def names_of(failure: Failure) -> set[str]:
    """The names by which a policy can mean this failure."""
    names = {failure.code}
    for field in ("error_type", "error_code"):
        if isinstance(name := failure.details.get(field), str):
            names.add(name)
    if failure.code != FunctionFailed.code:
        names.add(type(failure.error()).__name__)
    return names


def short_name(failure: Failure) -> str:
    """The most telling of its names: what the function raised, else the code.

    >>> short_name(Failure("function_failed", "f: ValueError: no", "failed", False, {"error_type": "ValueError"}))
    'ValueError'
    """
    name = failure.details.get("error_type")
    return name[:MAX_NAME_CHARS] if isinstance(name, str) and failure.code == FunctionFailed.code else failure.code


def check_retry(value: Any, *, travels: bool = True) -> Retry | None:
    """`value`, if it is a policy or None. `travels`: it is sent to where the error itself is not."""
    if value is None or isinstance(value, Retry):
        if travels and value is not None and value.should_retry is not None:
            raise InvalidArgument(
                "should_retry of Retry is for steps of workflows: a logged call keeps its policy in the log, which "
                "holds no function. Name the errors in errors and never, or raise TerminalError",
                field="should_retry",
            )
        return value
    kind = type(value).__name__
    raise WrongType(f"retry must be a boki.Retry, not {kind}: write retry=Retry(attempts=3)", field="retry")


def check_delay(delay_s: float) -> None:
    """Refuse a delay of a logged call that is longer than any may be."""
    if not 0 <= delay_s <= MAX_DELAY_S:
        raise InvalidArgument(
            f"delay_s must be 0 to {MAX_DELAY_S:,.0f} seconds (a year), not {delay_s:,.15g}", field="delay_s"
        )


def _checked_names(field: str, names: Any) -> tuple[str, ...]:
    """The names as a tuple; a class is refused with what to write instead."""
    if isinstance(names, str) or not isinstance(names, tuple | list):
        raise _refused(field, 'a tuple of names such as ("ValueError",)', names)
    if len(names) > MAX_NAMES:
        raise InvalidArgument(f"{field} of Retry may name {MAX_NAMES} errors, not {len(names)}", field=field)
    for name in names:
        if isinstance(name, type) and issubclass(name, BaseException):
            meant = name.code if issubclass(name, BokiError) else name.__name__
            raise WrongType(f"{field} of Retry holds names, not classes: write {meant!r}", field=field)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            raise _refused(field, f"names of 1 to {MAX_NAME_CHARS} characters", name)
    return tuple(names)


def _check_number(field: str, value: Any, least: float, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not is_number or not least <= value <= most:
        raise _refused(field, f"a number from {least:,.10g} to {most:,.10g}", value)


def _refused(field: str, wanted: str, value: Any) -> InvalidArgument:
    return InvalidArgument(f"{field} of Retry must be {wanted}, not {value!r:.60}", field=field)


LOSSES_ONLY: Final = Retry(attempts=4, first_s=0.1, max_s=10.0, jitter=0.0, errors=())
"""The policy of calls that have none: 4 runs if workers or engines are lost, 1 if the function ends by itself."""
