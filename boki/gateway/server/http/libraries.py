"""What the installed libraries bring to one gateway: their routes, metrics and drivers."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import CollectorRegistry

from boki.errors import ConfigError
from boki.faces import Face, GatewayPart, GatewayPort, Route
from boki.faces.installed import all_faces, installed

_log = logging.getLogger("boki.gateway")


class Libraries:
    """The parts of one gateway that are libraries'."""

    def __init__(self, port: GatewayPort, registry: CollectorRegistry) -> None:
        """`ConfigError` if a library cannot be loaded, or has routes that are not its own."""
        self._parts = {face.library: _part_of(face, port) for face in all_faces() if face.at_gateway is not None}
        self._drivers = {name: part.driver for name, part in self._parts.items() if part.driver is not None}
        for part in self._parts.values():
            if part.metrics is not None:
                registry.register(part.metrics)

    def routes(self) -> list[Route]:
        """What they answer."""
        return [route for part in self._parts.values() for route in part.routes]

    def start(self) -> None:
        """Let them call functions."""
        for driver in self._drivers.values():
            driver.start()

    def stop(self) -> None:
        """Let them begin no more calls."""
        for driver in self._drivers.values():
            driver.stop()

    async def finish(self) -> None:
        """Wait until the calls that they have begun have ended and are recorded. What goes wrong there is logged."""
        ends = await asyncio.gather(*(driver.finish() for driver in self._drivers.values()), return_exceptions=True)
        for name, end in zip(self._drivers, ends, strict=True):
            if isinstance(end, Exception):
                _log.error("library %s could not finish its calls", name, exc_info=end)


def _part_of(face: Face, port: GatewayPort) -> GatewayPart:
    assert face.at_gateway is not None, "asked of those that have a part"
    part = face.at_gateway(port)
    if face.library not in installed().built_in:
        for route in part.routes:
            if not route.template.startswith(f"/lib/{face.library}/"):
                raise ConfigError(
                    f"library {face.library}: its route {route.template} must begin with /lib/{face.library}/, so that "
                    "it cannot be another one's"
                )
    return part
