"""Log lines about the functions folder: modules that were loaded, are broken, or are overlooked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from boki.dispatch.server.modules import Refreshed
from boki.protocol.calls import ModuleInfo
from boki.worker.loading import shown

_log = logging.getLogger("boki.functions")


def tell_of(refreshed: Refreshed, folder: Path) -> None:
    """Modules whose import takes long, and files that register nothing."""
    for path in refreshed.slow:
        _log.warning("%s: its import is still running; its functions are taken over when it ends", shown(path))
    for file in refreshed.overlooked:
        _log.warning(
            "%s is not looked into: functions are registered by .py files at the top of %s",
            shown(str(folder / file)),
            shown(str(folder)),
        )


def tell_changes(before: Sequence[ModuleInfo], after: Sequence[ModuleInfo], described: AbstractSet[str]) -> None:
    """What has become of the modules that there were; those of these names were described again."""
    old = {module.module: module for module in before}
    for name in old.keys() - {module.module for module in after}:
        _log.info("module %r is gone, with its functions", name)
    for module in after:
        if module.module in described or module != old.get(module.module):
            announce(module)


def announce(module: ModuleInfo) -> None:
    """A module has changed, or is as it was after a change of its files."""
    names = ", ".join(sorted(info.name for info in module.functions))
    if not module.error:
        _log.info("module %r is loaded: %s", module.module, names or "no functions")
    elif names:
        _log.error("%s; its last good version keeps running: %s", module.error, names)
    else:
        _log.error("%s", module.error)
