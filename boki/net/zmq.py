"""Links between processes over ZeroMQ: what `boki.host.links.Links` is within one.

Each process listens on one ROUTER per lane, whatever roles it plays. For each process and lane that it sends to it
opens a DEALER, when it first has something to send; connections carry messages one way, and refusals back. What is
queued belongs to one incarnation of a peer at one address: it is never sent to another, and each pack names the
incarnation that it is for. What one role of a process says to another is handed over by reference.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import zmq

from boki.errors import ConfigError
from boki.host.links import Deliver
from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.net.admission import Admission
from boki.net.codec import Decoder, Envelope, encode_envelope, encode_message
from boki.net.inlet import Inlet
from boki.net.keys import NodeKeys
from boki.net.local import open_door, this_machine
from boki.net.notices import LaneCounts, Notices
from boki.net.outbox import PACK_BYTES, Outbox, Parcel
from boki.net.patience import Patience
from boki.net.sockets import FAILURES, Monitor, make_dealer, make_router
from boki.net.strangers import CHANGES, Strangers
from boki.net.traffic import RULES, Lane
from boki.net.zap import Doorkeeper
from boki.protocol.messages import Message

MAX_MESSAGE_BYTES: Final = 64 << 20
BUDGETS_BYTES: Final[Mapping[Lane, int]] = {Lane.CONTROL: 8 << 20, Lane.APPENDS: 64 << 20, Lane.READS: 32 << 20}
"""How much may wait for one peer, per lane."""
_MAX_REFUSAL_FRAME_BYTES: Final = 4096
_MAX_SOCKETS: Final = 16_384
_REFUSED_HERE: Final = sum(FAILURES) - zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""Of refused keys the doorkeeper tells."""
_ANY_HOST: Final = frozenset({"", "*", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_LANES: Final = tuple(Lane)
_PATIENCE_S: Final = 0.001
"""What can wait is kept back for this long, for a message that it can travel with."""
_MOST_AHEAD_BYTES: Final = 256 << 10
"""Batches that can wait go with what is small and urgent while no more than this is queued there."""


class _Peer:
    """One incarnation of a name of another process, the envelopes that it is sent under, and the ways to it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.prefixes: dict[NodeId, bytes] = {}
        """By the name of this process that speaks."""
        self.outboxes: dict[Lane, Outbox | None] = {}
        """None: it cannot be reached on that lane."""

    def forget_failures(self) -> None:
        """What could not be connected to may be so now: its key may have been listed."""
        self.outboxes = {lane: outbox for lane, outbox in self.outboxes.items() if outbox is not None}


class ZmqLinks:
    """The links of one process, open as soon as this is made. `ConfigError` if it cannot listen.

    `process`: its node's name. `roles`: the names that it plays and their roles; each is heard from `join` on.
    `ports`: a port per lane's name, 0 or none for any. `advertise`: the host under which others reach this one, if it
    is not `host`; a name is looked up as IPv4. `proxy`: "host:port" of a SOCKS5 proxy that all connections to others go
    through. `has_shortcuts`: whether processes of this machine also connect by streams (`boki.net.local`); never with a
    proxy. `on_lost` is called when a connection to another process has ended, on whichever lane.
    """

    on_lost: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        process: NodeId,
        roles: Mapping[NodeId, Role],
        cluster_id: str,
        loop: AbstractEventLoop,
        host: str = "127.0.0.1",
        ports: Mapping[str, int] | None = None,
        keys: NodeKeys | None = None,
        *,
        advertise: str = "",
        proxy: str = "",
        has_shortcuts: bool = False,
        budgets_bytes: Mapping[Lane, int] = BUDGETS_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        if keys is not None:
            keys.check_roles(roles)
        if not advertise and host in _ANY_HOST:
            raise ConfigError(
                f"{process} listens on all addresses of its machine: say with `advertise` which one is told"
            )
        self.process = process
        self.counts = {lane: LaneCounts() for lane in Lane}
        self._roles = roles
        self._cluster_id = cluster_id
        self._joined: dict[NodeId, int] = {}
        self._loop = loop
        self._keys = keys
        self._proxy = proxy
        self._budgets_bytes = budgets_bytes
        self._max_message_bytes = max_message_bytes
        self._notices = Notices(process)
        self._nodes: dict[NodeId, Deliver] = {}
        self._peers: dict[NodeId, _Peer] = {}
        self._outboxes: dict[tuple[Lane, str, str], Outbox] = {}
        """By lane, address and the key that is expected there: roles of one process share them."""
        self._dirty: dict[Lane, list[Outbox]] = {lane: [] for lane in Lane}
        self._patience = Patience(loop)
        self._is_flushing = self._is_closed = False
        self._last: tuple[Any, Parcel] | None = None
        self._admission = Admission(cluster_id, process, self._joined, keys.ring if keys else None)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._doorkeeper = Doorkeeper(self._context, loop, keys.ring, self._notices) if keys else None
        may_be_near = has_shortcuts and not proxy
        self._door = open_door(loop, max_message_bytes + PACK_BYTES, self._notices) if may_be_near else None
        self.machine = this_machine() if self._door is not None else ""
        """To be registered as `Member.machine`."""
        self._inlets: list[Inlet] = []
        self._monitors: list[Monitor] = []
        self.lanes: dict[str, str] = {}
        """Where this process listens, "host:port" by lane, to be registered as `Member.lanes`."""
        try:
            self._listen(host, ports or {}, advertise or host)
        except BaseException:
            self.close()
            raise

    def _listen(self, host: str, ports: Mapping[str, int], advertise: str) -> None:
        max_pack_bytes = self._max_message_bytes + PACK_BYTES
        decoder = Decoder(RULES)
        for lane in Lane:
            name = lane.name.lower()
            socket = make_router(self._context, max_pack_bytes, self._keys)
            socket.ipv6 = ":" in host
            where = f"{_bracketed(host or '*')}:{ports.get(name) or '*'}"
            try:
                socket.bind(f"tcp://{where}")
            except zmq.ZMQError as error:
                raise ConfigError(f"{self.process} cannot listen on {where} ({name}): {error}") from None
            port = socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
            self.lanes[name] = f"{_bracketed(advertise)}:{port}"
            strangers = Strangers(int(port))
            on_event = partial(self._on_event, self.lanes[name], strangers)
            self._monitors.append(Monitor(socket, self._loop, _REFUSED_HERE | CHANGES, on_event))
            inlet = Inlet(
                socket,
                self._loop,
                self._admission,
                decoder,
                self._deliver,
                has_keys=self._keys is not None,
                max_pack_bytes=max_pack_bytes,
                strangers=strangers,
                counts=self.counts[lane],
                notices=self._notices,
                door=self._door,
            )
            self._inlets.append(inlet)

    def _on_event(self, address: str, strangers: Strangers, event: int, value: int) -> None:
        if event in FAILURES:
            self._notices.say(logging.WARNING, f"a connection to {address} was refused: {FAILURES[event]}")
        elif strangers.note(event, value):
            self._notices.say(
                logging.WARNING,
                f"{strangers.max_count} connections to {address} have brought no message, as many as there may be: the "
                "oldest make room (let only the nodes of the cluster reach this port)",
            )

    # the nodes of this process

    def join(self, node: NodeId, incarnation: int) -> None:
        """Speak and be heard as this one of `roles` from now on; it was another incarnation before, or none."""
        assert node in self._roles, f"{node} is none of {', '.join(self._roles)}"
        self._joined[node] = incarnation
        self._admission.forget()
        for peer in self._peers.values():
            peer.prefixes.pop(node, None)

    def attach(self, node: NodeId, deliver: Deliver) -> None:
        """Let `node` receive messages through `deliver(sender, message)`.

        Only those that have joined hear from other processes; any other is known within this one alone.
        """
        assert node not in self._nodes, f"{node} is attached twice"
        self._nodes[node] = deliver

    def detach(self, node: NodeId) -> None:
        """Messages to `node` are lost from now on."""
        self._nodes.pop(node, None)

    def _deliver(self, to: NodeId, sender: NodeId, message: Message) -> None:
        deliver = self._nodes.get(to)
        if deliver is not None:
            deliver(sender, message)

    # others

    def set_peers(self, members: Iterable[Member]) -> None:
        """Know these nodes, and no others. What was queued for one that has changed or gone is forgotten."""
        known = {member.node: member for member in members if member.node not in self._roles}
        for node, peer in list(self._peers.items()):
            member = known.get(node)
            if member is None or _who(member) != _who(peer.member):
                del self._peers[node]
                for outbox in filter(None, peer.outboxes.values()):
                    outbox.forget(set(peer.prefixes.values()))
            else:
                peer.forget_failures()
        for node, member in known.items():
            if node not in self._peers:
                self._peers[node] = _Peer(member)
        self._admission.set_peers(known.values())
        self._close_unused()

    def _close_unused(self) -> None:
        """Close connections to peers that are no longer known."""
        used = {id(outbox) for peer in self._peers.values() for outbox in peer.outboxes.values()}
        for way, outbox in list(self._outboxes.items()):
            if id(outbox) not in used:
                del self._outboxes[way]
                self._patience.forget(outbox)
                outbox.close()

    def send(self, sender: NodeId, to: NodeId, message: Any, *, can_wait: bool = False) -> None:
        """Hand over to a node of this process at once; to others with all that is sent in this turn of the loop.

        What can wait goes with the next message to the same process, or after a millisecond or two. What cannot be sent
        is lost, and counted. The message must not change any more.
        """
        deliver = self._nodes.get(to)
        if deliver is not None:
            deliver(sender, message)
            return
        rule = RULES.get(type(message))
        if rule is None:
            assert sender not in self._joined or to not in self._peers, f"{type(message).__name__} does not travel"
            return
        lane = rule.lane
        peer = self._peers.get(to)
        if can_wait and lane is Lane.APPENDS and peer is not None:
            lane = self._lane_beside(peer)
        outbox = (peer.outboxes.get(lane) or self._open(peer, lane)) if peer is not None else None
        if peer is None or outbox is None:
            self.counts[lane].dropped_count += 1
            return
        prefix = peer.prefixes.get(sender) or self._address(sender, peer)
        last = self._last
        parcel = last[1] if last is not None and last[0] is message else self._encode(message)
        if parcel.size_bytes > self._max_message_bytes:
            self.counts[lane].dropped_count += 1
            self._notices.say(
                logging.ERROR,
                f"a {type(message).__name__} to {to} is larger than {self._max_message_bytes} bytes, and was dropped",
            )
            return
        outbox.put(prefix, parcel, is_last=can_wait and rule.lane is Lane.CONTROL)
        if outbox.is_dirty:
            return
        if can_wait and lane is Lane.CONTROL:
            self._patience.hold(outbox, _PATIENCE_S)
            return
        self._hurry(outbox, lane)
        beside = peer.outboxes.get(Lane.CONTROL)
        if beside is not None and beside in self._patience:  # that process is woken anyway
            self._hurry(beside, Lane.CONTROL)

    def _hurry(self, outbox: Outbox, lane: Lane) -> None:
        """Let it be flushed at the end of this turn."""
        outbox.is_dirty = True
        self._dirty[lane].append(outbox)
        self._patience.forget(outbox)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _lane_beside(self, peer: _Peer) -> Lane:
        """The lane of a batch that can wait: with what is small and urgent, if that goes to this machine and is so
        little that the batch delays nothing, and if no batch is in front of this one on a lane of its own.
        """
        bulk = peer.outboxes.get(Lane.APPENDS)
        if bulk is not None and bulk.queued_bytes:
            return Lane.APPENDS
        urgent = peer.outboxes.get(Lane.CONTROL) or self._open(peer, Lane.CONTROL)
        is_idle = urgent is not None and urgent.has_shortcut and urgent.queued_bytes < _MOST_AHEAD_BYTES
        return Lane.CONTROL if is_idle else Lane.APPENDS

    def _address(self, sender: NodeId, peer: _Peer) -> bytes:
        """The envelope of what one of our names says to that peer."""
        incarnation = self._joined.get(sender)
        assert incarnation is not None, f"{sender} is known in this process alone, and cannot send to others"
        to = peer.member
        envelope = Envelope(self._cluster_id, sender, self._roles[sender], incarnation, to.node, to.incarnation)
        prefix = peer.prefixes[sender] = encode_envelope(envelope)
        return prefix

    def _encode(self, message: Message) -> Parcel:
        """The message as it travels. The last one is kept, since what goes to several nodes is sent in one go."""
        place, attached = encode_message(message)
        parcel = Parcel(place, attached)
        self._last = (message, parcel)
        return parcel

    def _flush(self) -> None:
        self._is_flushing = False
        for lane in _LANES:
            dirty = self._dirty[lane]
            if dirty:
                self._dirty[lane] = []
                for outbox in dirty:
                    outbox.is_dirty = False
                    outbox.flush()

    def _open(self, peer: _Peer, lane: Lane) -> Outbox | None:
        """The way to the peer, made if there is none; None, and a word in the log, if that cannot be."""
        if lane in peer.outboxes or self._is_closed:
            return None
        peer.outboxes[lane] = None
        member, name = peer.member, lane.name.lower()
        address = member.lanes.get(name, "")
        who = f"node {member.host}" if member.host else f"{member.role} {member.node}"
        detail = "" if member.host else f"incarnation {member.incarnation}, "
        what = f"{who} ({detail}{name} at {address or None})"
        server_key = ""
        if self._keys is None and member.public_key:
            self._notices.say(logging.WARNING, f"{what} is not connected to: it has a key, and this node has none")
            return None
        if self._keys is not None:
            owner = self._keys.ring.of(member.process)
            is_its_own = owner is not None and owner.may_be(member.node, member.role)
            if owner is None or not is_its_own or member.public_key not in ("", owner.public):
                self._notices.say(logging.WARNING, f"{what} is not connected to: cluster.keys has another key or none")
                return None
            server_key = owner.public
        way = (lane, address, server_key)
        outbox = self._outboxes.get(way)
        if outbox is None:
            make = partial(make_dealer, self._context, _MAX_REFUSAL_FRAME_BYTES, self._keys, server_key, self._proxy)
            try:
                outbox = Outbox(
                    make,
                    f"tcp://{address}",
                    self._loop,
                    what,
                    self._budgets_bytes[lane],
                    self.counts[lane],
                    self._notices,
                    is_near=bool(self.machine) and member.machine == self.machine,
                    lost=lambda: self.on_lost(),
                )
            except zmq.ZMQError as error:
                self._notices.say(logging.WARNING, f"{what} is not connected to: {error}")
                return None
            self._outboxes[way] = outbox
        peer.outboxes[lane] = outbox
        return outbox

    # for metrics, and the end

    def queued_bytes(self, lane: Lane) -> int:
        """What waits for all peers together."""
        return sum(outbox.queued_bytes for (at, _, _), outbox in self._outboxes.items() if at is lane)

    def close(self) -> None:
        """Close everything at once; what was not sent is lost. Repeatable."""
        if self._is_closed:
            return
        self._is_closed = True
        self._patience.close()
        self._nodes.clear()
        self._dirty = {lane: [] for lane in Lane}
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes.clear()
        self._peers.clear()
        for monitor in self._monitors:
            monitor.close()
        for inlet in self._inlets:
            inlet.close()
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        if self._door is not None:
            self._door.close()
        self._context.destroy(linger=0)


def _who(member: Member) -> tuple[object, ...]:
    return member.role, member.incarnation, member.lanes, member.machine, member.public_key, member.host


def _bracketed(host: str) -> str:
    """An IPv6 address needs brackets before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
