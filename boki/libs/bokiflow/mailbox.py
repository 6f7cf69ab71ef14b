"""Messages of a workflow: signals, updates, queries and promises, as its body takes them. Pure.

A message is delivered once, in the order of the log, and kept until the body takes it: a signal may come before anyone
waits for it, or before the workflow was started. Messages belong to the workflow's id, so those that were not taken are
there for the workflow that continues it.

**Hand-over.** `flow.continue_as_new` hands over the state that the body has at the call. Nothing is taken from then on,
and a request to cancel is kept as well: a handler would change a state that has been handed over, and its update would
be answered all the same. The next execution reads from the first message that is kept.

A body that waits for a message after that call gets messages again: it may have caught `ContinueAsNew`. If it ends by
it after all, such as at the end of a `finally`, what handlers took after the call is given back: the next execution
gets it. Messages that the body itself received while it was unwound stay taken.
"""

from __future__ import annotations

import inspect
from asyncio import CancelledError, Task, current_task
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, assert_never, get_type_hints

from boki import MAX_SEQNUM, InvalidArgument, TooLarge
from boki.extending import Failure, Payload, ValueCodec, codec_for, decode_any, encode_any, failure_of
from boki.libs.bokiflow.gates.records import Admission, reason_of
from boki.libs.bokiflow.locks.held import Locks
from boki.libs.bokiflow.locks.state import Freed, Wanted
from boki.libs.bokiflow.loop import FlowFuture, FlowLoop, FlowTask
from boki.libs.bokiflow.records import (
    Answered,
    CancelRequested,
    Note,
    Paused,
    Resolved,
    Result,
    Resumed,
    Signalled,
    Updated,
    encode_note,
)

Handler = Callable[[Any], Any]

_HANDLERS: Final = "a handler ends no workflow and begins none as new; set what the body waits for by flow.wait_for"


class Validator(Protocol):
    """Refuses an update by raising."""

    def __call__(self, payload: Any, /) -> object:
        """Raise to refuse the update of that payload."""


class Mailbox:
    """See the module. `cancel` is told of a request to cancel the workflow, `fail` of a handler that raised, and
    `drops` of a signal that its handler cannot take: whether it is left out. `takes_again` is asked whether an update
    is handled whose id was used for an earlier one, which the log has forgotten: else this one were not here.
    """

    def __init__(
        self,
        loop: FlowLoop,
        cancel: Callable[[str], None],
        fail: Callable[[Exception], None],
        drops: Callable[[str, Exception], bool],
        takes_again: Callable[[str], bool],
    ) -> None:
        self._drops = drops
        self._takes_again = takes_again
        self._loop = loop
        self._cancel = cancel
        self._fail = fail
        self._kept: dict[int, Signalled | Updated | Resolved | CancelRequested | Admission] = {}
        """Messages that nobody has taken, by seqnum."""
        self._main: FlowTask[Any] | None = None
        self._is_handed_over = False
        """Whether the body has handed over its state to the next execution."""
        self._giver: Task[Any] | None = None
        """The task that has handed over."""
        self._lent: list[tuple[int, int, Signalled | Updated | Resolved]] = []
        """Messages that were taken after a hand-over: the count of taken ones, the seqnum, the message."""
        self._lends = False
        """Whether there was a hand-over, maybe of a body that lives on."""
        self._wait: FlowFuture[Any] | None = None
        """What the task of the body has waited for last."""
        self._is_closed = False
        """Whether the body has ended."""
        self._receivers: dict[str, deque[FlowFuture[Any]]] = {}
        self._promises: dict[str, FlowFuture[Any]] = {}
        self._signal_handlers: dict[str, tuple[Handler, ValueCodec]] = {}
        self._update_handlers: dict[str, tuple[Handler, ValueCodec, Validator | None]] = {}
        self.queries: dict[str, Handler] = {}
        self.locks = Locks(loop)
        self.requests: frozenset[str] = frozenset()
        """What the lives of the workflow's history are called by what limits it."""
        self._running: dict[FlowTask[Any], str] = {}
        self._is_validating = False
        self._answered: dict[str, int] = {}
        """Where the last answer stands to an update of that id; behind all, as long as a handler has yet to answer."""
        self.handled: dict[str, int] = {}
        """Where the last update of an id stands that was given to a handler."""
        self._taken: set[int] = set()
        self.taken_count = 0
        """Number of messages that were taken."""
        self.answers: list[Answered] = []
        """Answers to be sent, once everything before them is durable."""

    def begin(self, main: FlowTask[Any]) -> None:
        """This is the task of the body."""
        self._main = main

    # what the log brings

    def deliver(self, seqnum: int, note: Note, stood_at: int) -> None:
        """The next message. The loop is to be run afterwards. `stood_at`: where it stood first, if it is a copy."""
        if self._is_handed_over and self._lives_on:
            self._open_again()
        match note:
            case Signalled() | Updated() | Resolved():
                self._kept[seqnum] = note
                self._offer(seqnum, note)
            case Answered():
                self._answered[note.id] = seqnum
                self.answers = [answer for answer in self.answers if answer.id != note.id]
            case CancelRequested():
                self._ask_to_end(seqnum, note, note.reason)
            case Wanted() | Freed():
                self.locks.deliver(stood_at, note)
            case Admission():
                why = reason_of(note, self.requests)
                if why is not None:
                    self._ask_to_end(seqnum, note, why)
            case Paused() | Resumed():
                self._obey(seqnum)
            case _:
                assert_never(note)

    @property
    def is_listening(self) -> bool:
        """Whether the body waits for messages, or may be called by one."""
        if self._signal_handlers or self._update_handlers or self.locks.is_waiting:
            return True
        if self._receivers and any(not future.done() for queue in self._receivers.values() for future in queue):
            return True
        return bool(self._promises) and any(not promise.done() for promise in self._promises.values())

    @property
    def left(self) -> dict[int, Note]:
        """Messages that nobody has taken, by seqnum."""
        return dict(sorted(self._kept.items()))

    def taken_since(self, seqnum: int) -> list[int]:
        """Those that were taken from there on, while another one was kept."""
        return sorted(taken for taken in self._taken if taken >= seqnum)

    @property
    def running_handlers(self) -> list[str]:
        """Names of the messages whose handlers have not ended."""
        return [name for task, name in self._running.items() if not task.done()]

    @property
    def has_answered(self) -> bool:
        """Whether updates were answered."""
        return bool(self._answered)

    # the end of the body

    @property
    def is_in_handler(self) -> bool:
        """Whether the code that runs now is that of a handler, or of a validator."""
        return self._is_validating or current_task(self._loop) in self._running

    def hand_over(self) -> int:
        """The body continues as new with the state that it has now: see the module. The result is for `end_by`."""
        self._is_handed_over = self._lends = True
        self._giver = current_task(self._loop)
        if self._giver is self._main:
            self._wait = None  # it does not wait: a promise that it has given up may still be open
        return self.taken_count

    def end_by(self, taken_count: int) -> None:
        """The body ends by the `ContinueAsNew` of the hand-over at which it had taken that number of messages."""
        self._is_handed_over = self._is_closed = True
        self._kept.update((seqnum, note) for count, seqnum, note in self._lent if count > taken_count)
        self._taken.difference_update(self._kept)

    def waits(self, future: FlowFuture[Any]) -> None:
        """The task that runs now waits for this, which a message may settle."""
        if current_task(self._loop) is self._main:
            self._wait = future
        self.reopen()

    def reopen(self) -> None:
        """A task asks for messages. If it has handed over, or is that of the body, it may have caught `ContinueAsNew`.

        Another task may not reopen the mailbox: it still runs while the body is unwound.
        """
        if self._is_handed_over and current_task(self._loop) in (self._main, self._giver):
            self._open_again()

    @property
    def _lives_on(self) -> bool:
        """Whether a hand-over by a task beside the body does not end the body, as far as is known: it waits for a
        message, or no task has asked what that one ended with. Else it would wait forever, for a cancellation as well.
        """
        if self._wait is not None and not self._wait.done():
            return True
        giver = self._giver
        if giver is None or giver is self._main or not giver.done():
            return False
        return bool(getattr(giver, "_log_traceback", False))

    def _open_again(self) -> None:
        if self._is_closed:
            return
        self._is_handed_over = False
        for seqnum, note in list(self._kept.items()):
            if isinstance(note, CancelRequested | Admission):
                del self._kept[seqnum]
                self.deliver(seqnum, note, seqnum)
            elif seqnum in self._kept:
                self._offer(seqnum, note)

    def close(self) -> None:
        """The body has ended: nobody takes anything any more."""
        self._is_closed = True

    # what the body asks for

    def receive(self, name: str) -> FlowFuture[Any]:
        """The next signal of that name."""
        future = self._loop.create_future()
        self.waits(future)
        for seqnum, note in self._kept.items() if self._is_open else ():
            if isinstance(note, Signalled) and note.name == name:
                self._take(seqnum, future)
                future.set_result(_value(note.payload, name))
                return future
        self._receivers.setdefault(name, deque()).append(future)
        return future

    def promise(self, name: str) -> FlowFuture[Any]:
        """The promise of that name: the same future each time."""
        future = self._promises.get(name)
        if future is not None:
            self.waits(future)
        else:
            future = self._promises[name] = self._loop.create_future()
            self.waits(future)
            for seqnum, note in list(self._kept.items()):
                if isinstance(note, Resolved) and note.name == name:
                    self._offer(seqnum, note)
        return future

    def on_signal(self, name: str, handler: Handler) -> None:
        """Have signals of that name be given to `handler`, those that are kept included."""
        codec = _codec_of(name, handler)
        self.reopen()
        self._signal_handlers[name] = handler, codec
        self._offer_kept(Signalled, name)

    def on_update(self, name: str, handler: Handler, validator: Validator | None) -> None:
        """Have updates of that name be answered by `handler`, unless `validator` refuses them."""
        if inspect.iscoroutinefunction(validator):
            raise InvalidArgument(
                f"the validator of {name} is an async def: make it a def, which only reads; what takes longer, the "
                "handler finds out",
                field="validator",
            )
        codec = _codec_of(name, handler)
        self.reopen()
        self._update_handlers[name] = handler, codec, validator
        self._offer_kept(Updated, name)

    def query(self, name: str, payload: Any) -> Any:
        """What the handler of that query says; it reads, and does nothing."""
        handler = self.queries.get(name)
        if handler is None:
            known = ", ".join(sorted(self.queries)) or "none"
            raise InvalidArgument(f"the workflow has no query {name!r}; it has {known}", field="query")
        found = handler(payload)
        if inspect.iscoroutine(found):
            found.close()
            raise InvalidArgument(f"the handler of query {name!r} is async: a query only reads, so make it a def")
        return found

    # in between

    @property
    def _is_open(self) -> bool:
        return not self._is_handed_over and not self._is_closed

    def _ask_to_end(self, seqnum: int, note: CancelRequested | Admission, reason: str) -> None:
        """Cancel the workflow, or leave that to the one that continues it."""
        if self._is_handed_over:
            self._kept[seqnum] = note
            return
        self._obey(seqnum)
        self._cancel(reason)

    def _obey(self, seqnum: int) -> None:
        """This execution obeys the request, and the next one, which reads from the first kept message on, must not."""
        if self._kept or self._lends:
            self._taken.add(seqnum)

    def _offer_kept(self, kind: type[Signalled | Updated], name: str) -> None:
        for seqnum, note in list(self._kept.items()):
            if isinstance(note, kind) and note.name == name:
                self._offer(seqnum, note)

    def _offer(self, seqnum: int, note: Signalled | Updated | Resolved) -> None:
        """Give a message to whoever wants it now."""
        if not self._is_open:
            return
        match note:
            case Signalled():
                self._offer_signal(seqnum, note)
            case Updated():
                self._offer_update(seqnum, note)
            case Resolved():
                future = self._promises.get(note.name)
                if future is None:
                    return
                self._take(seqnum, future)
                if not future.done():
                    _settle(future, note.result, note.name)
            case _:
                assert_never(note)

    def _offer_signal(self, seqnum: int, note: Signalled) -> None:
        found = self._signal_handlers.get(note.name)
        if found is not None:
            self._take(seqnum)
            self._call(note.name, *found, note.payload, None)
            return
        waiting = self._receivers.get(note.name)
        while waiting:
            future = waiting.popleft()
            if not future.done():
                self._take(seqnum, future)
                future.set_result(_value(note.payload, note.name))
                return

    def _offer_update(self, seqnum: int, note: Updated) -> None:
        found = self._update_handlers.get(note.name)
        if found is None:
            return
        self._take(seqnum)
        before = self._answered.get(note.id)
        if before is not None and (before >= seqnum or not self._takes_again(note.id)):
            return
        self._answered[note.id], self.handled[note.id] = MAX_SEQNUM, seqnum
        handler, codec, validator = found
        if validator is not None:
            self._is_validating = True
            try:
                validator(codec.decode(note.payload, f"payload of {note.name}"))
            except BaseException as raised:  # noqa: BLE001 - whatever it raises is why the update is refused
                self.answers.append(
                    Answered(note.id, Result(None, failure_of(note.name, _error_of(note.name, raised))))
                )
                return
            finally:
                self._is_validating = False
        self._call(note.name, handler, codec, note.payload, note.id)

    def _call(self, name: str, handler: Handler, codec: ValueCodec, payload: Payload, update: str | None) -> None:
        handling = self._handle(name, handler, codec, payload, update)
        task = self._loop.create_task(handling, name=f"handler of {name}")
        self._running[task] = name
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _handle(
        self, name: str, handler: Handler, codec: ValueCodec, payload: Payload, update: str | None
    ) -> None:
        try:
            try:
                given = codec.decode(payload, f"payload of {name}")
            except Exception as wrong:
                if update is None and self._drops(name, wrong):
                    return  # anybody may send it: that must not end the workflow
                raise
            found = handler(given)
            value = await found if inspect.isawaitable(found) else found
            result = Result(encode_any(value, f"answer of {name}"))
        except GeneratorExit:
            raise
        except CancelledError as gone:  # what it awaited was cancelled, or it was itself: its sender waits all the same
            if update is None:
                raise
            result = Result(None, failure_of(name, gone))
        except BaseException as raised:  # noqa: BLE001 - of an update it is the answer, of a signal the workflow's end
            error = _error_of(name, raised)
            if update is None:
                self._fail(error)
                return
            result = Result(None, failure_of(name, error))
        if update is not None:
            self.answers.append(Answered(update, result))

    def _take(self, seqnum: int, future: FlowFuture[Any] | None = None) -> None:
        """Remove a message for that future, or for a handler."""
        note = self._kept.pop(seqnum)
        self.taken_count += 1
        if self._kept or self._lends:
            self._taken.add(seqnum)
        else:
            self._taken.clear()
        is_received = future is not None and future is self._wait and self._giver in (None, self._main)
        if self._lends and not is_received and isinstance(note, Signalled | Updated | Resolved):
            self._lent.append((self.taken_count, seqnum, note))


def note_of_answer(answer: Answered, most_bytes: int) -> bytes:
    """The record of an answer, or of the failure that stands for one that no record holds."""
    data = encode_note(answer)
    if len(data) <= most_bytes:
        return data
    error = TooLarge(f"the answer has {len(data):,} bytes, and a record may have {most_bytes:,}: answer where it is")
    return encode_note(Answered(answer.id, Result(None, Failure.of(error))))


def _codec_of(message: str, handler: Handler) -> ValueCodec:
    """How the payloads of a handler are read: as its first parameter is annotated. `InvalidArgument`: it takes none."""
    handler = getattr(handler, "payload_of", handler)
    what = f"payload of {getattr(handler, '__name__', 'a handler')}"
    try:
        signature, called = inspect.signature(handler), inspect.signature(handler, follow_wrapped=False)
    except ValueError:  # many builtins have none
        return codec_for(Any, what)
    fn: Any = handler.func if isinstance(handler, partial) else handler
    fn = fn if inspect.isroutine(fn) else type(fn).__call__
    try:
        called.bind(None)
        if not _takes_one(signature):  # a decorator supplies the rest of what it wraps
            signature = called
        annotation = get_type_hints(fn, include_extras=True).get(next(iter(signature.parameters)), Any)
    except (TypeError, NameError) as error:
        raise InvalidArgument(
            f"the handler of {message} takes no payload ({error}): give it one parameter, whose type is imported where "
            "it runs and not under TYPE_CHECKING alone",
            field="handler",
        ) from None
    return codec_for(annotation, what)


def _error_of(message: str, raised: BaseException) -> Exception:
    """What a handler or a validator has raised, as the error that tells it."""
    if isinstance(raised, Exception):
        return raised
    return InvalidArgument(f"the handler of {message} raised {raised!r:.200}: {_HANDLERS}")


def _takes_one(signature: inspect.Signature) -> bool:
    with suppress(TypeError):
        signature.bind(None)
        return True
    return False


def _value(payload: Payload, name: str) -> Any:
    return decode_any(payload, f"payload of {name}")


def _settle(future: FlowFuture[Any], result: Result, name: str) -> None:
    if result.failure is not None:
        future.set_exception(result.failure.error())
    else:
        future.set_result(None if result.value is None else decode_any(result.value, f"value of promise {name}"))
