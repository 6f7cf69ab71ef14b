"""What one gateway is told when it is made: where it listens, whom it lets in, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from boki.config.loading import Cors
from boki.config.rules import is_loopback
from boki.errors import ConfigError
from boki.gateway.core import Budget
from boki.log.limits import DEFAULT_LIMITS, KIB, Limits


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long clients may take, in seconds."""

    first_head_s: float = 10.0
    """Until the head of a connection's first request is complete."""
    head_s: float = 60.0
    """Until the head of the next request is complete, from the last answer on."""
    body_s: float = 30.0
    """Until the body of a request is complete."""
    body_idle_s: float = 10.0
    """Until it is given up for coming more slowly than `body_bytes_per_s`."""
    body_bytes_per_s: int = 16 * KIB
    body_stall_s: float = 3.0
    """The same while others want the bytes that it holds of the budget, and no burst before counts for longer."""
    reader_s: float = 30.0
    """Until a large answer, or one piece of a subscription, is taken."""
    linger_s: float = 2.0
    """How long what is left of a refused body is read away, so that the client sees the refusal."""
    heartbeat_s: float = 15.0
    """How often a subscription without records says that it is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """A gateway's settings. `ConfigError` if it would be open to strangers without anybody having said so."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free one."""
    reuse_port: bool = False
    """Share the port with other gateways of this machine: each connection goes to one that still listens."""
    redirect_s: float = 0.0
    """How long clients are sent elsewhere before their connections are closed, where there are other gateways."""
    token: str = field(default="", repr=False)
    """The bearer token that every request must carry; empty: none."""
    insecure: bool = False
    """Listen on any address without a token."""
    cors: Cors = field(default_factory=Cors)
    """Which pages of other origins may call."""
    max_connections: int = 10_000
    """At most; fewer if the process may not have this many files open (see `boki.host.process`)."""
    limits: Limits = DEFAULT_LIMITS
    budget: Budget = field(default_factory=Budget)
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        if not (self.token or self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"{self.host} can be reached from other machines, and anybody there could run functions and write to "
                "the log: set a token (--token), or say that this is meant (--insecure)",
                field="host",
            )
        if not self.token.isascii() or any(not 32 < ord(character) < 127 for character in self.token):
            raise ConfigError("a token is printable ASCII without spaces, so that it fits in a header", field="token")

    @property
    def shows_tracebacks(self) -> bool:
        """Whether callers are told where in the code a function raised: not if strangers can call."""
        return bool(self.token) or is_loopback(self.host)
