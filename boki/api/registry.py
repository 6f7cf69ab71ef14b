"""What a module registers, once it has been loaded: its functions by name, each name and each route once."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from boki.api.function import Function, registered_in
from boki.errors import ConfigError
from boki.protocol.calls import FunctionInfo
from boki.protocol.routes import parse_routes


class Registry:
    """The functions of one load of a module, by name."""

    def __init__(self, functions: dict[str, Function]) -> None:
        self.functions = functions

    @staticmethod
    def of(module: ModuleType) -> Registry:
        """What the module registers. `ConfigError` names the place if a function cannot be called, or both places if
        two have one name. Functions that it imported from elsewhere are registered there.
        """
        functions: dict[str, Function] = {}
        for found in registered_in(module):
            other = functions.setdefault(found.info.name, found)
            if other is not found:
                raise ConfigError(
                    f"two functions are named {found.info.name!r}: at {other.place} and at {found.place}; give one of "
                    'them another with @function(name="...")'
                )
        _check_routes(functions.values())
        return Registry(functions)

    @property
    def infos(self) -> tuple[FunctionInfo, ...]:
        """What the engine and the gateway are told."""
        return tuple(function.info for function in self.functions.values())


def _check_routes(functions: Iterable[Function]) -> None:
    owners: dict[Any, Function] = {}
    for found in functions:
        for route in parse_routes(found.info.http):
            other = owners.setdefault(route.shape, found)
            if other is not found:
                raise ConfigError(
                    f"two functions have the route {route.text!r}: {other.info.name} at {other.place} and "
                    f"{found.info.name} at {found.place}: change one of them"
                )
