"""`boki invoke`: call a function and print its result, or log a call and print its id.

The payload is sent as it was typed: what the function takes decides whether it is read as JSON or as text.
"""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from boki.api.http.response import Response
from boki.api.payloads.values import is_json
from boki.cli.connection import Token, Url, connect, connect_port
from boki.cli.help import examples
from boki.cli.terminal import errors, results
from boki.errors import InvalidArgument, NoSuchFunction
from boki.log.checks import check_seconds
from boki.protocol.calls import Encoding, FunctionInfo
from boki.retry import Retry

LISTED = 8
"""The gateway names all functions if there are no more than this."""

if TYPE_CHECKING:
    from boki.client import BlockingClient


@examples(
    "boki invoke greet Ada",
    """boki invoke place-order '{"item": "tea", "count": 2}' --key order-17""",
    "boki invoke square -- -3",
    "boki invoke report --async --delay-s 60",
    """boki invoke charge 42 --key order-17 --retry '{"attempts": 5}'""",
)
def command(
    name: Annotated[str, typer.Argument(help="The function.", show_default=False)],
    payload: Annotated[
        str | None,
        typer.Argument(help="JSON or text, as the function takes it; - reads it from stdin.", show_default=False),
    ] = None,
    book: Annotated[str | None, typer.Option(help="Run it with this LogBook instead of its own.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key runs it once.")] = None,
    is_async: Annotated[bool, typer.Option("--async", help="Log the call, print its id, do not wait.")] = False,
    retry: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="With --key or --async: when it runs again, as fields of `boki.Retry`."),
    ] = None,
    delay_s: Annotated[float, typer.Option(help="With --async: run it after this many seconds.")] = 0.0,
    timeout_s: Annotated[float | None, typer.Option(help="Give up after this many seconds.")] = None,
    url: Url = "",
    token: Token = "",
) -> None:
    """Call a function and print its result.

    Text and bytes are printed as they are, everything else as JSON, and a stream as it
    arrives. A payload that begins with a dash goes behind `--`.
    """
    if delay_s and not is_async:
        raise typer.BadParameter("a delay needs --async", param_hint="--delay-s")
    if retry is not None and key is None and not is_async:
        raise typer.BadParameter("only logged calls run again: it needs --key or --async", param_hint="--retry")
    policy = _policy(retry)
    if timeout_s is not None:
        check_seconds(timeout_s, "timeout_s", positive=True)
    check_seconds(delay_s, "delay_s", positive=False)
    with connect(url, token) as client:
        known = {info.name: info for info in client.functions()}
        info = known.get(name)
        if payload is None and info is not None and info.needs_text:
            raise _lacks_payload(info)
        encoding = info.payload_encoding if info is not None else "text"
        sent = () if payload is None else (as_value(_content(payload), encoding),)
        try:
            if is_async:
                invocation = client.invoke_later(name, *sent, book=book, key=key, delay_s=delay_s, retry=policy)
                results().print(invocation)
                wait_s = math.ceil(delay_s) + 60
                hint = f"boki calls result {invocation} --wait-s {wait_s}{f' --url {url}' if url else ''}"
                errors().print(f"its result: {hint}", style="dim", markup=False)
                return
            if info is not None and info.streams and key is None:
                from boki.cli.streams import print_stream

                print_stream(connect_port(url, token), name, *sent, book=book, timeout_s=timeout_s)
                return
            answer = client.invoke(name, *sent, book=book, key=key, timeout_s=timeout_s, retry=policy)
        except NoSuchFunction as error:
            raise _unknown(error, sorted(known), client) from None
    print_answer(answer)


def print_answer(answer: Any) -> None:
    """Print a result: text and bytes as they are, everything else as JSON."""
    if isinstance(answer, Response):
        told = "".join(f"{name}: {value}\n" for name, value in answer.header_list)
        errors().print(f"status {answer.status}\n{told}", end="", style="dim", markup=False)
        answer = "" if answer.body is None else answer.body
    if isinstance(answer, bytes):
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    elif isinstance(answer, str):
        print(answer)
    else:
        indent = 2 if sys.stdout.isatty() else None
        print(json.dumps(answer, ensure_ascii=False, indent=indent))


def as_value(content: bytes, encoding: Encoding) -> Any:
    """What was typed, as a function takes it: its bytes, its text, or its JSON (text, if it is not JSON)."""
    if encoding == "bytes":
        return content
    if encoding == "json" and is_json(content):
        return msgspec.Raw(content)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _policy(text: str | None) -> Retry | None:
    """The policy that was typed."""
    if text is None:
        return None
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidArgument(
            f'retry must be a JSON object such as {{"attempts": 3, "first_s": 1}}, not {text[:60]!r}', field="retry"
        ) from None
    return Retry(**fields)


def _lacks_payload(info: FunctionInfo) -> InvalidArgument:
    """The function would run with an empty payload, which was hardly meant."""
    kind = "str" if info.payload_encoding == "text" else "bytes"
    return InvalidArgument(
        f"{info.name} needs a payload ({kind}): write `boki invoke {info.name} Ada`, or - to read it from stdin; '' is "
        "an empty one",
        field="payload",
    )


def _unknown(error: NoSuchFunction, names: list[str], client: BlockingClient) -> NoSuchFunction:
    """The error in the words of the command line, and the modules that cannot be loaded: it may be in one of them."""
    message = error.message
    if not error.details.get("close") and len(names) > LISTED:
        message = f"{message.partition(';')[0]}; `boki functions` lists the {len(names)} that there are"
    broken = [module for module in client.status().get("modules", ()) if module.get("error")]
    told = [f"module {module['module']} is broken: {module['error'].rstrip()}" for module in broken]
    return NoSuchFunction("\n".join([message, *told]), **error.details)


def _content(payload: str) -> bytes:
    """What was typed; from stdin without the line end that `echo` puts there."""
    return sys.stdin.buffer.read().removesuffix(b"\n") if payload == "-" else payload.encode(errors="surrogateescape")
