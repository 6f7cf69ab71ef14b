"""The binary endpoint: a log operation and its answer as msgpack, for `boki.Client`.

A client of this version and a worker speak the same operations, and what a client sends is held to the same rules. The
answer has status 200 also if the operation failed: the failure is the answer. Another status means that the request
never reached the log.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import msgspec
from aiohttp.web import BaseRequest, Response

from boki.api.http.exchange import LOG_CONTENT_TYPE, MAX_TIMEOUT_S, MAX_WAIT_S
from boki.errors import BokiError, InvalidArgument
from boki.faces import Route
from boki.gateway.server.http.answers import Repeatable
from boki.gateway.server.http.connections import read_body, while_connected
from boki.gateway.server.http.log_access import LogDoor
from boki.gateway.server.http.openapi_parts import Json, operation_of
from boki.log.checks import check_request
from boki.log.limits import KIB
from boki.log.operations import Answer, Failure, Operation, Read, Reply, Request

_ENVELOPE_BYTES: Final = 64 * KIB
"""What a request may need beside the chunk of an append: positions, names, tags."""
_ANSWER_MARGIN_US: Final = 100_000

_CONTENT: Final[Json] = {LOG_CONTENT_TYPE: {}}
PATHS: Final = {
    "/logbook": {
        "post": operation_of("carryOut", "One log operation as msgpack, for boki.Client", [], _CONTENT, body=_CONTENT)
    }
}
"""What the OpenAPI document says of it."""

_decoder: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_encode: Final = msgspec.msgpack.Encoder(enc_hook=str).encode


class BinaryEndpoint:
    """The handler of `POST /logbook`."""

    def __init__(self, door: LogDoor) -> None:
        self._door = door
        self._limits = door.config.limits
        self._max_bytes = self._limits.request_bytes + _ENVELOPE_BYTES

    def routes(self) -> list[Route]:
        """What is answered here."""
        return [Route("POST", "/logbook", self.carry_out)]

    async def carry_out(self, request: BaseRequest) -> Response:
        """Carry out one operation."""
        if request.headers.get("Content-Type") != LOG_CONTENT_TYPE:
            raise InvalidArgument(
                f"this path takes {LOG_CONTENT_TYPE} only; append to /logbook/BOOK/append", field="Content-Type"
            )
        asked = decode_request(await read_body(request, self._max_bytes, self._door.config.timeouts))
        is_poll = isinstance(asked.operation, Read) and asked.operation.wait_us > 0
        with self._door.admitted(waits=is_poll):
            positions = dict(asked.positions)
            answer: Answer
            try:
                self._door.check_positions(positions)
                check_request(asked.operation, self._limits)
                operation = _with_wait_bounded(asked.operation, asked.timeout_us)
                with while_connected(request) if is_poll else nullcontext():
                    answer = await self._door.request(operation, positions, asked.timeout_us / 1e6)
            except BokiError as error:
                answer = Failure.of(error)
        body = _encode(Reply(asked.id, positions, answer))
        return Repeatable(body=body, headers={"Content-Type": LOG_CONTENT_TYPE})  # an answer to an append is small


def decode_request(body: bytes) -> Request:
    """The request, if these are its bytes and its numbers make sense."""
    try:
        asked = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is not a request of this version: {error}", field="body") from None
    if not 0 < asked.timeout_us <= MAX_TIMEOUT_S * 1e6:
        raise InvalidArgument(
            f"timeout_us must be above 0 and at most a day, not {asked.timeout_us}", field="timeout_us"
        )
    return asked


def _with_wait_bounded(operation: Operation, timeout_us: int) -> Operation:
    """A read that waits ends before its caller gives up, so that an empty answer is an answer."""
    if not isinstance(operation, Read) or not operation.wait_us:
        return operation
    most = min(int(MAX_WAIT_S * 1e6), max(timeout_us - _ANSWER_MARGIN_US, timeout_us // 2))
    return msgspec.structs.replace(operation, wait_us=min(operation.wait_us, most))
