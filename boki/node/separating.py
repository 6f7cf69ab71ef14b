"""Before roles are separated: what a sequencer's database lacks is taken from the log that it shared.

A node that plays storage node and sequencer keeps the newest writes of both in one log (`boki.host.redo`), and puts
each where it belongs when it stops. After a power cut or a kill it has not, and the sequencer would not start alone.
Here both databases are opened without the node, one pair after the other, while no process has them.

`boki up --separate` runs this as a program, because RocksDB has threads, and a supervisor must not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from boki.host.redo import end_riding, is_complete, recover
from boki.host.rocksdb import RocksDb
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.node.home import Home


def pairs(nodes: Path) -> Iterator[tuple[Path, Path]]:
    """The data directories of a storage node and a sequencer that have shared a node, or may have."""
    for sequencer in sorted(nodes.glob(f"{Role.SEQUENCER}-*")):
        storage = nodes / sequencer.name.replace(Role.SEQUENCER, Role.STORAGE, 1)
        if all((path / "disk" / "CURRENT").exists() for path in (storage, sequencer)):
            yield storage, sequencer


def separate(storage: Path, sequencer: Path) -> bool:
    """Let the sequencer's database be complete by itself, as after a clean stop. False: it was.

    Raises what opening them does: `DataDirectoryInUse`, `RedoMissing` if it is another storage node's log.
    """
    with ExitStack() as opened:
        homes = []
        for path, role in ((storage, Role.STORAGE), (sequencer, Role.SEQUENCER)):
            homes.append(Home(path, NodeId(path.name), role))
            opened.callback(homes[-1].close)
        own = RocksDb(homes[1].disk)
        opened.callback(own.close)
        if is_complete(own):
            return False
        host = RocksDb(homes[0].disk)
        opened.callback(host.close)
        recover(own, host)
        end_riding(own)
        return True


def main(nodes: Path) -> None:
    """Do so for all pairs in the folder. What fails is left to the start of that node, which says what is wrong."""
    for storage, sequencer in pairs(nodes):
        try:
            if separate(storage, sequencer):
                print(f"{sequencer.name} has taken its newest writes from the log of {storage.name}", file=sys.stderr)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
            print(f"{sequencer.name} could not be separated from {storage.name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
