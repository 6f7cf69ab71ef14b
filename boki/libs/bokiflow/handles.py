"""`Handle`: a workflow by its id, from functions: its state and result, and what may be said to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, Literal, TypeVar
from uuid import uuid4

import msgspec

from boki import (
    BokiError,
    ConditionFailed,
    DeadlineExceeded,
    Expect,
    InvalidArgument,
    KeyReused,
    LogBook,
    NoSuchInvocation,
    Trimmed,
    WrongState,
)
from boki.extending import (
    ANY_VERSION,
    ATTENDS,
    OVER,
    PINNED,
    REPLAYED,
    Attribute,
    Failure,
    InvocationState,
    Payload,
    decode_any,
    encode_any,
    invocation_id_of,
    uncertain,
    version_of,
)
from boki.libs.bokiflow.answering import trimmed_answer
from boki.libs.bokiflow.beginning import Beginning, Calls, QueryRequest, ended_attendant
from boki.libs.bokiflow.closing import CLOSER
from boki.libs.bokiflow.gates.marks import LIMIT
from boki.libs.bokiflow.history import life_of
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
    inbox_tag,
    never,
    note_of,
    updates_tag,
)
from boki.libs.bokiflow.refusals import Diverged, NoSuchWorkflow, WorkflowEnded, no_such_workflow
from boki.libs.bokiflow.replaying import Runnable, ask_query
from boki.libs.bokiflow.rewinding import fork, rewind
from boki.libs.bokiflow.stepping import refuse_in_body
from boki.libs.bokiflow.upgrading import Upgrade, upgrade
from boki.libs.bokiflow.work import CHILD, JOINS
from boki.libs.fold.arguments import check_key

R = TypeVar("R")

WorkflowStatus = Literal["accepted", "running", "retrying", "suspended", "paused", "done", "failed", "cancelled"]
MAX_ID_CHARS: Final = 200
_PAGE: Final = 100
_LONGEST_WAIT_S: Final = 10 * 365 * 24 * 3_600.0


class WorkflowState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a workflow. Times are the log's, in microseconds since the epoch; 0: not yet."""

    id: str
    workflow: str
    invocation_id: str
    book: str
    status: WorkflowStatus
    accepted_us: int
    finished_us: int
    wakes_us: int
    """When it continues by itself, if it is suspended until a time."""
    note: str
    """Why it is paused."""
    failure: Failure | None
    attributes: dict[str, Attribute] = {}
    """What it was started with to be found by. "boki:schedule" names the schedule that has started it."""
    version: int = 0
    """The deployed version that it is pinned to; 0: it runs with the code that is there."""


class Handle(Generic[R]):
    """A workflow by its id. It may have ended, or not have been started yet: then it has only its inbox."""

    def __init__(
        self,
        name: str,
        flow_id: str,
        invocation_id: str,
        calls: Calls,
        logbook: LogBook,
        decode: Callable[[Payload], R],
        code: Runnable | None = None,
    ) -> None:
        """See `Workflow.start` and `Workflow.handle`.

        `name` is the workflow's, `decode` reads what it returned. `code` is the workflow itself, where this process has
        it.
        """
        self.workflow = name
        """The name of the workflow."""
        self._calls = calls
        self._decode = decode
        self._code = code
        self.id = flow_id
        """The id that it was given when it was started."""
        self.invocation_id = invocation_id
        """The id of its logged call."""
        self._logbook = logbook
        self.book = logbook.name
        self._result: Payload | None = None
        """What the start was answered with, until it is asked for."""

    def __repr__(self) -> str:
        return f"<{self.workflow} {self.id!r}>"

    # reading

    def know(self, result: Payload | None) -> None:
        """The start was answered with this result, for the next one who asks for it; None: with none."""
        self._result = result

    async def status(self) -> WorkflowState:
        """What is known of it. `NoSuchInvocation` if it was never started, or ended longer ago than calls are kept."""
        return state_of(self.id, await self._state())

    async def result(self, *, wait_s: float | None = None) -> R:
        """What it returned, once it has ended; raises what it ended with. The handle of a start that was answered with
        a result gives that first.

        `DeadlineExceeded` after `wait_s`, or at the deadline of the calling function: the workflow continues.
        """
        result, self._result = self._result, None
        if result is not None:
            return self._decode(result)
        state = await self._state(_LONGEST_WAIT_S if wait_s is None else wait_s)
        if state.state not in OVER:
            raise DeadlineExceeded(
                f"{self!r} has not ended (it is {state_of(self.id, state).status}): wait longer, or ask again",
                outcome="not_applied",
            )
        if state.failure is not None:
            raise state.failure.error()
        assert state.result is not None, "it has ended without a failure"
        return self._decode(state.result)

    # saying something to it

    async def signal(self, name: str, payload: Any = None, *, key: str | None = None) -> None:
        """Send a message without an answer. It is kept until the workflow takes it, also if that is yet to be started.

        `key`: the same key within 24 hours sends nothing again. `WorkflowEnded` if it has ended, unless the key was
        used before: that message may be what has ended it.
        """
        note = Signalled(check_key(name, "name"), encode_any(payload, f"payload of signal {name}"))
        logged = None if key is None else f"signal:{key}"
        try:
            with suppress(NoSuchWorkflow):
                await self._check_running()
        except WorkflowEnded:
            if logged is None or not await self._was_sent(note, logged):
                raise
        else:
            await self._send(note, logged)

    async def update(
        self,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - as everywhere
        wait_s: float | None = None,
    ) -> Any:
        """Send a message and wait for its answer; raises what the handler, or its validator, raised.

        `id`: the same id within 24 hours sends nothing again, and gives the same answer, also if the workflow has
        continued as new since; `KeyReused` if it was another update. `Trimmed` if that answer is not kept any more.
        `DeadlineExceeded` if the answer has not come after `wait_s`, or at the deadline of the calling function: the
        update was sent, and its id is in the error.
        """
        if id is None:
            with suppress(NoSuchWorkflow):
                await self._check_running()
        update_id = check_key(id, "id") if id is not None else uuid4().hex
        note = Updated(check_key(name, "name"), encode_any(payload, f"payload of update {name}"), update_id)
        seqnum = await self._send(note, f"update:{update_id}", updates_tag(self.invocation_id))
        try:
            async with asyncio.timeout(wait_s):
                answer = await self._answer(note, seqnum, is_repeated=id is not None)
        except (WorkflowEnded, KeyReused, Trimmed):
            raise
        except (BokiError, TimeoutError) as error:  # it is about the wait: the update is in the log
            why = f" ({error})" if isinstance(error, BokiError) else ""
            said = f"update {name} was sent to {self!r}, and its answer has not come{why}: it may be busy, or have no "
            remedy = (
                f"handler of that name yet (flow.on_update); ask for the answer by the same update under the key "
                f"{update_id!r}, which sends nothing again"
            )
            raise DeadlineExceeded(said + remedy, outcome="unknown", update=update_id) from None
        return _value(answer)

    async def query(self, name: str, payload: Any = None) -> Any:
        """What its handler of that query says now, by a replay that the workflow does not notice: in this process, or
        with the version that the workflow is pinned to.

        Also of one that has ended. `InvalidArgument` if it has no such query, `DeadlineExceeded` if that version does
        not answer within a minute.
        """
        if self._code is None:
            raise InvalidArgument(f"the code of {self.workflow} is not in this process: query it from a function")
        pinned = None
        with suppress(NoSuchWorkflow):  # its history may be kept for longer
            pinned = await self._state()
        if pinned is None or not version_of(pinned.attributes):
            return await ask_query(self._logbook, self._code, self.invocation_id, self.id, name, payload)
        return await self._query_there(pinned, name, encode_any(payload, "payload of a query"))

    async def _query_there(self, pinned: InvocationState, name: str, payload: Payload) -> Any:
        call = uuid4().hex
        asked = Payload("bytes", msgspec.msgpack.encode(QueryRequest(pinned.id, self.id, name, payload)))
        attributes: dict[str, Attribute] = {ATTENDS: "query", PINNED: version_of(pinned.attributes)}
        beginning = Beginning(pinned.function, pinned.book, call, call, self.id, attributes, asked)
        result = await ended_attendant(self._calls, beginning, f"query {name} of {self!r} was not answered")
        return None if result is None else decode_any(result, f"answer of query {name}")

    async def resolve(self, promise: str, value: Any = None) -> None:
        """Give the promise of that name its value. The first value or error counts, and again does nothing, unless the
        workflow has continued as new: the promise of that name is another one then.

        `WorkflowEnded` if it has ended, and no workflow of this id was given the promise before.
        """
        await self._settle(promise, Result(encode_any(value, f"value of promise {promise}")))

    async def reject(self, promise: str, error: BokiError) -> None:
        """Have the promise of that name raise this error. As `resolve`."""
        await self._settle(promise, Result(None, Failure.of(error)))

    async def cancel(self, reason: str = "") -> None:
        """Ask it to end: its body is cancelled as a task is, and undoes what it has done. Again: nothing more happens.

        `WorkflowEnded` if it has ended.
        """
        life = await self._check_running()
        await self._send(CancelRequested(reason, life), None)

    async def kill(self) -> None:
        """End it as it is: nothing is undone. Its children are treated as their `parent_close` says, soon after.

        Again: nothing more happens. `WorkflowEnded` if it has ended before.
        """
        while True:
            state = await self._state()
            try:
                if state.state not in OVER:
                    await self._calls.begin(closer_of(state))
                await self._calls.cancel(self.invocation_id, state.life_us)
            except WrongState as error:
                if error.details.get("state") == "changed":
                    continue  # it was started again since: the children of that life need a closer, too
                raise WorkflowEnded(f"{self!r} has ended: it cannot be killed", **error.details) from None
            except NoSuchInvocation:
                raise no_such_workflow(self.workflow, self.id, self.book) from None
            return

    async def pause(self, reason: str = "") -> None:
        """Let the steps that run come to their end, and begin nothing more until `resume`. Messages are kept."""
        life = await self._check_running()
        await self._send(Paused(reason, life), None)

    async def resume(self) -> None:
        """Continue after `pause`, or after the code was corrected that had diverged."""
        life = await self._check_running()
        await self._send(Resumed(life), None)

    # going back

    async def rewind(self, step: int | None = None) -> int:
        """Have it continue in front of that step: what it did from there on is forgotten, and done again.

        It must have ended, or be paused. `step` is a number as `boki flow show` prints it; None is the last step that
        failed, else nothing is forgotten and only the end is. The number is returned. Effects are not undone, and steps
        that are done again have new keys. Messages that it was given later are given again.

        `WrongState` if it runs, or a child runs that it would start again; `InvalidArgument` for a step that it has
        not, or beside which others ran that ended after it.
        """
        self._result = None
        state = await self._state()
        is_paused = state_of(self.id, state).status == "paused"
        return await rewind(self._calls, self._logbook, state, step, is_paused=is_paused)

    async def fork(self, step: int | None = None, *, id: str | None = None) -> Handle[R]:  # noqa: A002
        """Begin a workflow of another id with the history of this one in front of that step, messages included.

        `step` is as for `rewind`. This one may run, and continues as it is. `AlreadyExists` if the id is in use.
        """
        new_id = uuid4().hex if id is None else check_key(id, "id", MAX_ID_CHARS)
        state = await self._state()
        await fork(self._calls, self._logbook, state, step, new_id, is_named=id is not None)
        run = invocation_id_of(state.function, state.book, new_id)
        return Handle(self.workflow, new_id, run, self._calls, self._logbook, self._decode, self._code)

    async def upgrade(self, version: int | None = None, *, dry_run: bool = False) -> Upgrade:
        """Have it continue with that deployed version of the code, or the one that runs now, if what is recorded of it
        does not diverge under that. `dry_run`: only tell whether it does not.

        `Diverged`, with both sides named, and it stays where it is. `WrongState` if it ran all the time, or has ended.
        """
        found = await upgrade(self._calls, await self._state(), version, is_dry=dry_run)
        if found.diverges:
            stays = f"stays with version {found.before}: with {found.version}" if found.version else "would be paused"
            raise Diverged(f"{self!r} {stays}, {found.diverges}")
        if found.is_busy:
            raise WrongState(f"{self!r} runs all the time: pause it, move it, and resume it", state="running")
        return found

    # in between

    async def _settle(self, promise: str, result: Result) -> None:
        check_key(promise, "promise")
        try:
            await self._check_running()
        except NoSuchWorkflow:
            pass
        except WorkflowEnded as error:
            await self._logbook.sync()  # that it has ended is known by another book
            is_settled, is_whole = await self._look_for(promise)
            if is_settled:  # which may be what has ended it
                return
            raise error if is_whole else uncertain(error) from None
        await self._send(Resolved(promise, result), None)

    async def _look_for(self, promise: str) -> tuple[bool, bool]:
        """Whether the promise was given a value or an error, and whether all of the inbox is there to tell."""
        start, is_end, is_whole = 0, False, True
        while not is_end:
            page = await self._logbook.read(inbox_tag(self.invocation_id), start=start, limit=_PAGE)
            notes = (note_of(record.data) for record in page.records)
            if any(isinstance(note, Resolved) and note.name == promise for note in notes):
                return True, True
            start, is_end, is_whole = page.next_start, page.is_end, is_whole and not page.first_seqnum
        return False, is_whole

    async def _send(self, note: Note, key: str | None, *tags: str, when: tuple[Expect, ...] = ()) -> int:
        refuse_in_body("a method of a handle")
        logged = None if key is None else f"flow:{self.invocation_id}:{key}"
        tags = (inbox_tag(self.invocation_id), *tags)
        return await self._logbook.append(encode_note(note), tags, when=when, key=logged)

    async def _was_sent(self, note: Note, key: str) -> bool:
        """Whether a message was sent under that key. This one is not sent."""
        try:
            await self._send(note, key, when=(never(inbox_tag(self.invocation_id)),))
        except ConditionFailed:
            return False
        return True

    async def _answer(self, update: Updated, seqnum: int, *, is_repeated: bool) -> Result:
        """Wait for the answer, or for the end of the workflow. `is_repeated`: the update may have been sent before.

        `KeyReused` if the record at `seqnum` is another update, which was sent under the same id.
        """
        tag = inbox_tag(self.invocation_id)
        start, wait_s = (seqnum, 0.0) if is_repeated else (seqnum + 1, _ANSWER_S)
        ended: InvocationState | None = None
        while True:
            page = await self._logbook.read(tag, start=start, limit=_PAGE, wait_s=wait_s)
            is_missing = start == seqnum and not (page.records and page.records[0].seqnum == seqnum)
            for record in page.records:
                note = note_of(record.data)
                if isinstance(note, Answered) and note.id == update.id:
                    return note.result
                if isinstance(note, Updated) and note.id == update.id and note != update:
                    raise self._reused(note)
            if is_missing or page.first_seqnum > start:  # the workflow has continued as new since
                found = await self._trimmed_answer(update, seqnum)
                if found is not None:
                    return found
            if not page.records and ended is not None:
                self._check_answers(ended)
            elif not page.records:
                state = await self._state()
                if state.state in OVER:  # maybe its answer came after the read, and the end behind that
                    await self._logbook.sync()
                    ended = state
            start, wait_s = page.next_start, _ANSWER_S if ended is None else 0.0

    async def _trimmed_answer(self, update: Updated, seqnum: int) -> Result | None:
        try:
            found = await trimmed_answer(self._logbook, self.invocation_id, update, seqnum)
        except Trimmed:
            self._check_answers(await self._state())  # after the end all of it is trimmed
            raise
        if isinstance(found, Updated):
            raise self._reused(found)
        return found

    def _reused(self, first: Updated) -> KeyReused:
        said = f"the id {first.id!r} was used for another update of {self!r} ({first.name}): use a new one"
        return KeyReused(said, field="id", update=first.id)

    def _check_answers(self, state: InvocationState) -> None:
        if state.state in OVER:
            said = f"{self!r} has ended ({state.state}): the update was sent, and it did not answer"
            raise WorkflowEnded(said, outcome="unknown", state=state.state)

    async def _check_running(self) -> int:
        """Raise if it has ended. Which life of it runs; 0: the engine does not tell."""
        state = await self._state()
        if state.state in OVER:
            raise WorkflowEnded(f"{self!r} has ended ({state.state}): nothing was sent", state=state.state)
        return life_of(state.start) if state.start else 0

    async def _state(self, wait_s: float = 0.0) -> InvocationState:
        refuse_in_body("a method of a handle")
        try:
            return await self._calls.state(self.invocation_id, wait_s)
        except NoSuchInvocation:
            raise no_such_workflow(self.workflow, self.id, self.book) from None


def closer_of(state: InvocationState) -> Beginning:
    """The call that closes the children of a workflow which is to be killed: see `boki.libs.bokiflow.closing`."""
    closer = invocation_id_of("close", state.id, str(state.life_us))
    attributes: dict[str, Attribute] = {ATTENDS: CLOSER, ANY_VERSION: True}
    run = Payload("text", f"{state.id} {state.life_us}".encode())
    return Beginning(state.function, state.book, closer, "close", "", attributes, run, if_running="use", if_ended="use")


_ANSWER_S: Final = 5.0
"""How often an update that is not answered checks whether its workflow still runs."""


def _value(result: Result) -> Any:
    if result.failure is not None:
        raise result.failure.error()
    return None if result.value is None else decode_any(result.value, "answer")


_INTERNAL: Final = frozenset((ATTENDS, CHILD, JOINS, LIMIT, PINNED, REPLAYED))
"""Attributes that are of no use to people."""


def state_of(flow_id: str, call: InvocationState) -> WorkflowState:
    """What the state of its logged call says of a workflow."""
    note = call.suspension.note if call.suspension is not None else ""
    status: WorkflowStatus = call.state
    if call.state == "suspended" and note.startswith("paused"):
        status = "paused"
    elif call.failure is not None and call.failure.message.startswith(f"{call.function}: WorkflowCancelled:"):
        status = "cancelled"
    return WorkflowState(
        id=flow_id,
        workflow=call.function,
        invocation_id=call.id,
        book=call.book,
        status=status,
        accepted_us=call.accepted_us,
        finished_us=call.finished_us,
        wakes_us=call.suspension.wake_us if call.suspension is not None else 0,
        note=note,
        failure=call.failure,
        attributes={name: value for name, value in call.attributes.items() if name not in _INTERNAL},
        version=version_of(call.attributes),
    )
