"""A process that has imported what all roles need, and forks them: eleven imports of half a second each become one.

The forked role belongs to the supervisor and not to the zygote: whoever forked it ends at once, so that the kernel
hands it to the supervisor, which is its session's reaper. So a zygote may be killed, and nobody else notices; and a
role ends with the supervisor. Linux only, where all of this is; elsewhere roles are started as programs.

One JSON object a line: orders come in, the outcome of them goes out. The end of the input ends the zygote.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from boki.host.private_files import open_private
from boki.worker.confine import close_all_but, die_with_parent

_ADOPTION_POLL_S: Final = 0.0005
_ARGUMENTS_START: Final = 45  # fields 48 and 49 of `man 5 proc`, counted behind the name
_PADDING: Final = "." * 200
_FAILED: Final = 1
PROGRAM: Final = ("boki.launch.up.zygote",)
"""The module that is run, and its own arguments."""
_NODE: Final = "boki.node.process"
_IMPORTED: Final = (_NODE, "boki.node.gateway", "uvloop")


class Order(msgspec.Struct, frozen=True):
    """Fork a process that runs `boki` with these arguments and writes to that log. → `Forked`"""

    node: str
    arguments: tuple[str, ...]
    log: str


class Forked(msgspec.Struct, frozen=True):
    """It runs; or (`pid` 0) there was an error."""

    node: str
    pid: int
    error: str = ""


def command(program: Sequence[str], link_fd: int, supervisor_pid: int) -> list[str]:
    """What starts a zygote, `PROGRAM` or one that prepares something before it calls `main`, which talks over that
    inherited socket. The padding makes room for the roles' titles.

    `-P`: a module of the folder that it is started in must not be taken for one of Python's.
    """
    return [sys.executable, "-P", "-m", *program, str(link_fd), str(supervisor_pid), _PADDING]


def main() -> None:
    """Import everything, then fork on demand until the supervisor is gone."""
    link_fd, supervisor_pid = map(int, sys.argv[-3:-1])
    link = socket.socket(fileno=link_fd)
    for module in _IMPORTED:
        importlib.import_module(module)

    gc.collect()
    gc.freeze()  # what is shared is not copied by the collector's marks
    with link, link.makefile("rb") as orders:
        for line in orders:
            reply = _fork(msgspec.json.decode(line, type=Order), supervisor_pid)
            link.sendall(msgspec.json.encode(reply) + b"\n")


def _fork(order: Order, supervisor_pid: int) -> Forked:
    reader, writer = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return Forked(order.node, 0, str(error))
    if middle == 0:
        _be_middle(order, supervisor_pid, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        said = answers.read().decode()
    os.waitpid(middle, 0)
    return Forked(order.node, int(said)) if said.isdigit() else Forked(order.node, 0, said or "the fork has failed")


def _be_middle(order: Order, supervisor_pid: int, writer: int) -> None:
    """Fork the role, tell its number, and be gone."""
    middle = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.write(writer, str(error).encode())
        os._exit(_FAILED)
    if pid:
        os.write(writer, str(pid).encode())
        os._exit(0)
    exit_code = _FAILED
    try:
        _be_role(order, supervisor_pid, middle)
        exit_code = 0
    except SystemExit as ended:
        exit_code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends with it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _be_role(order: Order, supervisor_pid: int, middle: int) -> None:
    log = open_private(Path(order.log), os.O_WRONLY | os.O_APPEND)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    close_all_but(())
    os.setsid()
    while (parent := os.getppid()) != supervisor_pid:
        if parent != middle:
            os._exit(_FAILED)  # the supervisor is gone, so this process has got another parent
        time.sleep(_ADOPTION_POLL_S)
    die_with_parent(supervisor_pid)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["boki", *order.arguments]
    set_title(" ".join(sys.argv))
    sys.exit(importlib.import_module(_NODE).main(order.arguments))


def set_title(text: str) -> None:
    """Show `text` as this process's command line, as far as there is room. Does nothing where that is not possible."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        start, stop = map(int, fields[_ARGUMENTS_START : _ARGUMENTS_START + 2])
    except (OSError, ValueError):
        return
    if start and stop > start:
        ctypes.memmove(start, text.encode()[: stop - start - 1].ljust(stop - start, b"\0"), stop - start)


if __name__ == "__main__":
    main()
