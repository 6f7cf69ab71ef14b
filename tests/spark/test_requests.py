"""Requests to a gateway that is away, silent, slow or none at all: each ends by a deadline, and says what to do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

import boki.spark.gateway
from boki.errors import (
    BokiError,
    ConnectionLost,
    CorruptData,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    Unauthorized,
    Unavailable,
)
from boki.log.operations import Append, BookInfo, Books, Found, ListBooks, Operation, Read
from boki.retry import Backoff
from boki.spark.gateway import Gateway, has_answered
from boki.spark.options import read_options
from boki.spark.ranges import Segment, Task
from boki.spark.reading import read_task
from boki.spark.schemas import Layout

URL = "http://127.0.0.1:1"


@contextmanager
def listening(serve: Callable[[socket.socket], Any]) -> Iterator[str]:
    """The URL of something that takes one connection after the other and does as it is told."""
    ends = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            while not ends.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ends.set()
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


class Answers:
    """A port that gives these answers, one after the other, and then the last one forever."""

    url = URL

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[Operation] = []

    def request(self, operation: Operation, _positions: Any, _timeout_s: float) -> Any:
        self.asked.append(operation)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BokiError):
            raise answer
        return answer


def gateway(port: Answers, *, is_known: bool) -> Gateway:
    found = Gateway(URL, "", is_known=is_known)
    found._port = port  # type: ignore[assignment]
    return found


def test_the_first_answer_is_waited_for_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that trickles bytes keeps every timeout of a socket, and is given up all the same."""
    assert boki.spark.gateway._FIRST_S < boki.spark.gateway._TOLD_S < 10
    monkeypatch.setattr("boki.spark.gateway._TOLD_S", 0.3)
    ends = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not ends.wait(0.05):
            connection.sendall(b"X: y\r\n")

    with listening(trickle) as url:
        began = monotonic()
        with pytest.raises(Unavailable, match="takes connections and answers nothing"):
            Gateway(url, "").some_books("", 1)
        assert monotonic() - began < 20
        ends.set()


def test_what_ends_every_connection_is_told_at_once() -> None:
    """Another program, which does not speak HTTP: it is no gateway that is away for a moment."""
    with listening(lambda connection: connection.sendall(b"220 hello\r\n")) as url:
        began = monotonic()
        with pytest.raises(Unavailable, match="is it a gateway"):
            Gateway(url, "").some_books("", 1)
        assert monotonic() - began < 20


def test_a_task_whose_process_never_reached_the_gateway_is_told_soon() -> None:
    """The driver reaches it, an executor elsewhere does not: by the same words, and not after a minute."""
    options = read_options({"book": "a", "gateway": URL}, is_stream=False)
    assert not has_answered(URL)
    task = Task((Segment("a", 0, 10, 0),), {})
    began = monotonic()
    with pytest.raises(Unavailable, match=f"nothing answers at {URL}"):
        list(read_task(task, options, Layout(("seqnum",), (), None, None, has_error=False)))
    assert monotonic() - began < 20


def test_what_passes_is_waited_for_and_no_longer_than_the_retry_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that has answered before may restart; if it stays away, its own error is raised."""
    monkeypatch.setattr("boki.spark.gateway._BACKOFF", Backoff(first_s=0.001, longest_s=0.002, jitter=0.0))
    passing = [Unavailable("away"), ConnectionLost("broke"), DeadlineExceeded("late"), Overloaded("busy")]
    port = Answers(*passing, Books(()))
    assert gateway(port, is_known=True).some_books("", 1) == []
    assert len(port.asked) == 5
    monkeypatch.setattr("boki.spark.gateway._RETRY_S", 0.02)
    for error in passing:
        with pytest.raises(type(error), match=error.message):
            gateway(Answers(error), is_known=True).some_books("", 1)


def test_what_does_not_pass_is_raised_at_once() -> None:
    """A bad request, a wrong token; and an append whose answer was lost is not made twice."""
    for error in (InvalidArgument("bad"), Unauthorized("who?")):
        port = Answers(error)
        with pytest.raises(type(error)):
            gateway(port, is_known=True).some_books("", 1)
        assert len(port.asked) == 1
    for is_known in (True, False):
        port = Answers(ConnectionLost("broke"))
        with pytest.raises(BokiError) as caught:
            gateway(port, is_known=is_known).append(Append("a", b""))
        assert caught.value.outcome == "unknown"
        assert len(port.asked) == 1


def test_pages_that_do_not_go_on_end_the_reading() -> None:
    """A gateway that says there is more, and gives the same page again, is not asked without limit."""
    stuck = gateway(Answers(Found((), 5, is_end=False)), is_known=True)
    with pytest.raises(CorruptData, match="goes on at 5"):
        stuck.find(Read("a", start=5))
    with pytest.raises(CorruptData, match="goes on at 5"):
        stuck.count("a", None, 5, 10, 10)
    page = Books(tuple(BookInfo(f"b{number:04}", 1, 1, 1, 1, 1) for number in range(1000)))
    port = Answers(page)
    with pytest.raises(CorruptData, match="the books after 'b0999' begin with 'b0000'"):
        gateway(port, is_known=True).books("")
    assert [operation for operation in port.asked if isinstance(operation, ListBooks)] == [
        ListBooks("", "", 1000),
        ListBooks("", "b0999", 1000),
    ]
