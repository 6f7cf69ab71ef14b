"""The blocking halves of what has two: `python -m tests.unasync` makes them from the async ones.

Of the store and of the clients these are whole files; of LogBook and Context the classes below a mark: what
stands above it is written by hand. Of the handles of workflows they run the async ones.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import boki

BOKI = Path(boki.__file__).parent
FOLDER = BOKI / "libs/bokistore"
MARK = "# Below: made from `{}` by `python -m tests.unasync`.\n\n\n"
PLAIN = [
    ("async def ", "def "),
    ("async with", "with"),
    ("async for", "for"),
    ("__aiter__", "__iter__"),
    ("AsyncIterator", "Iterator"),
]
REPLACED = [
    *PLAIN[:3],
    ("await asyncio.sleep(", "sleep("),
    ("await ", ""),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("AsyncGenerator, Awaitable, Callable, Iterable", "Callable, Iterable, Iterator"),
    ("AsyncGenerator[Version, None]", "Iterator[Version]"),
    ("Awaitable[R]", "R"),
    ("steps.run(work, self.logbook)", "steps.run_blocking(work, self.logbook, lock=self._memory.lock)"),
    ("save_beside", "save_now"),
    ("memory import Memory", "memory import BlockingMemory"),
    ("from boki import LogBook\n", "from boki.blocking import LogBook\n"),
    ("boki.libs.bokistore.way import", "boki.libs.bokistore.way_blocking import"),
    ("boki.libs.bokistore.replicas import", "boki.libs.bokistore.replicas_blocking import"),
    (
        "for `async` functions. The plain twin is `replicas_blocking`.",
        "for plain functions: made from `replicas`.",
    ),
    ("boki.libs.bokistore.collections import", "boki.libs.bokistore.collections_blocking import"),
    (
        "for `async` functions. The plain twin is `way_blocking`.",
        "for plain functions: made from `way`.",
    ),
    (
        '"""Collections of `async` functions: maps and sets. The plain twin is `collections_blocking`.',
        '"""Collections of plain functions: made from `collections`.',
    ),
    ("shared(Memory)", "shared(BlockingMemory)"),
    ("_memory: Memory", "_memory: BlockingMemory"),
    ("import asyncio\nimport functools", "import functools"),
    ("from random import Random\n", "from random import Random\nfrom time import sleep\n"),
    (
        "from boki import Context, InvalidArgument, LogBook, NewRecord, Trimmed\n",
        "from boki import InvalidArgument, NewRecord, Trimmed\n",
    ),
    (
        "from boki.libs.bokistore import saving\n",
        "from boki.blocking import Context, LogBook\nfrom boki.libs.bokistore import saving\n",
    ),
    ("beside the call", "before it returns"),
    (
        "            for version in self.way.run(history.page()):\n                yield version\n",
        "            yield from self.way.run(history.page())\n",
    ),
    (
        '"""The store of `async` functions: objects, transactions, and the past. Its plain twin is `blocking`.\n',
        (
            '"""The store of plain functions: `boki.libs.bokistore.store` without `await`, and made from it.\n\n'
            "Change that one, and run `python -m tests.unasync`.\n"
        ),
    ),
]


TWINS = {
    "store.py": "blocking.py",
    "collections.py": "collections_blocking.py",
    "replicas.py": "replicas_blocking.py",
    "way.py": "way_blocking.py",
}


CLASSES = {
    "api/logbook.py": "api/blocking_logbook.py",
    "api/context.py": "api/blocking_context.py",
}
CLASSES_REPLACED = [
    (
        "(await self._access.append(self.name, group, timeout_s))[0]",
        "self._access.append(self.name, group, timeout_s)[0]",
    ),
    (
        "            for record in page.records:\n                yield record\n",
        "            yield from page.records\n",
    ),
    ("log: LogPort, appends: AppendGatherer, calls: CallPort", "log: BlockingLogPort, calls: BlockingCallPort"),
    ("LogSession(log, appends, state.caller)", "LogSession(log, state.caller)"),
    *PLAIN,
    ("await ", ""),
]


FLOW_FOLDER = BOKI / "libs/bokiflow"
FLOW_TWINS = {
    "client.py": "client_blocking.py",
    "client_schedules.py": "client_schedules_blocking.py",
    "storing.py": "storing_blocking.py",
}
FLOW_REPLACED = [
    *PLAIN[:2],
    ("await ", ""),
    ("for `async` code. The plain twin is `client_blocking`.", "for plain code: made from `client`."),
    (
        "for `async` code. The plain twin is `client_schedules_blocking`.",
        "for plain code: made from `client_schedules`.",
    ),
    ("bokiflow.client_schedules import", "bokiflow.client_schedules_blocking import"),
    ("from boki import Client, Dead", "from boki import BlockingClient, Dead"),
    ("from boki import Client\n", "from boki import BlockingClient\n"),
    ('with Client("', 'with BlockingClient("'),
    ("client: Client", "client: BlockingClient"),
    ("FlowClient", "BlockingFlowClient"),
    ("FlowHandle", "BlockingFlowHandle"),
    ("FlowSchedule", "BlockingFlowSchedule"),
    (
        "of `async def` workflows: objects and records of the workflow's own LogBook.",
        "of `def` workflows: made from `storing`.",
    ),
    ("import Awaitable, Callable, Iterable\n", "import Callable, Iterable\n"),
    ("Awaitable[R]", "R"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("    WAY,\n", "    BLOCKING_WAY,\n"),
    ("import ConflictError, StoredObject\n", "import ConflictError\n"),
    (
        "from boki.libs.bokistore.accesses import Access\n",
        "from boki.libs.bokistore.accesses import Access\nfrom boki.libs.bokistore.blocking import StoredObject\n",
    ),
    ("boki.libs.bokistore.way import", "boki.libs.bokistore.way_blocking import"),
    ("boki.libs.bokistore.StoredObject", "boki.libs.bokistore.blocking.StoredObject"),
    (" WAY.", " BLOCKING_WAY."),
    ("(WAY.", "(BLOCKING_WAY."),
    ('"Way", WAY)', '"Way", BLOCKING_WAY)'),
]


HANDLES = {
    "handles.py": "Handle",
    "schedules/handle.py": "Schedule",
}
HANDLES_TWIN = "handles_blocking.py"
HANDLES_MARK = MARK.format("boki.libs.bokiflow.handles` and `schedules.handle")
HANDLES_OWN = ("__init__", "__repr__", "know", "create")
"""What `Workflow` calls, and what the twins have by hand."""


CLIENT = ("client/client.py", "client/blocking_client.py")
CLIENT_REPLACED = [
    (
        "The client of `async` code. Its plain twin is `blocking_client`.",
        "The client of plain code: made from `client`.",
    ),
    (", after what libraries still do beside the calls: at most 10 s.", "."),
    (
        "        try:\n            await self._access.come_to_rest()\n        finally:\n    ",
        "",
    ),
    ("append_gatherer import AppendGatherer", "blocking_logbook import LogBook, LogSession"),
    ("from boki.api.logbook import LogBook, LogSession\n", ""),
    ("from boki.api.http.port import HttpPort\n", ""),
    ("http import pages\n", "http import pages\nfrom boki.api.http.blocking_port import BlockingHttpPort\n"),
    ("= HttpPort(", "= BlockingHttpPort("),
    ("AppendGatherer(self._port, limits), ", ""),
    ("merge_positions(", "self._port.raise_positions("),
    ("format_positions, merge_positions, ", "format_positions, "),
    ("class Client:", "class BlockingClient:"),
    ("for `async` code. Use it in `async with`,", "for plain code; any thread may use it. Use it in `with`,"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    *PLAIN[:1],
    ("await ", ""),
]


def blocking_client() -> str:
    """The text of the client of plain code."""
    return replaced((BOKI / CLIENT[0]).read_text(encoding="utf-8"), CLIENT_REPLACED)


def plain_client(name: str) -> str:
    """The text of the twin of that file of the workflows."""
    return replaced((FLOW_FOLDER / name).read_text(encoding="utf-8"), FLOW_REPLACED)


def plain_handles() -> str:
    """The text of the handles of plain code: what is written by hand, and classes that run the async ones."""
    by_hand, found, _ = (FLOW_FOLDER / HANDLES_TWIN).read_text(encoding="utf-8").partition(HANDLES_MARK)
    assert found, f"{HANDLES_TWIN} lacks the line {HANDLES_MARK.strip()!r}"
    classes = [running((FLOW_FOLDER / name).read_text(encoding="utf-8"), kind) for name, kind in HANDLES.items()]
    return by_hand + HANDLES_MARK + "\n\n".join(classes)


def running(text: str, kind: str) -> str:
    """The twin of a class, of whose methods each runs that of the async class."""
    lines = text.splitlines()
    found = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == kind)
    is_generic = bool(found.bases)
    parts = [
        f"class {kind}(_Blocking{kind}{'[R]' if is_generic else ''}):\n    {lines[found.body[0].lineno - 1].strip()}\n"
    ]
    for method in found.body:
        if not isinstance(method, ast.AsyncFunctionDef) or method.name.startswith("_") or method.name in HANDLES_OWN:
            continue
        said = method.body[0]
        assert said.end_lineno is not None, "it was parsed"
        head = "\n".join(lines[method.lineno - 1 : said.end_lineno])
        given = [argument.arg for argument in method.args.args[1:]]
        given += [f"{argument.arg}={argument.arg}" for argument in method.args.kwonlyargs]
        run = f"self._run(lambda found: found.{method.name}({', '.join(given)}))"
        returns = ast.unparse(method.returns) if method.returns is not None else "None"
        if returns == f"{kind}[R]":
            run = f"self._like({run})"
        parts.append(replaced(head, PLAIN[:1]) + f"\n        {'' if returns == 'None' else 'return '}{run}\n")
    return "\n".join(parts)


def replaced(text: str, pairs: list[tuple[str, str]]) -> str:
    """The text with each of these replaced, in their order."""
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def plain_half(name: str) -> str:
    """The text of the twin of that file of the store."""
    return replaced((FOLDER / name).read_text(encoding="utf-8"), REPLACED)


def plain_classes(name: str) -> str:
    """The text of the twin of that file: what is written by hand, and the classes behind the mark made again."""
    text = (BOKI / name).read_text(encoding="utf-8")
    mark = MARK.format("boki." + name.removesuffix(".py").replace("/", "."))
    by_hand, found, _ = (BOKI / CLASSES[name]).read_text(encoding="utf-8").partition(mark)
    assert found, f"{CLASSES[name]} lacks the line {mark.strip()!r}"
    begin = re.search(r"^class (LogBook|Context)\b", text, re.MULTILINE)
    assert begin, name
    end = re.compile(r"^def ", re.MULTILINE).search(text, begin.start())
    classes = text[begin.start() : end.start() if end else None]
    return by_hand + mark + replaced(classes, CLASSES_REPLACED).rstrip() + "\n"


if __name__ == "__main__":
    for name, twin in TWINS.items():
        (FOLDER / twin).write_text(plain_half(name), encoding="utf-8")
    for name, twin in FLOW_TWINS.items():
        (FLOW_FOLDER / twin).write_text(plain_client(name), encoding="utf-8")
    (FLOW_FOLDER / HANDLES_TWIN).write_text(plain_handles(), encoding="utf-8")
    (BOKI / CLIENT[1]).write_text(blocking_client(), encoding="utf-8")
    for name, twin in CLASSES.items():
        (BOKI / twin).write_text(plain_classes(name), encoding="utf-8")
