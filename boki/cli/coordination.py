"""The coordinator of the cluster that an operator means: what is changed there, controllers make so.

`--zookeeper` and `--chroot` win over `--data`, that over BOKI_ZOOKEEPER and BOKI_CHROOT, those over `boki.toml`, that
over the cluster that `boki up` runs in this folder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer
from msgspec import Meta

from boki.config.loading import Config, ZooKeeperAccess, load
from boki.errors import InvalidArgument, Unavailable
from boki.log.membership import ClusterPlan

if TYPE_CHECKING:
    from boki.coordination.zookeeper import ZooKeeperCoordinator

_T = TypeVar("_T")
_ATTEMPTS: Final = 20

ZooKeeper = Annotated[
    str, typer.Option("--zookeeper", metavar="HOSTS", help="host:port,... of the cluster's ZooKeeper.")
]
Chroot = Annotated[str, typer.Option("--chroot", metavar="PATH", help="Where in it the cluster is.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="PATH", help="Data directory of a `boki up`.")]


class Place(Config, frozen=True, kw_only=True):
    """Where a cluster keeps what its nodes agree on."""

    zookeeper: Annotated[str, Meta(description="host:port,... of the ZooKeeper.")] = ""
    chroot: Annotated[str, Meta(description="Path in it.")] = "/boki"
    data: Annotated[Path, Meta(description="Data directory of a `boki up`.")] = Path(".boki")
    zookeeper_access: ZooKeeperAccess = ZooKeeperAccess()


def _configured(zookeeper: str, chroot: str, data: Path | None) -> Place:
    flags: dict[str, Any] = {"zookeeper": zookeeper or None, "chroot": chroot or None, "data": data and str(data)}
    return load(Place, flags=flags, environment=os.environ, allow_others=True)


def place_of(zookeeper: str, chroot: str, data: Path | None) -> Place:
    """Where the cluster that is meant keeps its agreements. `Unavailable` if nothing says so; `InvalidArgument` if what
    is said contradicts the cluster that `boki up` runs here.
    """
    from boki.launch.up.state import read_state
    from boki.net.keys import read_digest

    place = _configured(zookeeper, chroot, data)
    is_named = data is not None and not zookeeper
    if place.zookeeper and not is_named:
        return place
    folder = place.data / "cluster"
    state = read_state(folder)
    if state is None:
        raise Unavailable(
            f"there is no cluster of `boki up` in {folder}: name its ZooKeeper with --zookeeper HOST:PORT, or its data "
            "directory with --data",
            retryable=False,
            folder=str(folder),
        )
    if not state.is_running:
        raise Unavailable(
            f"the cluster in {folder} does not run: start it with `boki up`", retryable=False, folder=str(folder)
        )
    named = chroot or (place.chroot if place.chroot != Place().chroot and not is_named else "")
    if named not in ("", state.chroot):
        raise InvalidArgument(
            f"the cluster of `boki up` in {folder} is at chroot {state.chroot}, and not at {named}: leave --chroot (or "
            "BOKI_CHROOT) out, or name the other cluster's ZooKeeper with --zookeeper, too",
            field="chroot",
        )
    access = _own_access(folder) if is_named else place.zookeeper_access
    access = msgspec.structs.replace(access, digest=access.digest or read_digest(folder / "keys"))
    return Place(zookeeper=state.zookeeper, chroot=state.chroot, zookeeper_access=access)


def _own_access(folder: Path) -> ZooKeeperAccess:
    """How the cluster in that folder is known to its ZooKeeper: another one's digest is not sent there."""
    file = folder / "boki.toml"
    if not file.exists():
        return ZooKeeperAccess()
    return load(Place, flags={}, environment={}, file=file, allow_others=True).zookeeper_access


def with_coordinator(place: Place, act: Callable[[ZooKeeperCoordinator], Coroutine[Any, Any, _T]]) -> _T:
    """What `act` returns, called with the coordinator there."""

    async def run() -> _T:
        async with connected(place) as coordinator:
            return await act(coordinator)

    return asyncio.run(run())


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[ZooKeeperCoordinator]:
    """A session with the coordinator, for as long as the block lasts."""
    from boki.coordination.zookeeper import ZooKeeperCoordinator
    from boki.launch.up.probe import check_zookeeper

    await asyncio.to_thread(check_zookeeper, place.zookeeper)
    coordinator = await ZooKeeperCoordinator.connect(place.zookeeper, place.chroot, access=place.zookeeper_access)
    try:
        yield coordinator
    finally:
        await coordinator.close()


async def change_plan(
    coordinator: ZooKeeperCoordinator, change: Callable[[ClusterPlan], ClusterPlan]
) -> tuple[ClusterPlan, bool]:
    """Replace what the operator wants by what `change` makes of it: the plan, and whether it is another one now.

    `change` refuses by raising, and may be called again when somebody else has changed the plan meanwhile.
    """
    for _ in range(_ATTEMPTS):
        plan = await coordinator.plan()
        if plan is None:
            raise Unavailable("no cluster has been started there yet: its first controller writes down what it is")
        changed = change(plan)
        if changed == plan:
            return plan, False
        if await coordinator.change_plan(changed):
            return changed, True
    raise Unavailable("others keep changing the cluster's plan: try again")
