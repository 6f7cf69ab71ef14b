"""CURVE keys: one file for each node, and one list of all public keys.

`cluster.keys` ties each public key to a node's name and role; every node has a copy, and believes nothing else: not
what a peer says of itself, nor what is registered for it. `<name>.key` is a node's own, readable by its owner only.

To renew a key, delete its file and its line, and make keys again; to add a node, make keys with its name, too. Running
nodes read the list again when they meet a key that they do not know.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import zmq

from boki.errors import ConfigError
from boki.log.ids import NodeId, check_name
from boki.log.membership import Role, role_name

LIST_NAME: Final = "cluster.keys"
DIGEST_NAME: Final = "zookeeper.digest"
_HOSTS: Final = "node:"
_Z85: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_log = logging.getLogger("boki.net")


class Owner(NamedTuple):
    """Whose key it is, and what it may do."""

    node: NodeId
    role: str
    """As `cluster.keys` spells it: a role, or what `roles_text` makes of those that a node may host."""
    public: str
    """Z85, 40 characters."""

    def may_be(self, name: NodeId, role: Role) -> bool:
        """Whether the node that holds the key may speak as `name` in that role."""
        if not self.role.startswith(_HOSTS):
            return (name, role) == (self.node, self.role)
        return name == role_name(self.node, role) and role in _hosted(self.role)


def roles_text(roles: Iterable[Role]) -> str:
    """How keys spell the roles that a node may host.

    >>> roles_text([Role.STORAGE, Role.ENGINE])
    'node:storage,engine'
    """
    return _HOSTS + ",".join(roles)


def _hosted(text: str) -> list[str]:
    return text.removeprefix(_HOSTS).split(",")


def _is_role(text: str) -> bool:
    return all(role in set(Role) for role in (_hosted(text) if text.startswith(_HOSTS) else [text]))


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: NodeId
    role: str
    public: str
    secret: str


class KeyRing:
    """The public keys of a cluster, as `cluster.keys` lists them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = None
        self._by_key: dict[str, Owner] = {}
        self._by_node: dict[NodeId, Owner] = {}
        self._read_again()

    def owner_of(self, public: str) -> Owner | None:
        """Whose key this is; None if it is nobody's."""
        return self._by_key.get(public) or (self._by_key.get(public) if self._changed() else None)

    def of(self, node: NodeId) -> Owner | None:
        """The key of that node; None if it has none."""
        return self._by_node.get(node) or (self._by_node.get(node) if self._changed() else None)

    def _changed(self) -> bool:
        """Read the list again if it is another one. One that cannot be read leaves all as it was."""
        try:
            return self._read_again()
        except ConfigError as error:
            _log.warning("%s; going on with the keys read before", error)
            return False

    def _read_again(self) -> bool:
        seen = _version_of(self._path)
        if seen == self._seen:
            return False
        self._seen = seen
        owners = read_list(self._path)
        self._by_key = {owner.public: owner for owner in owners}
        self._by_node = {owner.node: owner for owner in owners}
        return True


class NodeKeys(NamedTuple):
    """What a node needs to prove who it is, and to tell who the others are."""

    own: Owner
    secret: str
    ring: KeyRing

    def check_roles(self, roles: Mapping[NodeId, Role]) -> None:
        """`ConfigError` if the key is not for all these roles under these names: others would refuse their messages."""
        missing = [f"{role} {node}" for node, role in roles.items() if not self.own.may_be(node, role)]
        if missing:
            may = self.own.role.removeprefix(_HOSTS).replace(",", ", ")
            raise ConfigError(
                f"the key is that of {self.own.node}, which may be {may}, and this is {', '.join(missing)}: start it "
                f"with other roles, or delete the key and its line in {LIST_NAME} and run boki keygen for these"
            )


def make_keys(directory: Path, nodes: Mapping[str, str]) -> list[NodeId]:
    """Give a key to each of the nodes that has none, and list them all. Returns the names of those that got one.

    `nodes`: what each may be, as `Owner.role`.

    Keys that exist stay as they are, and so do lines of nodes that are not named here: their files may have been
    moved to their machines. `ConfigError` if a name cannot be one, or what exists contradicts itself.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"key directory {directory}: {error.strerror}") from None
    path = directory / LIST_NAME
    listed = {owner.node: owner for owner in read_list(path)} if path.exists() else {}
    made = []
    for text, role in nodes.items():
        node = NodeId(check_name(text, "a node's name"))
        file = directory / f"{node}.key"
        known = listed.get(node)
        if file.exists():
            owner, _ = _read_key(file)
        elif known is not None:
            owner = known
        else:
            owner = _make_key(file, node, role)
            made.append(node)
        if owner.node != node or owner.role != role or known not in (None, owner):
            raise ConfigError(f"{file} is not the key of {role} {node} in {path}: delete the file and the line")
        listed[node] = owner
    lines = [f"{owner.node} {owner.role} {owner.public}\n" for owner in sorted(listed.values())]
    _write(path, "# The public keys of a Boki cluster: node, role, key. Every node needs this list.\n" + "".join(lines))
    return made


def load_keys(directory: Path, node: NodeId) -> NodeKeys:
    """The keys of `node` and the list of all. `ConfigError` if they are missing, damaged, or readable by others."""
    file = directory / f"{node}.key"
    own, secret = _read_key(file)
    ring = KeyRing(directory / LIST_NAME)
    if own.node != node or ring.of(node) != own:
        raise ConfigError(
            f"{file} is not the key that {directory / LIST_NAME} has for {node}: run boki keygen {directory} {node}"
        )
    return NodeKeys(own, secret, ring)


def read_list(path: Path) -> list[Owner]:
    """The lines of a `cluster.keys`. `ConfigError` names the line that is wrong."""
    owners: list[Owner] = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip() or line.startswith("# "):
            continue
        words = line.split()
        if len(words) != 3 or not _is_role(words[1]) or not _Z85.fullmatch(words[2]):
            raise ConfigError(f"{path} line {number}: it must hold a node, its role and its public key")
        owner = Owner(NodeId(words[0]), words[1], words[2])
        if any(owner.node == other.node or owner.public == other.public for other in owners):
            raise ConfigError(f"{path} line {number}: {owner.node} or its key stands there twice")
        owners.append(owner)
    return owners


def make_digest(directory: Path) -> str:
    """NAME:PASSWORD of a cluster in its own ZooKeeper, from the file beside its keys; made if it is missing."""
    file = directory / DIGEST_NAME
    if not file.exists():
        _write(file, f"boki:{secrets.token_hex(20)}\n")
    return read_digest(directory)


def read_digest(directory: Path) -> str:
    """What `make_digest` has made; "" if there is nothing."""
    file = directory / DIGEST_NAME
    return _read(file).strip() if file.exists() else ""


def _make_key(file: Path, node: NodeId, role: str) -> Owner:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    _write(
        file,
        f"# The secret key of one node of a Boki cluster: whoever has it can act as that node.\n"
        f'node = "{node}"\nrole = "{role}"\npublic = "{public}"\nsecret = "{secret}"\n',
    )
    return Owner(node, role, public)


def _read_key(file: Path) -> tuple[Owner, str]:
    text = _read(file)
    if file.stat().st_mode & 0o077:
        raise ConfigError(f"{file} can be read by others, so it proves nothing: chmod 600 it, or make a new one")
    try:
        key = msgspec.convert(tomllib.loads(text), _KeyFile)
        matches = _Z85.fullmatch(key.secret) and zmq.curve_public(key.secret.encode()).decode() == key.public
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    if not matches:
        raise ConfigError(f"{file}: its public key is not that of its secret key")
    return Owner(key.node, key.role, key.public), key.secret


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        whose = f" {path.stem}" if path.suffix == ".key" else ""
        raise ConfigError(f"{path} is missing: run boki keygen {path.parent}{whose}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _write(path: Path, text: str) -> None:
    """Replace the file in one step; only its owner may read it. The list is public, but no other user needs it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _version_of(path: Path) -> object:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
