"""A node's own directory: bound forever to one cluster, one name and one role.

Data that one node acknowledged must not be brought in under another's name, or in another cluster: what that node's
word was worth would then count twice, or for something else. So the binding is written before the first other byte.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from boki.errors import ConfigError
from boki.host.data_directory import DataDirectory
from boki.host.private_files import open_private
from boki.log.ids import NodeId
from boki.log.membership import Role

_FILE: Final = "node.json"


class Binding(msgspec.Struct, frozen=True):
    """Whose directory it is. `home` names the directory itself."""

    home: str
    cluster: str
    node: NodeId
    role: Role


class Home:
    """An open and locked directory. `ConfigError` if it is another node's, `DataDirectoryInUse` if it runs."""

    def __init__(self, path: Path, node: NodeId, role: Role) -> None:
        self.path = path
        self._directory = DataDirectory(path)
        self._file = path / _FILE
        try:
            self._binding = self._read()
            if self._binding is not None and (self._binding.node, self._binding.role) != (node, role):
                raise ConfigError(
                    f"data directory {path} is that of {self._binding.role} {self._binding.node}, and this is {role} "
                    f"{node}: choose another with --data"
                )
        except BaseException:
            self.close()
            raise
        self._wanted = Binding(self._binding.home if self._binding else uuid4().hex, "", node, role)

    @property
    def id(self) -> str:
        """The directory's own id: whoever shows it, has or had the lock."""
        return self._wanted.home

    @property
    def disk(self) -> Path:
        """Where the node's database is."""
        return self.path / "disk"

    def bind(self, cluster: str) -> None:
        """Belong to that cluster from now on. `ConfigError` if it belongs to another."""
        if self._binding is not None and self._binding.cluster != cluster:
            raise ConfigError(
                f"data directory {self.path} belongs to cluster {self._binding.cluster}, and the one at "
                f"--zookeeper and --chroot is {cluster}: connect to the right one, or choose another directory "
                "with --data"
            )
        if self._binding is None:
            self._binding = msgspec.structs.replace(self._wanted, cluster=cluster)
            self._write(msgspec.json.encode(self._binding))

    def close(self) -> None:
        """Let other processes have it."""
        self._directory.close()

    def _read(self) -> Binding | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Binding)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self._file} is damaged ({error}): it said whose data this is") from None

    def _write(self, text: bytes) -> None:
        draft = self._file.with_suffix(".new")
        with os.fdopen(open_private(draft, os.O_WRONLY | os.O_TRUNC), "wb") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(self._file)
        folder = os.open(self.path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
