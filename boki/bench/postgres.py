"""A PostgreSQL server over a temporary folder, for a peer that keeps its state in one.

The cluster is made by `initdb` with the defaults, so that each commit is synced. It listens on a Unix socket in its
folder alone, and trusts who can enter that folder.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from boki.bench.peer_servers import process
from boki.errors import ConfigError, Unavailable

_DEBIAN_FOLDER: Final = Path("/usr/lib/postgresql")
_PROGRAMS: Final = ("postgres", "initdb")
_PORT: Final = 5432
"""Of the socket's name. Each server has a folder of its own."""
_START_S: Final = 60.0
_POLL_S: Final = 0.1
_SYSTEM_USERS: Final = ("postgres", "nobody")


def programs() -> Path | None:
    """The folder of the server's programs: that of `postgres` on PATH, or of the newest version where Debian has them.

    None: it is not installed.
    """
    on_path = shutil.which("postgres")
    folders = [] if on_path is None else [Path(on_path).resolve().parent]
    folders += sorted(_DEBIAN_FOLDER.glob("*/bin"), key=lambda one: _version(one.parent.name), reverse=True)
    return next((one for one in folders if all(os.access(one / name, os.X_OK) for name in _PROGRAMS)), None)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """A server with its data below `folder`, once it answers: the URL of its databases, with `{name}` for the name.

    PostgreSQL refuses to run as root: root hands the folder to the user `postgres`, or to `nobody`, and runs it as
    that user. `ConfigError`: that user cannot enter the folder.
    """
    found = programs()
    assert found is not None, "it is installed"
    folder = folder.resolve()
    user = _user_of(folder)
    data, options = str(folder / "data"), _as(user) | {"cwd": folder}
    make = [str(found / "initdb"), "-D", data, "-U", "postgres", "--auth=trust", "--no-locale", "--encoding=UTF8"]
    made = subprocess.run(make, capture_output=True, text=True, check=False, **options)
    if made.returncode:
        raise Unavailable(f"initdb has failed: {_last_line(made.stderr)}")
    serve = [str(found / "postgres"), "-D", data, "-k", str(folder), "-h", "", "-p", str(_PORT)]
    with process(serve, folder, stop=signal.SIGINT, **options) as server:  # which does not wait for its clients
        url = f"postgresql://postgres@/{{name}}?host={quote(str(folder), safe='')}&port={_PORT}"
        _until_it_answers(url.format(name="postgres"), server, folder)
        yield url


def _user_of(folder: Path) -> str | None:
    """The user to run as, who owns the folder; None: who runs this process."""
    if os.geteuid():
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    user = next(name for name in _SYSTEM_USERS if name in names)
    if closed := next((one for one in folder.parents if not one.stat().st_mode & 0o001), None):
        raise ConfigError(
            f"PostgreSQL runs as the user {user!r}, who cannot enter {closed}: choose another folder with --scratch",
            field="scratch",
        )
    shutil.chown(folder, user)
    return user


def _as(user: str | None) -> dict[str, Any]:
    """What `subprocess` is given to run a program as that user, with none of root's groups."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _until_it_answers(url: str, server: subprocess.Popen[bytes], folder: Path) -> None:
    import psycopg  # DBOS has brought it

    until = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(url).close()
            return
        time.sleep(_POLL_S)
    told = (folder / "output").read_text(encoding="utf-8", errors="replace")
    raise Unavailable(f"PostgreSQL does not answer, exit code {server.poll()}: {_last_line(told)}")


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it has said nothing")


def _version(name: str) -> list[int]:
    """The numbers of a version, to be compared: 9.6 is older than 15."""
    return [int(number) for number in re.findall(r"\d+", name)]
