"""What `boki dev` promises over a `kill -9`, seen from outside: accepted calls, used keys, rules of books."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from boki import KeyReused
from boki.client import BlockingClient
from boki.config.loading import DevConfig
from boki.launch.child import Child

FUNCTIONS = Path(__file__).parent / "functions"


class System:
    """A `boki dev` that can be killed and started again, also with other settings."""

    def __init__(self, folder: Path) -> None:
        self.config = DevConfig(data=folder / "data", functions=FUNCTIONS, port=0, reload=False)
        self.child = Child(self.config).start()
        self.client = BlockingClient(self.child.url)

    def restart(self, **settings: Any) -> None:
        self.child.kill()
        self.client.close()
        self.config = msgspec.structs.replace(self.config, **settings)
        self.child = Child(self.config).start()
        self.client = BlockingClient(self.child.url)

    def close(self) -> None:
        self.client.close()
        self.child.kill()

    def records(self, name: str) -> list[tuple[int, bytes]]:
        """All of a book, page by page."""
        found: list[tuple[int, bytes]] = []
        start = 0
        while (page := self.client.logbook(name).read(start=start)).records:
            found += [(record.seqnum, record.data) for record in page.records]
            start = page.next_start
        return found

    def runs(self, name: str) -> int:
        return len(self.client.logbook("runs").read(name).records)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    running = System(tmp_path)
    yield running
    running.close()


def test_an_accepted_call_is_run_after_a_kill(system: System) -> None:
    """Accepted means that the call is in the log: also if nothing had begun it, and if its first run was cut off."""
    delayed = system.client.invoke_later("count", "delayed", delay_s=0.5)
    hanging = system.client.invoke_later("hang", "hanging")
    assert system.client.logbook("runs").read_next("hanging", wait_s=10) is not None
    assert system.client.invocation(hanging).state == "running"
    system.restart()
    for invocation, name in ((delayed, "delayed"), (hanging, "hanging")):
        ended = system.client.invocation(invocation, wait_s=20)
        assert (ended.state, ended.result) == ("done", f"did {name}")
    assert (system.runs("delayed"), system.runs("hanging")) == (1, 2)


def test_a_call_from_inside_a_function_survives_too(system: System) -> None:
    """`invoke_later` has logged the call before it returns."""
    invocation = system.client.invoke("later", "inner")
    system.restart()
    assert system.client.invocation(invocation, wait_s=20).result == "did inner"
    assert system.runs("inner") == 1


def test_a_key_gives_the_first_result_after_a_kill(system: System) -> None:
    """The body runs once for a key, its result is returned again; another request under the key is refused."""
    assert system.client.invoke("count", "once", key="k1") == "did once"
    system.restart()
    assert system.client.invoke("count", "once", key="k1") == "did once"
    assert system.runs("once") == 1
    with pytest.raises(KeyReused):
        system.client.invoke("count", "other", key="k1")
    seqnum = system.client.logbook("book").append(b"a", key="k2")
    system.restart()
    assert system.client.logbook("book").append(b"a", key="k2") == seqnum


def test_trims_deletions_and_retention_survive(system: System) -> None:
    """What was trimmed does not come back, and a book continues trimming itself."""
    kept, deleted = system.client.logbook("kept"), system.client.logbook("deleted")
    seqnums = kept.append_many([b"%d" % n for n in range(10)])
    deleted.append(b"x")
    kept.trim(seqnums[5])
    deleted.delete()
    kept.set_retention(size_bytes=3)
    system.restart()
    kept = system.client.logbook("kept")
    assert [record.data for record in kept.read().records][-1] == b"9"
    assert kept.read().records[0].seqnum >= seqnums[5]
    (info,) = system.client.books("kept")
    assert info.retention_size_bytes == 3
    assert system.client.books("deleted") == []
    assert system.client.logbook("deleted").read().records == []


def test_records_stay_when_replicas_and_logs_change(system: System) -> None:
    """More replicas, more logs, fewer again: every record of every book is there, in its order, and books continue."""
    books = [f"book-{n}" for n in range(12)]
    written: dict[str, list[tuple[int, bytes]]] = {name: [] for name in books}
    for round_, settings in enumerate(
        [{}, {"replicas": 3, "logs": 2, "write_quorum": 2, "sequencers": 3}, {"logs": 3}, {"logs": 1}]
    ):
        if settings:
            system.restart(**settings)
        for name in books:
            data = b"%d" % round_
            written[name].append((system.client.logbook(name).append(data), data))
        for name in books:
            assert system.records(name) == written[name]
            assert [seqnum for seqnum, _ in written[name]] == sorted(seqnum for seqnum, _ in written[name])
