"""An engine process without the index: whatever it is asked is carried out once by an engine that has it, or told."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from boki.engine.core import EngineCore
from boki.engine.relay import RelayCore
from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, Overloaded, Unavailable
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM, NodeId
from boki.log.operations import Append, Appended, Done, Failure, Get, ListBooks, Operation, Read, Sync, TrimBook
from boki.protocol.call_messages import LogReply, LogRequest
from boki.protocol.effects import Answer, Effect, EngineNews, Send
from boki.protocol.messages import Ping, Pong, StoreBatch
from tests.engine.cluster import SECOND, Cluster, records_of

RELAY = NodeId("engine-9")


class Serving(EngineCore):
    """An engine with the little of its shell that answers relays."""

    HEARS = EngineCore.HEARS | {LogRequest}

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        if isinstance(message, LogRequest):
            until_us = now_us + message.timeout_us
            token = (sender, message.request)
            return self._reply(self.submit(message.operation, message.positions, until_us, token, now_us))
        return self._reply(super().receive(sender, message, now_us))

    def settle(self, now_us: int) -> Iterable[Effect]:
        return self._reply(super().settle(now_us))

    def tick(self, now_us: int) -> Iterable[Effect]:
        return self._reply(super().tick(now_us))

    def _reply(self, effects: Iterable[Effect]) -> Iterable[Effect]:
        for effect in effects:
            if isinstance(effect, Answer) and isinstance(effect.token, tuple):
                answer = effect.answer
                told = Failure.of(answer) if isinstance(answer, BokiError) else answer
                yield Send(effect.token[0], LogReply(effect.token[1], effect.positions, told))
            else:
                yield effect


class Relayed(Cluster):
    """Two engines with the index, and a relay beside them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(is_registered=True, engines=2, **settings)
        self.incarnations[RELAY] = 99
        self.relay = RelayCore(RELAY, 99, buffer_bytes=1 << 20)
        self.add(RELAY, self.relay)
        self.register()
        self.until_ready("engine-1", "engine-2")
        self.tick()

    def start_engine(self, node: str = "engine-1") -> None:
        self.lives += 1
        self.incarnations[node] = self.lives
        self.news.discard((NodeId(node), EngineNews.READY))
        self.add(node, Serving(NodeId(node), self.lives, self.disk(node), self.config))
        self._introduce(node)

    def ask(self, operation: Operation, positions: dict[int, int] | None = None, timeout_s: float = 30) -> int:
        self.requests += 1
        until_us = self.now_us + int(timeout_s * SECOND)
        self.perform(RELAY, self.relay.submit(operation, positions or {}, until_us, self.requests, self.now_us))
        self.run()
        return self.requests

    def relayed(self, operation: Operation, **options: Any) -> Any:
        return self.told(self.wait_for(self.ask(operation, **options)))

    def wait_for(self, request: int, ticks: int = 200) -> int:
        for _ in range(ticks):
            if request in self.answers:
                break
            self.tick()
        return request

    def told(self, request: int) -> Any:
        answered: Answer = self.answers[request]
        answer: Any = answered.answer
        if isinstance(answer, Failure):
            raise answer.error()
        if isinstance(answer, BokiError):
            raise answer
        return answer

    @property
    def serving(self) -> str:
        """Who was asked last."""
        return next(to for _, to, message in reversed(self.sent) if isinstance(message, LogRequest))


def append_of(text: str, key: str | None = None) -> Append:
    return Append("book", encode_chunk("book", [Group([(text.encode(), ("tag",))], (), key)]))


@pytest.fixture
def cluster() -> Relayed:
    return Relayed()


def test_every_operation_is_carried_out_elsewhere(cluster: Relayed) -> None:
    """With the positions of its caller there, and what it has seen then back."""
    assert (RELAY, EngineNews.READY) in cluster.news
    request = cluster.ask(append_of("a"))
    seqnum = cluster.told(cluster.wait_for(request)).first_seqnum
    positions = cluster.answers[request].positions
    assert positions
    page = cluster.relayed(Read("book", "tag"), positions=positions)
    assert [record.data for record in records_of(page)] == [b"a"]
    assert isinstance(cluster.relayed(Sync("book")), Done)
    assert [info.name for info in cluster.relayed(ListBooks(), positions=positions).books] == ["book"]
    cluster.relayed(TrimBook("book", seqnum + 1))
    with pytest.raises(BokiError, match="trimmed"):
        cluster.relayed(Get("book", seqnum))


def test_an_append_whose_engine_is_lost_is_unknown(cluster: Relayed) -> None:
    """It may have been carried out: the relay does not do it again."""
    cluster.loses = lambda _sender, _to, message: isinstance(message, StoreBatch)
    request = cluster.ask(append_of("a"))
    cluster.lose(cluster.serving)
    with pytest.raises(ConnectionLost) as caught:
        cluster.told(request)
    assert caught.value.outcome == "unknown"


def test_what_may_be_done_twice_is_asked_of_another_engine(cluster: Relayed) -> None:
    """Reads, and appends under a key: the loss of an engine does not show."""
    cluster.relayed(append_of("first"))
    cluster.loses = lambda _sender, _to, message: isinstance(message, StoreBatch | LogReply)
    keyed = cluster.ask(append_of("once", key="k"))
    read = cluster.ask(Read("book", "tag"))
    asked = cluster.serving
    cluster.loses = lambda *_: False
    cluster.lose(asked)
    assert isinstance(cluster.told(cluster.wait_for(keyed)), Appended)
    assert [record.data for record in records_of(cluster.told(cluster.wait_for(read)))] == [b"first"]
    assert cluster.serving != asked
    again = cluster.relayed(append_of("once", key="k"))
    assert again.rejected[0].seqnums == (cluster.answers[keyed].answer.first_seqnum,)


def test_an_engine_that_lost_its_index_slot_is_not_waited_for(cluster: Relayed) -> None:
    """It stalls and is registered (found.md part 3, 2): its relays ask the next one at once, and say of what may
    not be done twice that its outcome is unknown."""
    cluster.relayed(append_of("first"))
    cluster.loses = lambda _sender, _to, message: isinstance(message, StoreBatch | LogReply)
    read, plain = cluster.ask(Read("book", "tag")), cluster.ask(append_of("once"))
    still = cluster.serving
    cluster.loses = lambda sender, to, _message: still in (sender, to)
    cluster.without_slot.add(NodeId(still))
    cluster.register()
    cluster.run()
    assert [record.data for record in records_of(cluster.told(read))] == [b"first"]
    with pytest.raises(ConnectionLost, match="or has lost the index") as caught:
        cluster.told(plain)
    assert caught.value.outcome == "unknown"


def test_a_trim_is_asked_for_once(cluster: Relayed) -> None:
    """Carried out by two engines, one after the other, it would take what was appended in between (seed 824)."""
    cluster.loses = lambda _sender, _to, message: isinstance(message, LogReply)
    request = cluster.ask(TrimBook("book", MAX_SEQNUM))
    cluster.tick(60)
    assert len([message for message in cluster.messages(LogRequest) if isinstance(message.operation, TrimBook)]) == 1
    cluster.lose(cluster.serving)
    with pytest.raises(ConnectionLost) as caught:
        cluster.wait(request)
    assert caught.value.outcome == "unknown"


def test_a_trim_that_nobody_answered_is_unknown(cluster: Relayed) -> None:
    """It may be carried out still."""
    cluster.loses = lambda _sender, _to, message: isinstance(message, LogReply)
    request = cluster.ask(TrimBook("book", 1), timeout_s=1)
    cluster.tick(30)
    with pytest.raises(DeadlineExceeded) as caught:
        cluster.answer(request)
    assert caught.value.outcome == "unknown"


def test_a_certain_refusal_is_asked_of_another_engine(cluster: Relayed) -> None:
    """One that shuts down takes no appends: another one does, within the deadline."""
    cluster.relayed(append_of("a"))
    asked = cluster.serving
    cluster.core_of(asked).close()
    assert isinstance(cluster.relayed(append_of("b")), Appended)
    assert cluster.serving != asked


def test_lost_messages_delay_what_may_be_done_twice_and_no_more(cluster: Relayed) -> None:
    """A read whose request was lost is asked again; an append ends as unknown at its deadline."""
    cluster.relayed(append_of("a"))
    cluster.loses = lambda _sender, _to, message: isinstance(message, LogRequest)
    read = cluster.ask(Read("book", "tag"))
    append = cluster.ask(append_of("lost"), timeout_s=3)
    cluster.loses = lambda *_: False
    assert records_of(cluster.told(cluster.wait_for(read)))
    with pytest.raises(DeadlineExceeded) as caught:
        cluster.told(cluster.wait_for(append))
    assert caught.value.outcome == "unknown"
    assert cluster.texts() == ["a"]


def test_without_any_engine_operations_wait_and_then_end(cluster: Relayed) -> None:
    """For certain: nobody was asked. And no more than a budget of them waits."""
    cluster.lose("engine-1", "engine-2")
    assert not cluster.relay.is_ready
    short = cluster.ask(append_of("never"), timeout_s=1)
    long = cluster.ask(append_of("later"))
    many = [cluster.ask(append_of("x" * 50_000), timeout_s=1) for _ in range(30)]
    with pytest.raises(Overloaded):
        cluster.told(many[-1])
    with pytest.raises(Unavailable) as caught:
        cluster.told(cluster.wait_for(short))
    assert caught.value.outcome == "not_applied"
    cluster.start_engine("engine-1")
    assert isinstance(cluster.told(cluster.wait_for(long)), Appended)
    assert cluster.texts() == ["later"]


def test_a_relay_answers_pings(cluster: Relayed) -> None:
    """As every core does."""
    cluster.tell(RELAY, Ping(3), "controller-1")
    cluster.run()
    assert cluster.messages(Pong)[-1].incarnation == 99


@pytest.mark.parametrize("seed", range(8))
def test_nothing_relayed_is_doubled(seed: int) -> None:
    """Messages are lost, engines die and come back, terms end: what was acknowledged is there once."""
    cluster = Relayed(logs=2)
    dice = Random(seed)
    requests: dict[str, int] = {}
    for number in range(40):
        cluster.loses = lambda *_: dice.random() < 0.05
        if dice.random() < 0.15:
            victim = f"engine-{dice.randrange(2) + 1}"
            cluster.lose(victim)
            cluster.tick(dice.randrange(3))
            cluster.start_engine(victim)
        if dice.random() < 0.1:
            cluster.loses = lambda *_: False
            cluster.change_term()
        requests[f"{number}"] = cluster.ask(
            append_of(f"{number}", key=f"k{number}" if number % 2 else None), timeout_s=6
        )
        cluster.tick(dice.randrange(4))
    cluster.loses = lambda *_: False
    cluster.tick(140)
    cluster.until_ready("engine-1", "engine-2")
    found = {text: seqnum for seqnum, text in cluster.read()}
    assert len(cluster.read()) == len(found)
    for text, request in requests.items():
        answer: Any = cluster.answers[request].answer
        if isinstance(answer, Appended):
            seqnum = answer.rejected[0].seqnums[0] if answer.rejected else answer.first_seqnum
            assert found[text] == seqnum
        else:
            assert answer.outcome == "unknown" or text not in found
