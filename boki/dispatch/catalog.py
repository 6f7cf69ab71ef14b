"""What can be called: the modules of the functions folder in their last good version, and what is wrong with others.

A module that has been described without an error becomes a new version. One that is broken, or registers a function
that another module has already, keeps its last good version in service; its error is shown until it is fixed. Which of
two modules owns a name is decided by who had it first, and in one go by the modules' names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from boki.protocol.calls import FunctionInfo, ModuleInfo
from boki.protocol.routes import clash


@dataclass(frozen=True, slots=True)
class Install:
    """Call these functions of the module in this version from now on."""

    module: str
    version: int
    functions: tuple[FunctionInfo, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The module has no functions to call: it is gone, or (with an error) never was good."""

    module: str
    error: str = ""


Change = Install | Withdraw


@dataclass(slots=True)
class _Entry:
    latest: ModuleInfo
    good: ModuleInfo | None = None
    error: str = ""


class Catalog:
    """All modules by name."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._versions: dict[str, int] = {}

    @property
    def modules(self) -> list[ModuleInfo]:
        """Each module as it is called now, with the error of its latest version, by name."""
        found = []
        for name, entry in sorted(self._entries.items()):
            functions = entry.good.functions if entry.good else ()
            found.append(ModuleInfo(module=name, path=entry.latest.path, functions=functions, error=entry.error))
        return found

    @property
    def functions(self) -> dict[str, FunctionInfo]:
        """Everything that can be called, by name."""
        return {info.name: info for module in self.modules for info in module.functions}

    def update(self, described: Iterable[ModuleInfo], gone: Iterable[str] = ()) -> list[Change]:
        """Modules have been described again, and others are gone: what follows for callers.

        A module that was refused because of another one's function is looked at again, also if that has just lost it;
        and modules that exchange functions are taken together.
        """
        changes: list[Change] = []
        for name in sorted(gone):
            if self._entries.pop(name, None) is not None:
                changes.append(Withdraw(name))
        fresh = {info.module: info for info in described}
        for name, info in fresh.items():
            self._entries.setdefault(name, _Entry(info)).latest = info
        due = self._refused() | fresh.keys()
        while due:
            found = [
                change for name in sorted(due) if (change := self._consider(name, self._entries[name])) is not None
            ]
            if not any(isinstance(change, Install) for change in found):
                found += self._exchange()
            changes += found
            due = self._refused() if any(isinstance(change, Install) for change in found) else set()
        return changes

    def _exchange(self) -> list[Install]:
        """Take the refused modules that clash with nothing once all of them are taken; of two that clash, the first."""
        together = self._refused()
        while clashing := [name for name in together if self._clash(name, self._entries[name].latest, together)]:
            together.remove(max(clashing))
        return [self._install(name, self._entries[name]) for name in sorted(together)]

    def _refused(self) -> set[str]:
        return {name for name, entry in self._entries.items() if entry.error and not entry.latest.error}

    def _consider(self, name: str, entry: _Entry) -> Change | None:
        error = entry.latest.error or self._clash(name, entry.latest)
        if not error:
            return self._install(name, entry)
        known, entry.error = entry.error, error
        return Withdraw(name, error) if entry.good is None and error != known else None

    def _install(self, name: str, entry: _Entry) -> Install:
        entry.good, entry.error = entry.latest, ""
        self._versions[name] = self._versions.get(name, 0) + 1
        return Install(name, self._versions[name], entry.good.functions)

    def _clash(self, name: str, info: ModuleInfo, taken: Collection[str] = ()) -> str:
        """Why the module cannot be called as it is, if those that are `taken` are called in their latest versions."""
        for other_name, other in self._entries.items():
            theirs = other.latest if other_name in taken else other.good
            if other_name == name or theirs is None:
                continue
            for twice in {function.name for function in theirs.functions} & {f.name for f in info.functions}:
                return (
                    f"{info.path}: function {twice!r} is registered by {other.latest.path} already: give one of them "
                    'another name with @function(name="...")'
                )
            twice_routed = clash(info.functions, theirs.functions)
            if twice_routed is not None:
                route, own, other_one = twice_routed
                return (
                    f"{info.path}: the route {route.text!r} of {own!r} is that of {other_one!r} in {other.latest.path} "
                    "already: change one of them"
                )
        return ""
