"""Who is heard: each pack's envelope is judged by what this node is, and, with keys, by what its sender has proved.

Verdicts are kept by the envelope's bytes, so that a pack costs one look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.net.codec import Envelope, Refusal, decode_envelope
from boki.net.keys import KeyRing, Owner
from boki.net.traffic import allowed
from boki.protocol.messages import Message

_MAX_KEPT: Final = 1024


class Sender(NamedTuple):
    """A node that is heard, what it may send, and which of the names of this process it speaks to."""

    node: NodeId
    role: Role
    kinds: frozenset[type[Message]]
    to: NodeId


class Admission:
    """The rules of one process. `ring` is None where links are plain: names and roles are then taken as they are told.

    `joined`: the names that this process plays now, with their incarnations; say `forget` after each change.
    """

    def __init__(self, cluster: str, process: str, joined: Mapping[NodeId, int], ring: KeyRing | None) -> None:
        self._cluster = cluster
        self._process = process
        self._joined = joined
        self._ring = ring
        self._incarnations: dict[NodeId, int] = {}
        self._kinds = {role: allowed(role) for role in Role}
        self._heard: dict[tuple[bytes, str], Sender] = {}

    def set_peers(self, members: Iterable[Member]) -> None:
        """Who is registered now: earlier incarnations of these are not heard any more."""
        self._incarnations = {member.node: member.incarnation for member in members}
        self.forget()

    def forget(self) -> None:
        """Judge everybody again: what this process plays has changed."""
        self._heard.clear()

    def judge(self, prefix: bytes, user: str) -> Sender:
        """Who sends packs that begin with `prefix`; `user` is the name that its key proves, "" without keys.

        `Refusal` says why it is not heard.
        """
        sender = self._heard.get((prefix, user))
        if sender is None:
            envelope = decode_envelope(prefix)
            self._check(envelope, user)
            sender = Sender(envelope.sender, envelope.role, self._kinds[envelope.role], envelope.to)
            if len(self._heard) >= _MAX_KEPT:
                self._heard.clear()
            self._heard[prefix, user] = sender
        return sender

    def _check(self, envelope: Envelope, user: str) -> None:
        me = envelope.to
        if envelope.cluster != self._cluster:
            raise Refusal(f"it is of cluster {envelope.cluster!r}, and {self._process} is of {self._cluster!r}")
        if me not in self._joined:
            raise Refusal(f"it is for {me!r}, and this is {self._process}")
        if envelope.sender in self._joined:
            raise Refusal(f"it calls itself {envelope.sender}, and that is this node")
        if self._ring is not None:
            self._check_owner(envelope, self._ring.of(NodeId(user)))
        if envelope.to_incarnation != self._joined[me]:
            raise Refusal(f"it is for incarnation {envelope.to_incarnation}, and {me} is {self._joined[me]}")
        newest = self._incarnations.get(envelope.sender, 0)
        if envelope.incarnation < newest:
            raise Refusal(f"it is of incarnation {envelope.incarnation}, and {envelope.sender} is {newest} by now")

    @staticmethod
    def _check_owner(envelope: Envelope, owner: Owner | None) -> None:
        if owner is None:
            raise Refusal("its key is not in cluster.keys any more")
        if not owner.may_be(envelope.sender, envelope.role):
            raise Refusal(
                f"it calls itself {envelope.role} {envelope.sender!r}, and has the key of {owner.role} {owner.node}"
            )
