"""What comes in on one lane. Sizes, counts, envelope and permission are checked before a message reaches the node.

Nothing that a stranger sends raises here: it is refused, with the reason in this node's log and in an answer.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Final

import zmq

from boki.log.ids import NodeId
from boki.net.admission import Admission, Sender
from boki.net.codec import MAX_FRAMES, Decoder, Refusal, encode_refusal, split_envelope
from boki.net.local import ASK, Answer, LocalDoor
from boki.net.notices import LaneCounts, Notices
from boki.net.sockets import NOBLOCK, POLLIN, Watched
from boki.net.strangers import Strangers
from boki.protocol.messages import Message

_TURN_BYTES: Final = 1 << 20
_TURN_PACKS: Final = 64
"""So much is taken in one go; then other lanes and the node itself have their turn."""
_MAX_TOLD: Final = 1024


class Inlet:
    """Owns `socket`, a bound ROUTER. `deliver(to, sender, message)` gets each message that is taken.

    `door`: where processes of this machine may connect instead.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: AbstractEventLoop,
        admission: Admission,
        decoder: Decoder,
        deliver: Callable[[NodeId, NodeId, Message], None],
        *,
        has_keys: bool,
        max_pack_bytes: int,
        strangers: Strangers,
        counts: LaneCounts,
        notices: Notices,
        door: LocalDoor | None = None,
    ) -> None:
        self._loop = loop
        self._door = door
        self._admission = admission
        self._decoder = decoder
        self._deliver = deliver
        self._has_keys = has_keys
        self._max_pack_bytes = max_pack_bytes
        self._strangers = strangers
        self._counts = counts
        self._notices = notices
        self._told: set[tuple[bytes, str]] = set()
        self._is_closed = False
        self._watched = Watched(socket, loop, self._ready)

    def _ready(self) -> None:
        """Take what has come, in one go; what is left over after a fair share is taken in the loop's next turn."""
        left_bytes = _TURN_BYTES
        try:
            for _ in range(_TURN_PACKS):
                if left_bytes <= 0 or self._is_closed or not self._watched.events & POLLIN:
                    break
                left_bytes -= self._take()
            else:
                left_bytes = 0
        except BaseException:
            left_bytes = 0  # the descriptor gives no second sign
            raise
        finally:
            if left_bytes <= 0:
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._is_closed:
            self._ready()

    def _take(self) -> int:
        """Take one pack, and return its size in bytes."""
        receive = self._watched.socket.recv
        origin = frame = receive(NOBLOCK, False)
        frames: list[zmq.Frame] = []
        size_bytes = 0
        while frame.more:
            frame = receive(NOBLOCK, False)
            size_bytes += len(frame)
            if len(frames) <= MAX_FRAMES:
                frames.append(frame)
        self._counts.received_bytes += size_bytes
        if self._door is not None and len(frames) == 1 and frames[0].bytes == ASK:
            self._tell(origin, self._door.ticket(self._user_of(origin), self._take_near))
            return size_bytes
        try:
            if size_bytes > self._max_pack_bytes or not 0 < len(frames) <= MAX_FRAMES:
                raise Refusal(f"{len(frames)} frames of {size_bytes} bytes, over the limit or none at all")
            sender, messages = self._judge(
                frames[0].buffer, [frame.bytes for frame in frames[1:]], self._user_of(origin)
            )
        except Refusal as refusal:
            who = _property(origin, "Peer-Address") or "a stranger"
            self._refuse(who, origin.bytes, str(refusal), partial(self._tell, origin))
            return size_bytes
        if self._strangers.descriptors:
            self._strangers.know(origin)
        self._hand_over(sender, messages)
        return size_bytes

    def _take_near(self, frames: list[bytes], user: str, answer: Answer) -> None:
        """Take a pack of a process of this machine, which came with a ticket of `user`."""
        self._counts.received_bytes += sum(map(len, frames))
        try:
            sender, messages = self._judge(frames[0], frames[1:], user)
        except Refusal as refusal:
            self._refuse(f"{user or 'a process'} of this machine", user.encode(), str(refusal), answer)
            return
        self._hand_over(sender, messages)

    def _judge(self, first: bytes | memoryview, others: list[bytes], user: str) -> tuple[Sender, list[Message]]:
        """Who sends a pack, and its messages. `Refusal` says why it is not taken."""
        prefix, body = split_envelope(first)
        sender = self._admission.judge(prefix, user)
        messages = self._decoder.decode(body, others)
        if not sender.kinds.issuperset(map(type, messages)):
            kinds = sorted({type(message).__name__ for message in messages} - {k.__name__ for k in sender.kinds})
            raise Refusal(f"{sender.role} {sender.node} may not send {', '.join(kinds)}")
        return sender, messages

    def _hand_over(self, sender: Sender, messages: list[Message]) -> None:
        self._counts.received_count += len(messages)
        for message in messages:
            self._deliver(sender.to, sender.node, message)

    def _user_of(self, frame: zmq.Frame) -> str:
        """The name of the node that has proved to hold its key, as the doorkeeper answered."""
        return _property(frame, "User-Id") if self._has_keys else ""

    def _refuse(self, who: str, origin: bytes, reason: str, answer: Answer) -> None:
        self._counts.refused_count += 1
        self._notices.say(logging.WARNING, f"refused what {who} sent: {reason}")
        to = (origin, reason)
        if to in self._told:
            return
        if len(self._told) >= _MAX_TOLD:
            self._told.clear()
        self._told.add(to)
        if not answer(encode_refusal(reason)):
            self._told.discard(to)  # it takes nothing now; its next message brings the next try

    def _tell(self, origin: zmq.Frame, frame: bytes) -> bool:
        """Answer on the connection that a frame came on. False if it takes nothing now."""
        try:
            self._watched.socket.send_multipart([origin.bytes, frame], NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Take nothing more."""
        self._is_closed = True
        self._watched.close()


def _property(frame: zmq.Frame, name: str) -> str:
    """What ZeroMQ knows of a frame's connection; "" if it does not."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""
