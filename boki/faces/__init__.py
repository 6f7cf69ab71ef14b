"""Faces of libraries: routes, commands, metrics and drivers that a library adds to gateways and to the CLI.

The gateway and the CLI know this registry and no library. `Use` is how a library's decorator registers a function.
"""

from boki.api.library_use import Signature, Use
from boki.faces.face import CommandGroup, Completion, Face
from boki.faces.gateway import Driver, GatewayPart, GatewayPort, Handler, Ledger, Route

__all__ = [
    "CommandGroup",
    "Completion",
    "Driver",
    "Face",
    "GatewayPart",
    "GatewayPort",
    "Handler",
    "Ledger",
    "Route",
    "Signature",
    "Use",
]
