"""What the engine offers besides its core: rules of books, their lists, and positions that cannot be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from boki.engine.server.log_service import LogService
from boki.engine.server.port import Finish
from boki.errors import BokiError, DiskFull, InvalidArgument
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import Positions, make_position
from boki.log.operations import (
    Append,
    BookInfo,
    Books,
    Done,
    Failure,
    ListBooks,
    Operation,
    SetRetention,
    TrimBook,
)
from tests.contract.live import LoopThread, local_log
from tests.members import chunk_of

pytestmark = pytest.mark.xdist_group("log-service")


def test_a_position_that_no_answer_ever_carried_is_refused_at_once() -> None:
    """A forged position would hold a slot until its deadline; nobody can have seen it, so nobody waits for it."""
    with local_log() as (loop, service):
        seen: dict[int, int] = {}
        loop.run(service.request(Append("book", chunk_of("book", b"x")), seen, 5))
        service.check_positions(seen)
        for forged in ({0: seen[0] + 1}, {0: make_position(9, 0)}, {7: make_position(1, 0)}):
            with pytest.raises(InvalidArgument, match="Boki-Position"):
                service.check_positions(forged)


def test_retention_trims_by_size_and_is_forgotten_with_the_book() -> None:
    """A rule is applied when its time comes; a deleted book takes it along; the runtime's own books are not listed."""
    with local_log() as (loop, service):
        for n in range(5):
            loop.run(service.request(Append("book", chunk_of("book", b"%d" % n * 100)), {}, 5))
        assert isinstance(loop.run(service.request(SetRetention("book", size_bytes=150), {}, 5)), Done)
        loop.run(service.retention.apply())
        (info,) = _books(loop, service)
        assert (info.name, info.retention_size_bytes) == ("book", 150)
        assert info.size_bytes <= 200
        loop.run(service.request(TrimBook("book", MAX_SEQNUM, everything=True), {}, 5))
        assert _books(loop, service) == ()
        loop.run(service.request(Append("book", chunk_of("book", b"new")), {}, 5))
        assert _books(loop, service)[0].retention_size_bytes is None


DELETE = TrimBook("book", MAX_SEQNUM, everything=True)


@pytest.mark.parametrize(("refused", "outcome", "kept"), [(Append, "not_applied", 150), (TrimBook, "unknown", None)])
def test_a_delete_that_is_refused_never_leaves_the_rule_alone(
    refused: type[Operation], outcome: str, kept: int | None
) -> None:
    """The rule goes first. From then on no refusal is certain: a change has been made."""

    async def refuse(operation: Operation) -> None:
        if type(operation) is refused:
            raise DiskFull("refused")

    with _with_rule(refuse) as (loop, service):
        with pytest.raises(DiskFull) as caught:
            loop.run(service.request(DELETE, {}, 5))
        assert caught.value.outcome == outcome
        (info,) = _books(loop, service)
        assert (info.record_count, info.retention_size_bytes) == (1, kept)


def test_a_rule_that_is_set_during_a_delete_stays() -> None:
    """It is for the book that follows."""

    async def set_another(operation: Operation) -> None:
        if isinstance(operation, TrimBook):
            await service.request(SetRetention("book", size_bytes=700), {}, 5)

    with _with_rule(set_another) as (loop, service):
        loop.run(service.request(DELETE, {}, 5))
        loop.run(service.request(Append("book", chunk_of("book", b"new")), {}, 5))
        assert _books(loop, service)[0].retention_size_bytes == 700


@contextmanager
def _with_rule(before: Callable[[Operation], Awaitable[None]]) -> Iterator[tuple[LoopThread, LogService]]:
    """A log with a book that has a record and a rule; from then on each operation waits for `before`."""
    with local_log() as (loop, service):
        loop.run(service.request(Append("book", chunk_of("book", b"x")), {}, 5))
        loop.run(service.request(SetRetention("book", size_bytes=150), {}, 5))
        submit = service._port.submit

        async def submit_later(operation: Operation, positions: Positions, timeout_us: int, finish: Finish) -> None:
            try:
                await before(operation)
            except BokiError as error:
                finish(Failure.of(error), {})
            else:
                submit(operation, positions, timeout_us, finish)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service._port, "submit", lambda *asked: service._spawn(submit_later(*asked)))
            yield loop, service


def _books(loop: LoopThread, service: LogService) -> tuple[BookInfo, ...]:
    answer = loop.run(service.request(ListBooks(), {}, 5))
    assert isinstance(answer, Books)
    return answer.books
