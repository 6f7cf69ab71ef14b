"""A gateway: HTTP for clients on one side, messages to the engines on the other. It has no core and keeps nothing."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from boki.config.node import GatewayNodeConfig
from boki.coordination.zookeeper import News
from boki.gateway.config import GatewayConfig
from boki.gateway.server.cluster import ClusterBackend
from boki.gateway.server.listener import Gateway
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.node.incarnation import RoleIncarnation
from boki.protocol.call_messages import AskStatus
from boki.protocol.messages import InstallMembership, InstallView, Ping, Pong

_REDIRECT_S: Final = 0.25


class GatewayIncarnation(RoleIncarnation[GatewayNodeConfig]):
    """A gateway. `url` is where it listens once it is at work."""

    role = Role.GATEWAY
    DIVERTED: ClassVar[tuple[type, ...]] = (AskStatus, Ping)
    gateway: Gateway | None = None

    async def prepare(self) -> None:
        """See `RoleIncarnation`."""
        self.backend = ClusterBackend(
            self.diversion, self.node, self._loop, incarnation=self.incarnation, limits=self.config.limits
        )
        self.backend.start()
        self.parts.callback(self.backend.stop)
        await super().prepare()

    def on_news(self, news: News) -> None:
        """See `RoleIncarnation`."""
        super().on_news(news)
        if isinstance(news, InstallMembership):
            self.backend.on_membership(news.membership)
        elif isinstance(news, InstallView):
            self.backend.on_view(news.views[-1])

    def divert(self, sender: NodeId, message: Any) -> None:
        """See `RoleIncarnation`; there is no core to answer heartbeats."""
        if isinstance(message, Ping):
            self.links.send(self.node, sender, Pong(message.number, 0, self.incarnation))
        else:
            super().divert(sender, message)

    async def serve(self) -> None:
        """Listen for clients."""
        config = GatewayConfig(
            host=self.config.host,
            port=self.config.port,
            reuse_port=self.config.reuse_port,
            redirect_s=_REDIRECT_S,
            token=self.config.token,
            insecure=self.config.insecure,
            cors=self.config.cors,
            limits=self.config.limits,
        )
        gateway = Gateway(self.backend, config)
        self.parts.push_async_callback(gateway.stop, 0)
        await gateway.start()
        self.gateway = gateway

    @property
    def url(self) -> str:
        """Where it listens for clients; empty if it does not yet."""
        return self.gateway.url if self.gateway is not None else ""

    async def drain(self) -> None:
        """Not ready any more; wait for what is under way."""
        if self.gateway is not None:
            self.gateway.drain()
            await self.gateway.stop(self.node_stop.left_s(self.node_stop.deadline_s(self.config.drain_s)))

    def role_status(self) -> dict[str, Any]:
        """See `RoleIncarnation`."""
        return {"url": self.url}
