"""Logged calls that are started with the payload of another one."""

from __future__ import annotations

import msgspec
import pytest

from boki.books.calls.ledger import BOOK, CODEC, Accepted, Finished, acceptance_tags, id_tag
from boki.errors import InvalidArgument, NoSuchInvocation
from boki.log.chunk import Group, encode_chunk
from boki.log.limits import KIB
from boki.log.operations import Append
from boki.protocol.calls import ChosenId
from tests.books.calls.call_world import CallWorld, a_call, now_us, run
from tests.books.calls.test_taken_over import Cluster, with_engines


def test_a_call_is_started_with_the_payload_of_another() -> None:
    """Also again under its own id after it has ended well, and at another engine; a call that is not there has none."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        first, second = (cluster.engines[name].calls for name in "ab")
        await first.accept(msgspec.structs.replace(a_call(1, "echo", data=b"mine"), chosen=ChosenId("s1")))
        ended = await first.state(a_call(1).id, wait_s=5)
        for number, if_ended in ((1, "again"), (2, "fail")):
            copy = ChosenId(f"copy {number}", "fail", if_ended, copies=a_call(1).id)  # type: ignore[arg-type]
            await second.accept(msgspec.structs.replace(a_call(number, "echo", data=b""), chosen=copy))
            state = await second.state(a_call(number).id, wait_s=5)
            assert (state.state, state.result) == ("done", ended.result)
        for source, error in ((a_call(9).id, NoSuchInvocation), (a_call(1).id, InvalidArgument)):
            copy = ChosenId("copy", copies=source)
            with pytest.raises(error):
                await first.accept(msgspec.structs.replace(a_call(3, "flaky"), chosen=copy))


def test_a_call_with_the_payload_of_its_own_earlier_life_reports_to_the_same_parent() -> None:
    """Such as a workflow that is rewound: its parent may still wait for its end. A call of another id does not."""

    @with_engines("a")
    async def scenario(cluster: Cluster) -> None:
        calls, parent = cluster.engines["a"].calls, a_call(9).id
        first = ChosenId("s1", reports_to=parent)
        await calls.accept(msgspec.structs.replace(a_call(1, "echo", data=b"mine"), chosen=first))
        await calls.state(a_call(1).id, wait_s=5)
        for number in (1, 2):
            copy = ChosenId(f"copy {number}", "fail", "again", copies=a_call(1).id)
            await calls.accept(msgspec.structs.replace(a_call(number, "echo", data=b""), chosen=copy))
            await calls.state(a_call(number).id, wait_s=5)
        assert [entry.reports_to for entry in cluster.entries(Finished)] == [parent, parent, ""]
        assert [entry.call.payload.data for entry in cluster.entries(Accepted)] == [b"mine"] * 3


def test_a_payload_that_an_earlier_version_has_accepted_can_be_copied() -> None:
    """It may be larger than what is accepted now: its workflow is rewound, and moved, all the same."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        large = a_call(1, data=b"x" * (world.limits.record_bytes - 10 * KIB))
        entry = Accepted(msgspec.structs.replace(large, chosen=ChosenId("s1")), b"", 0)
        data, tags = CODEC.encode(entry), [id_tag(large.id), *acceptance_tags(entry)]
        world.log.answer(Append(BOOK, encode_chunk(BOOK, [Group([(data, tuple(tags))])])), now_us())
        await calls.cancel(large.id)
        copy = ChosenId("copy", "fail", "again", copies=large.id)
        await calls.accept(msgspec.structs.replace(a_call(1, data=b""), chosen=copy))
        state = await calls.state(large.id, wait_s=5)
        assert (state.state, state.result) == ("done", large.payload)
        await calls.stop()

    run(scenario())
