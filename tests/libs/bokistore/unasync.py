"""The plain half of the store's face, made from the async one: `python -m tests.libs.bokistore.unasync` writes it."""

from __future__ import annotations

from pathlib import Path

import boki.libs.bokistore

FOLDER = Path(boki.libs.bokistore.__file__).parent
REPLACED = [
    ("async def ", "def "),
    ("async with", "with"),
    ("async for", "for"),
    ("await asyncio.sleep(", "sleep("),
    ("await ", ""),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("AsyncGenerator, Awaitable, Callable, Iterable", "Callable, Iterable, Iterator"),
    ("AsyncGenerator[Version, None]", "Iterator[Version]"),
    ("Awaitable[R]", "R"),
    ("steps.run(", "steps.run_blocking("),
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
            "Change that one, and run `python -m tests.libs.bokistore.unasync`.\n"
        ),
    ),
]


TWINS = {
    "store.py": "blocking.py",
    "collections.py": "collections_blocking.py",
    "replicas.py": "replicas_blocking.py",
    "way.py": "way_blocking.py",
}


def plain_half(name: str) -> str:
    """The text of the twin of that file."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    for old, new in REPLACED:
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    for name, twin in TWINS.items():
        (FOLDER / twin).write_text(plain_half(name), encoding="utf-8")
