"""The few things that a pipeline does to folders, on this machine's disk and on what Hadoop knows.

What matters is `move`: a folder comes to its place at once, and only if nothing is there. Hadoop's own rename puts it
*into* a folder that is there, and on a local disk copies file by file where the system call has failed.

**Memory and disk.** On this machine what is written stands in memory until it is kept (`Files.keep`), and a power cut
takes it away. What is kept outlives that, and so does a move, once it has returned, of what was kept before it. What
Hadoop's file systems promise of a file that is closed is theirs: HDFS has it in the memory of several machines, an
object store has it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_SCHEME: Final = re.compile(r"^file:(//[^/]*)?")


class Files(Protocol):
    """Folders and small files, by paths with slashes. Failures are `OSError`s."""

    def names(self, folder: str) -> list[str]:
        """What stands in the folder, in order; nothing if it is not there."""

    def read(self, file: str) -> bytes | None:
        """The content of the file; None if it is not there."""

    def write(self, file: str, data: bytes) -> None:
        """Make the file, and the folders around it."""

    def rows(self, folder: str) -> int | None:
        """The rows of the Parquet below the folder, as far as this machine sees it, and readers look: not in folders
        whose names begin with `_`. None if it cannot tell.
        """

    def keep(self, path: str) -> None:
        """Have the file, or the folder with everything in it, on the disk, and its name, too. Nothing if it is gone."""

    def move(self, folder: str, place: str) -> bool:
        """Bring the folder to its place, at once; False if something is there. `FileNotFoundError`: it is gone. When it
        returns, the new name is on the disk.
        """

    def remove(self, folder: str) -> None:
        """Take the folder away, if it is there, with everything in it."""


def _local(path: str) -> Path:
    """A path as Hadoop spells it, on this machine.

    >>> str(_local("file:///lake/a")), str(_local("/lake/a"))
    ('/lake/a', '/lake/a')
    """
    return Path(_SCHEME.sub("", path))


class LocalFiles:
    """Those of this machine."""

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        try:
            return sorted(path.name for path in _local(folder).iterdir())
        except FileNotFoundError:
            return []

    def read(self, file: str) -> bytes | None:
        """See `Files`."""
        try:
            return _local(file).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, file: str, data: bytes) -> None:
        """See `Files`."""
        path = _local(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def rows(self, folder: str) -> int | None:
        """See `Files`. Footers that are encrypted tell nothing."""
        top = _local(folder)
        import pyarrow as pa
        from pyarrow import parquet

        try:
            return int(
                sum(
                    parquet.read_metadata(file).num_rows
                    for file in top.rglob("*.parquet")
                    if not any(part.startswith("_") for part in file.relative_to(top).parts)
                )
            )
        except (pa.ArrowException, OSError):
            return None

    def keep(self, path: str) -> None:
        """See `Files`."""
        top = _local(path)
        if not top.exists():
            return
        for folder, _, names in os.walk(top, topdown=False):
            for name in names:
                _sync(Path(folder, name))
            _sync(Path(folder))
        if not top.is_dir():
            _sync(top)
        _sync_names(top)

    def move(self, folder: str, place: str) -> bool:
        """See `Files`."""
        _local(place).parent.mkdir(parents=True, exist_ok=True)
        try:
            _local(folder).rename(_local(place))
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        _sync_names(_local(place))
        return True

    def remove(self, folder: str) -> None:
        """See `Files`."""
        try:
            shutil.rmtree(_local(folder))
        except FileNotFoundError:
            return


def _sync(path: Path) -> None:
    """Wait until the disk has what memory has of a file, or of the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_names(path: Path) -> None:
    """The name in its folder, and that folder's own, which may be new."""
    for folder in (path.parent, path.parent.parent):
        _sync(folder)


class HadoopFiles:
    """Those of one of Hadoop's file systems, as Spark itself uses it."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 - there is no other way to Hadoop's file systems
        self._new_array = context._gateway.new_array  # noqa: SLF001
        configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._path = self._jvm.org.apache.hadoop.fs.Path
        path = self._path(folder)
        self._system = path.getFileSystem(configuration)
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._system.makeQualified(path).toUri(), configuration
        )

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        path = self._path(folder)
        if not self._system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(path))

    def read(self, file: str) -> bytes | None:
        """See `Files`."""
        path = self._path(file)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, file: str, data: bytes) -> None:
        """See `Files`."""
        stream = self._system.create(self._path(file), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def rows(self, folder: str) -> int | None:  # noqa: ARG002 - one for all
        """See `Files`. All machines see the same here."""
        return None

    def keep(self, path: str) -> None:
        """See `Files`. It is as safe as the file system makes it when a file is closed."""

    def move(self, folder: str, place: str) -> bool:
        """See `Files`."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        source, target = self._path(folder), self._path(place)
        kind: Any = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        options = self._new_array(kind, 1)
        options[0] = kind.NONE
        self._system.mkdirs(target.getParent())
        try:
            self._context.rename(source, target, options)
        except Py4JJavaError as error:
            if self._system.exists(target):
                return False
            if not self._system.exists(source):
                raise FileNotFoundError(errno.ENOENT, "is gone", folder) from None
            raise OSError(errno.EIO, str(error.java_exception.getMessage()), place) from None
        return True

    def remove(self, folder: str) -> None:
        """See `Files`."""
        self._system.delete(self._path(folder), True)


def files_of(spark: SparkSession, folder: str) -> Files:
    """What Spark writes a folder of that name with."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(folder)  # noqa: SLF001
    system = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    return LocalFiles() if str(system.getScheme()) == "file" else HadoopFiles(spark, folder)
