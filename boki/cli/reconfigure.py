"""`boki reconfigure`, `boki drain` and `boki undrain`: an operator says what should be, controllers make it so."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from boki.cli.connection import Token, Url, connect, gateway_of
from boki.cli.coordination import Chroot, Data, ZooKeeper, change_plan, place_of, with_coordinator
from boki.cli.help import examples
from boki.cli.terminal import count_text, progress, results
from boki.errors import DeadlineExceeded, InvalidArgument
from boki.launch.up.health import drain_left
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Membership, Role

if TYPE_CHECKING:
    from boki.coordination.zookeeper import ZooKeeperCoordinator
    from boki.log.view import View

_POLL_S: Final = 0.1
_DRAIN_POLL_S: Final = 0.5
_MAX_LOGS: Final = 255

Wait = Annotated[bool, typer.Option("--wait", help="Wait until the change is in effect.")]
Timeout = Annotated[float, typer.Option("--timeout-s", min=0.1, help="Maximum time to wait.")]


@examples("boki reconfigure --logs 4", "boki reconfigure --sequencers 5 --wait")
def command(
    logs: Annotated[int | None, typer.Option(min=1, max=_MAX_LOGS, help="Physical logs that books share.")] = None,
    sequencers: Annotated[
        str, typer.Option(metavar="N|NAMES", help="How many sequencers, an odd number; or which: a,b,c.")
    ] = "",
    speculative_cuts: Annotated[
        bool | None,
        typer.Option(
            "--speculative-cuts/--no-speculative-cuts",
            help="Whether cuts run ahead of reports, where all nodes play both roles of the log.",
        ),
    ] = None,
    wait: Wait = False,
    timeout_s: Timeout = 60.0,
    zookeeper: ZooKeeper = "",
    chroot: Chroot = "",
    data: Data = None,
) -> None:
    """Change the number of logs, the sequencers, or how cuts go.

    A controller ends the term and begins one with what was changed.
    Appends in flight are ordered, or appended again in the next term. Records stay where they are.
    """
    if logs is None and not sequencers and speculative_cuts is None:
        raise InvalidArgument(
            "nothing to change: say --logs N, --sequencers N or NAME,NAME,NAME, or --speculative-cuts"
        )

    async def act(coordinator: ZooKeeperCoordinator) -> None:
        membership = await members(coordinator)
        wanted, is_new = await change_plan(
            coordinator, lambda plan: _changed(plan, logs, sequencers, speculative_cuts, membership)
        )
        if not is_new:
            results().print(f"The cluster is to have {_text(wanted)} already.")
        if wait:
            view = await _until_installed(coordinator, wanted, timeout_s, runs_ahead=bool(speculative_cuts))
            results().print(f"Term {view.term} has {_text(wanted)}: {', '.join(view.sequencers)}.")
        elif is_new:
            results().print(f"It is to have {_text(wanted)}. `boki status` shows the term in which it is so.")

    with_coordinator(place_of(zookeeper, chroot, data), act)


def _changed(
    plan: ClusterPlan, logs: int | None, sequencers: str, runs_ahead: bool | None, membership: Membership
) -> ClusterPlan:
    changes: dict[str, Any] = {} if logs is None else {"logs": logs}
    if runs_ahead is not None:
        changes["speculative_cuts"] = runs_ahead
    if sequencers:
        changes |= _chosen(sequencers, [member.node for member in membership.of(Role.SEQUENCER)])
    return msgspec.structs.replace(plan, **changes)


def _chosen(text: str, registered: list[NodeId]) -> dict[str, Any]:
    """The fields of a plan that say so. `InvalidArgument` if no term could have these sequencers."""
    if text.isdecimal():
        names: tuple[NodeId, ...] = ()
        count = int(text)
    else:
        names = tuple(NodeId(name.strip()) for name in text.split(",") if name.strip())
        count = len(names)
    here = ", ".join(registered) or "none"
    if unknown := [name for name in names if name not in registered]:
        raise InvalidArgument(f"no sequencer named {', '.join(unknown)} is running; there are: {here}")
    if len(set(names)) != len(names):
        raise InvalidArgument("a sequencer is named twice: a majority must be of different ones")
    if count % 2 == 0:
        raise InvalidArgument(f"{count} sequencers: an even number tolerates no more losses than one less")
    if count > len(registered):
        raise InvalidArgument(f"{count} sequencers are wanted, and {len(registered)} are running ({here}): start more")
    return {"sequencers": count, "sequencer_names": names}


async def _until_installed(
    coordinator: ZooKeeperCoordinator, plan: ClusterPlan, timeout_s: float, *, runs_ahead: bool
) -> View:
    deadline = time.monotonic() + timeout_s
    with progress(counted=False) as bar:
        task = bar.add_task("waiting for a controller", total=None)
        while True:
            view = (await coordinator.views())[-1]
            sequencers = count_text(len(view.sequencers), "sequencer")
            bar.update(task, description=f"term {view.term}: {count_text(view.log_count, 'log')}, {sequencers}")
            if is_so(view, plan) and (view.beside or not runs_ahead):
                return view
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"term {view.term} does not have {_text(plan)} after {timeout_s:g} s. It stays wanted: "
                    "`boki status` says what is missing",
                    outcome="unknown",
                )
            await asyncio.sleep(_POLL_S)


def is_so(view: View, plan: ClusterPlan) -> bool:
    """Whether that term is what the plan wants. Cuts may run ahead; they do not where a sequencer is alone."""
    has_named = not plan.sequencer_names or set(view.sequencers) == set(plan.sequencer_names)
    may_be = plan.speculative_cuts or not view.beside
    return view.log_count == plan.logs and len(view.sequencers) == plan.sequencers and has_named and may_be


@examples("boki drain storage-1", "boki drain storage-1 --wait --timeout-s 600")
def drain(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="The storage node.", show_default=False)],
    wait: Wait = False,
    timeout_s: Timeout = 3600.0,
    zookeeper: ZooKeeper = "",
    chroot: Chroot = "",
    data: Data = None,
    url: Url = "",
    token: Token = "",
) -> None:
    """Empty a storage node, so that it can be removed.

    New records go to other nodes, and those that it holds follow. Appends and reads continue meanwhile. When the drain
    is complete, no record needs the node any more: stop it.
    """

    async def act(coordinator: ZooKeeperCoordinator) -> bool:
        membership = await members(coordinator)
        _, is_new = await change_plan(coordinator, lambda plan: _drained(plan, NodeId(node), membership))
        return is_new

    place = place_of(zookeeper, chroot, data)
    if wait:
        url, token = _gateway(context, zookeeper, data, url, token)
    is_new = with_coordinator(place, act)
    results().print(f"{node} is being drained." if is_new else f"{node} is being drained already.")
    if wait:
        _wait_until_empty(node, timeout_s, url, token)
        results().print(f"{node} is empty: it can be stopped, and its data removed.")


def _gateway(context: typer.Context, zookeeper: str, data: Path | None, url: str, token: str) -> tuple[str, str]:
    """The URL and token by which to ask the cluster that the flags name. Variables and `boki.toml` may name another,
    and a node of that one may be empty. They count where no flag names a cluster.
    """
    if _is_typed(context, "url"):
        return url, token
    if zookeeper:
        raise InvalidArgument("--wait asks a gateway of the cluster, and --zookeeper does not name one: add --url")
    if data is None:
        return url, token
    url, own_token = gateway_of(data)
    return url, token if _is_typed(context, "token") else own_token


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _wait_until_empty(node: str, timeout_s: float, url: str, token: str) -> None:
    """As the leading controller tells by way of the gateway."""
    deadline = time.monotonic() + timeout_s
    most = 1
    with connect(url, token) as client, progress() as bar:
        task = bar.add_task(f"emptying {node}", total=None)
        while (left := drain_left(client.status(), node)) != 0:
            if left is not None:
                most = max(most, left)
                bar.update(task, completed=most - left, total=most)
            if time.monotonic() > deadline:
                why = "no controller says how far it is" if left is None else f"{count_text(left, 'shard')} left"
                raise DeadlineExceeded(
                    f"{node} is not empty after {timeout_s:g} s: {why}. The drain goes on; `boki status` shows it",
                    outcome="unknown",
                )
            time.sleep(_DRAIN_POLL_S)


@examples("boki undrain storage-1")
def undrain(
    node: Annotated[str, typer.Argument(help="The storage node.", show_default=False)],
    zookeeper: ZooKeeper = "",
    chroot: Chroot = "",
    data: Data = None,
) -> None:
    """Let a drained storage node take records again."""

    async def act(coordinator: ZooKeeperCoordinator) -> None:
        def change(plan: ClusterPlan) -> ClusterPlan:
            if node not in plan.draining:
                drained = ", ".join(plan.draining) or "none is"
                raise InvalidArgument(f"{node} is not being drained ({drained})")
            return msgspec.structs.replace(plan, draining=tuple(name for name in plan.draining if name != node))

        await change_plan(coordinator, change)
        results().print(f"{node} takes records again.")

    with_coordinator(place_of(zookeeper, chroot, data), act)


def _drained(plan: ClusterPlan, node: NodeId, membership: Membership) -> ClusterPlan:
    if node in plan.draining:
        return plan
    storage = [member.node for member in membership.of(Role.STORAGE)]
    if node not in storage:
        raise InvalidArgument(f"no storage node named {node} is running; there are: {', '.join(storage) or 'none'}")
    left = [name for name in storage if name != node and name not in plan.draining]
    if len(left) < plan.replicas:
        raise InvalidArgument(
            f"without {node} only {count_text(len(left), 'storage node')} would be left for "
            f"{count_text(plan.replicas, 'replica')}: start another one first"
        )
    return msgspec.structs.replace(plan, draining=(*plan.draining, node))


async def members(coordinator: ZooKeeperCoordinator) -> Membership:
    """Who is registered now."""
    await coordinator.follow()
    return coordinator.membership


def _text(plan: ClusterPlan) -> str:
    ahead = ", and cuts that run ahead" if plan.speculative_cuts else ""
    return f"{count_text(plan.logs, 'log')} and {count_text(plan.sequencers, 'sequencer')}{ahead}"
