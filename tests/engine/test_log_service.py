"""What the engine offers besides its core: rules of books, their lists, and positions that cannot be."""

from __future__ import annotations

import pytest

from boki.engine.server.log_service import LogService
from boki.errors import InvalidArgument
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import make_position
from boki.log.operations import Append, BookInfo, Books, Done, ListBooks, SetRetention, TrimBook
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


def _books(loop: LoopThread, service: LogService) -> tuple[BookInfo, ...]:
    answer = loop.run(service.request(ListBooks(), {}, 5))
    assert isinstance(answer, Books)
    return answer.books
