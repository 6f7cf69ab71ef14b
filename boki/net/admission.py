"""Who is heard: each pack's envelope is judged by what this node is, and, with keys, by what its sender has proved.

Verdicts are kept by the envelope's bytes, so that a pack costs one look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.messages import Message
from boki.net.codec import Envelope, Refusal, decode_envelope
from boki.net.keys import KeyRing, Owner
from boki.net.traffic import allowed

_MAX_KEPT: Final = 1024


class Sender(NamedTuple):
    """One who is heard, and what it may send."""

    node: NodeId
    role: Role
    kinds: frozenset[type[Message]]


class Admission:
    """The rules of one node. `ring` is None where links are plain: names and roles are then taken as they are told."""

    def __init__(self, me: Envelope, ring: KeyRing | None) -> None:
        self._me = me
        self._ring = ring
        self._incarnations: dict[NodeId, int] = {}
        self._kinds = {role: allowed(role) for role in Role}
        self._heard: dict[tuple[bytes, str], Sender] = {}

    def set_peers(self, members: Iterable[Member]) -> None:
        """Who is registered now: earlier incarnations of these are not heard any more."""
        self._incarnations = {member.node: member.incarnation for member in members}
        self._heard.clear()

    def judge(self, prefix: bytes, user: str) -> Sender:
        """Who sends packs that begin with `prefix`; `user` is the name that its key proves, "" without keys.

        `Refusal` says why it is not heard.
        """
        sender = self._heard.get((prefix, user))
        if sender is None:
            envelope = decode_envelope(prefix)
            self._check(envelope, user)
            sender = Sender(envelope.sender, envelope.role, self._kinds[envelope.role])
            if len(self._heard) >= _MAX_KEPT:
                self._heard.clear()
            self._heard[prefix, user] = sender
        return sender

    def _check(self, envelope: Envelope, user: str) -> None:
        me = self._me
        if envelope.cluster != me.cluster:
            raise Refusal(f"it is of cluster {envelope.cluster!r}, and {me.sender} is of {me.cluster!r}")
        if envelope.to != me.sender:
            raise Refusal(f"it is for {envelope.to!r}, and this is {me.sender}")
        if envelope.sender == me.sender:
            raise Refusal(f"it calls itself {me.sender}, and that is this node")
        if self._ring is not None:
            self._check_owner(envelope, self._ring.of(NodeId(user)))
        if envelope.to_incarnation != me.incarnation:
            raise Refusal(f"it is for incarnation {envelope.to_incarnation}, and {me.sender} is {me.incarnation}")
        newest = self._incarnations.get(envelope.sender, 0)
        if envelope.incarnation < newest:
            raise Refusal(f"it is of incarnation {envelope.incarnation}, and {envelope.sender} is {newest} by now")

    @staticmethod
    def _check_owner(envelope: Envelope, owner: Owner | None) -> None:
        if owner is None:
            raise Refusal("its key is not in cluster.keys any more")
        if (envelope.sender, envelope.role) != (owner.node, owner.role):
            raise Refusal(
                f"it calls itself {envelope.role} {envelope.sender!r}, and has the key of {owner.role} {owner.node}"
            )
