"""A queue shard as slowly and plainly as it can be said: one list, and every question goes through all of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Message:
    pos: int
    due_us: int
    expires_us: int
    key: str
    status: str = "ready"  # ready, leased, done, dead, expired
    token: int = 0
    deliveries: int = 0

    @property
    def keeps_its_key(self) -> bool:
        return self.status == "leased" or (self.status == "ready" and self.deliveries > 0)


@dataclass
class NaiveShard:
    """One group that began with the first message."""

    max_deliveries: int
    messages: list[Message] = field(default_factory=list)

    def push(self, now_us: int, keys: list[str], count: int, delay_us: int, ttl_us: int) -> None:
        due_us, expires_us = (now_us + span if span else 0 for span in (delay_us, ttl_us))
        for index in range(count):
            self.messages.append(Message(len(self.messages), due_us, expires_us, keys[index] if keys else ""))

    def take(self, now_us: int, count: int, lease_us: int, token: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count and (message := self._next(now_us)) is not None:
            if message.expires_us and message.expires_us <= now_us:
                message.status = "expired"
                continue
            message.deliveries += 1
            message.token = token
            message.status = "leased" if lease_us else "done"
            message.due_us = now_us + lease_us
            taken.append(message.pos)
        return taken

    def _next(self, now_us: int) -> Message | None:
        """The first that is ready, and that no other message of its key keeps back, unless it is too old anyway."""
        for message in self.messages:
            is_late = message.expires_us and message.expires_us <= now_us
            if message.status == "ready" and message.due_us <= now_us and (is_late or not self._is_kept_back(message)):
                return message
        return None

    def _is_kept_back(self, message: Message) -> bool:
        return bool(message.key) and any(
            other.keeps_its_key and other.key == message.key and other is not message for other in self.messages
        )

    def held(self, pos: int, token: int, now_us: int) -> Message | None:
        message = self.messages[pos] if pos < len(self.messages) else None
        if message is None or message.status != "leased" or message.token != token or message.due_us <= now_us:
            return None
        return message

    def ack(self, pos: int, token: int, now_us: int) -> bool:
        message = self.held(pos, token, now_us)
        if message is not None:
            message.status = "done"
        return message is not None

    def nack(self, pos: int, token: int, now_us: int, delay_us: int) -> bool:
        message = self.held(pos, token, now_us)
        if message is not None:
            self._failed(message, now_us + delay_us)
        return message is not None

    def _failed(self, message: Message, due_us: int) -> None:
        message.status = "dead" if self.max_deliveries and message.deliveries >= self.max_deliveries else "ready"
        message.due_us = due_us

    def release(self, pos: int, token: int, now_us: int) -> bool:
        message = self.held(pos, token, now_us)
        if message is not None:
            message.status, message.due_us = "ready", 0
            message.deliveries -= 1
        return message is not None

    def extend(self, pos: int, token: int, now_us: int, lease_us: int) -> bool:
        message = self.held(pos, token, now_us)
        if message is not None:
            message.due_us = now_us + lease_us
        return message is not None

    def fence(self, now_us: int) -> list[tuple[int, int]]:
        """Take the leases away that have run out: (position, token)."""
        overdue = [message for message in self.messages if message.status == "leased" and message.due_us <= now_us]
        for message in overdue:
            self._failed(message, 0)
        return [(message.pos, message.token) for message in overdue]

    def redrive(self, pos: int) -> bool:
        message = self.messages[pos] if pos < len(self.messages) else None
        if message is None or message.status != "dead":
            return False
        message.status, message.due_us, message.deliveries = "ready", 0, 0
        return True
