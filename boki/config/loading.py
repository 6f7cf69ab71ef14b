"""Configuration from a config file, the environment and flags: a frozen value, checked once, passed by hand.

Nothing else in Boki reads the environment or a configuration file. A configuration is a struct; `load` fills it from
flags, over `BOKI_*` variables, over `boki.toml`, over the struct's own defaults. The loader, the command line's flags
and the documentation are driven by the struct's fields, so that a new field is written down in one place. Every problem
is listed, not only the first: nobody should have to start a server five times to fix five typing errors.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from boki.config.rules import address_problems, budget_problems, check_finite, quorum_problems
from boki.errors import ConfigError
from boki.log.limits import KIB, MIB, Limits

ENV_PREFIX = "BOKI_"
DEFAULT_FILE = Path("boki.toml")

# Variables of the command line that are no fields of a configuration.
_OTHER_VARIABLES = frozenset({"BOKI_URL", "BOKI_CONFIG"})

Durability = Literal["fsync", "memory"]
LogFormat = Literal["console", "json"]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What all configurations share: however one is made, a value that breaks a rule raises one `ConfigError` that
    lists every problem (also as `error.problems`).
    """

    def __post_init__(self) -> None:
        problems = [
            text
            for field in msgspec.structs.fields(self)
            if (text := _field_problem(field.name, getattr(self, field.name), field.type))
        ]
        problems = problems or self.problems()
        if problems:
            raise refusal(problems)

    def problems(self) -> list[str]:
        """What is wrong between fields that are each fine by themselves."""
        return []


Host = Annotated[str, Meta(description="Address to listen on. Any address but loopback needs a token.")]
Port = Annotated[int, Meta(ge=0, le=65_535, description="Port to listen on; 0: any free one.")]
Token = Annotated[str, Meta(description="Bearer token that every request must carry; empty: none.")]


Insecure = Annotated[bool, Meta(description="Listen on any address without a token.")]
DurabilityField = Annotated[
    Durability,
    Meta(description="fsync: an append is on disks when it returns. memory: a power cut loses appends that returned."),
]
IndexMemory = Annotated[int, Meta(ge=MIB, description="The index's budget; colder rows live on disk.")]
CacheSize = Annotated[int, Meta(ge=MIB, description="Budget of the record cache.")]
AuxCacheSize = Annotated[int, Meta(ge=64 * KIB, description="Budget of the auxiliary data cache.")]
AppendBuffer = Annotated[
    int, Meta(ge=MIB, description="Appends that wait for their order; beyond it they are refused.")
]
BatchSize = Annotated[int, Meta(ge=4 * KIB, description="Appends travel in batches of about this size at most.")]
WriteBuffer = Annotated[
    int, Meta(ge=MIB, description="What a storage node writes before it makes a table; sequencers: a quarter.")
]
DiskReserve = Annotated[int, Meta(ge=0, description="Appends are refused when a disk has less room than this.")]
Drain = Annotated[float, Meta(ge=0, description="How long a stop waits for calls that still run.")]
KeepCalls = Annotated[
    float, Meta(gt=0, description="How long results of asynchronous calls and idempotency keys are kept.")
]
FunctionsVersion = Annotated[
    Literal["deployed", "none"],
    Meta(description="none: start without functions, and run only a version that is deployed or chosen afterwards."),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    Meta(description="Least level of what functions log; debug shows ctx.log.debug."),
]
LogFormatField = Annotated[LogFormat, Meta(description="console: lines for people. json: one object a line.")]


_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


class ZooKeeperAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How this cluster's nodes prove to ZooKeeper who they are, and how they tell that it is theirs."""

    digest: Annotated[
        str, Meta(description="NAME:PASSWORD of the cluster in ZooKeeper; others may not read or write there then.")
    ] = ""
    exclusive: Annotated[
        bool, Meta(description="That ZooKeeper serves this cluster alone: others may add nothing at its root, either.")
    ] = False
    tls: Annotated[bool, Meta(description="Connect by TLS, to its secure client port.")] = False
    ca: Annotated[
        str, Meta(description="File of certificates that ZooKeeper's is checked by, besides the system's.")
    ] = ""
    check_host: Annotated[
        bool, Meta(description="Its certificate must name the host that is connected to, as in zookeeper.")
    ] = True
    certificate: Annotated[str, Meta(description="File of this node's own certificate, if ZooKeeper wants one.")] = ""
    key: Annotated[str, Meta(description="File of that certificate's key.")] = ""

    def __post_init__(self) -> None:
        problems = []
        name, _, password = self.digest.partition(":")
        if self.digest and not (name and password):
            problems.append("zookeeper_access.digest must be NAME:PASSWORD")
        if self.exclusive and not self.digest:
            problems.append(
                "zookeeper_access.exclusive needs zookeeper_access.digest: the root is closed to all others"
            )
        if (self.ca or self.certificate or self.key) and not self.tls:
            problems.append("zookeeper_access.ca, certificate and key are for TLS: set zookeeper_access.tls, too")
        if bool(self.certificate) != bool(self.key):
            problems.append("zookeeper_access.certificate and key belong together: set both, or none")
        if problems:
            raise ConfigError("; ".join(problems), problems=problems)


class Cors(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages of other origins a browser lets call the gateway, and read its answers."""

    origins: Annotated[
        str, Meta(description="Origins of pages that may call, separated by commas; *: all; empty: none.")
    ] = ""
    credentials: Annotated[bool, Meta(description="Let those pages send cookies; not with *.")] = False

    def __post_init__(self) -> None:
        problems = [
            f"cors.origins: {origin!r} is not an origin: write it like https://app.example or http://localhost:5173"
            for origin in self.listed
            if origin != "*" and not _ORIGIN.fullmatch(origin)
        ]
        if "*" in self.listed and len(self.listed) > 1:
            problems.append("cors.origins: * is every origin: write it alone, or list the origins")
        if "*" in self.listed and self.credentials:
            problems.append("cors.credentials needs a list of cors.origins: with * any page could act for its visitor")
        if problems:
            raise ConfigError("; ".join(problems), problems=problems)

    @property
    def listed(self) -> list[str]:
        """The origins one by one."""
        return [origin for part in self.origins.split(",") if (origin := part.strip())]


class Address(Config, frozen=True, kw_only=True):
    """Where a system listens, as its clients on the same configuration need it."""

    host: Host = "127.0.0.1"
    port: Port = 8080
    token: Token = ""

    @property
    def url(self) -> str:
        """Where to reach it. `ConfigError` if only the system itself knows its port."""
        if not self.port:
            raise ConfigError("the port is 0, which is any free one: say with --url where the system listens")
        # A server that listens on all addresses also listens on this machine's own.
        host = f"[{self.host}]" if ":" in self.host else self.host
        try:
            if ipaddress.ip_address(self.host).is_unspecified:
                host = "[::1]" if ":" in self.host else "127.0.0.1"
        except ValueError:
            pass  # a name
        return f"http://{host}:{self.port}"


class DevConfig(Config, frozen=True, kw_only=True):
    """`boki dev`: every role in one process, worker processes beside it."""

    data: Annotated[Path, Meta(description="Directory that holds all data; made if it is not there.")] = Path(".boki")
    functions: Annotated[Path, Meta(description="Folder whose modules register functions.")] = Path("functions")
    host: Host = "127.0.0.1"
    port: Port = 8080
    token: Token = ""
    insecure: Insecure = False
    replicas: Annotated[int, Meta(ge=1, le=15, description="Storage nodes, each with its own directory and fsync.")] = 1
    write_quorum: Annotated[
        int, Meta(ge=0, description="Storage nodes that hold a record before it counts; 0: a majority of them.")
    ] = 0
    logs: Annotated[int, Meta(ge=1, le=255, description="Physical logs that the LogBooks share.")] = 1
    sequencers: Annotated[
        int, Meta(ge=0, le=15, description="Sequencers, an odd number; 0: 1, or 3 from three replicas on.")
    ] = 0
    durability: DurabilityField = "fsync"
    index_memory_bytes: IndexMemory = 256 * MIB
    cache_bytes: CacheSize = 256 * MIB
    aux_cache_bytes: AuxCacheSize = 32 * MIB
    append_buffer_bytes: AppendBuffer = 64 * MIB
    batch_bytes: BatchSize = MIB
    write_buffer_bytes: WriteBuffer = 64 * MIB
    disk_reserve_bytes: DiskReserve = 256 * MIB
    drain_s: Drain = 10.0
    keep_calls_s: KeepCalls = 86_400.0
    reload: Annotated[bool, Meta(description="Load a module of the functions folder again when its file changes.")] = (
        True
    )
    quiet: Annotated[bool, Meta(description="Write no lines for calls, refusals and reloads.")] = False
    log_format: LogFormatField = "console"
    log_level: LogLevel = "info"
    cors: Cors = Cors()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.write_quorum:
            force_setattr(self, "write_quorum", self.replicas // 2 + 1)
        if not self.sequencers:
            force_setattr(self, "sequencers", 1 if self.replicas < 3 else 3)

    def problems(self) -> list[str]:
        """See `Config.problems`."""
        return [
            *budget_problems(
                self.limits,
                keep_calls_s=self.keep_calls_s,
                cache_bytes=self.cache_bytes,
                append_buffer_bytes=self.append_buffer_bytes,
            ),
            *quorum_problems(self.replicas, self.write_quorum, self.sequencers),
            *address_problems(self.host, self.token, self.insecure),
        ]


_LISTS: Final = frozenset({"cors.origins", "zookeeper"})
"""Settings of text with commas between its parts, which may be an array in a file."""

ConfigType = TypeVar("ConfigType", bound=Config)
StructType = TypeVar("StructType", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that a configuration takes: its dotted `name` (`limits.record_bytes`), type and meaning."""

    name: str
    type: Any
    default: Any
    description: str

    @property
    def holds_path(self) -> bool:
        """Whether the value is a path in the file system."""
        return _is_path(self.type)

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable_of(self.name)


def variable_of(name: str) -> str:
    """The environment variable that sets the setting of that name.

    >>> variable_of("limits.record_bytes")
    'BOKI_LIMITS_RECORD_BYTES'
    """
    return ENV_PREFIX + name.replace(".", "_").upper()


def settings(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[Setting]:
    """Every value that the struct takes, those of structs inside it under dotted names."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from settings(field.type, f"{prefix}{field.encode_name}.")
            continue
        description = next((meta.description for meta in get_args(field.type)[1:] if isinstance(meta, Meta)), None)
        yield Setting(prefix + field.encode_name, field.type, field.default, description or "")


@dataclass(frozen=True, slots=True)
class _Given:
    """A value before it is checked, and where it came from, for the message."""

    name: str
    value: Any
    origin: str
    is_text: bool


def load(
    kind: type[ConfigType],
    *,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Path | None = None,
    allow_others: bool = False,
    others: Collection[str] = (),
) -> ConfigType:
    """Flags (None: not given) over `BOKI_*` variables over the TOML file over defaults.

    Without `file`, the one that `BOKI_CONFIG` names is read, else `boki.toml` if it is there. Paths in a file are
    relative to that file. `ConfigError` lists every unknown key (with the allowed ones) and every refused value;
    `allow_others`: unknown keys are left to whoever knows them; so are those of `others`, which another command on the
    same file knows.
    """
    known = {setting.name: setting for setting in settings(kind)}
    problems: list[str] = []
    given: dict[str, _Given] = {}
    for item in (
        *_from_file(known, file or _default_file(environment), problems),
        *_from_environment(known, environment, None if allow_others else problems, others),
        *(_Given(name, value, flag(name), True) for name, value in flags.items() if value is not None),
    ):
        if item.name in known:
            given[item.name] = item
        elif not allow_others and item.name not in others:
            problems.append(_unknown(item.name, item.origin, known))
    values: dict[str, Any] = {}
    for item in given.values():
        values[item.name], problem = _converted(item, known[item.name])
        if problem:
            problems.append(problem)
            del values[item.name]
    # The good values are tried even if there were bad ones, to find what is wrong between them too.
    config = _build(kind, values, problems)
    if problems or config is None:
        raise refusal(problems)
    return config


def _converted(item: _Given, setting: Setting) -> tuple[Any, str]:
    """The value as the setting takes it, and why it does not."""
    value = item.value
    if setting.name in _LISTS and isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ",".join(value)  # what people write in TOML for several
    try:
        return check_finite(msgspec.convert(value, setting.type, strict=not item.is_text, dec_hook=_to_path)), ""
    except msgspec.ValidationError as error:
        expected = _expected(setting.type, error)
        expected = expected.removesuffix(", got str") if item.is_text else expected
        advice = _unit_advice(setting.name, item.value)
        return None, f"{item.name} = {item.value!r} ({item.origin}): {expected}{advice}"


def flag(name: str) -> str:
    """How the command line spells a setting.

    >>> flag("limits.record_bytes")
    '--limits-record-bytes'
    """
    return "--" + name.replace(".", "-").replace("_", "-")


def file_problems(kinds: Sequence[type[Config]], environment: Mapping[str, str]) -> list[str]:
    """What is wrong with the configuration file by itself, for commands that read only a little of it: text that is not
    TOML, settings that none of the `kinds` has, values that none of those takes.
    """
    known: dict[str, list[Setting]] = {}
    for kind in kinds:
        for setting in settings(kind):
            known.setdefault(setting.name, []).append(setting)
    problems: list[str] = []
    for item in _from_file({}, _default_file(environment), problems):
        if item.name not in known:
            problems.append(_unknown(item.name, item.origin, known))
            continue
        refusals = [_converted(item, setting)[1] for setting in known[item.name]]
        if all(refusals):
            problems.append(refusals[0])
    return problems


def _default_file(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get("BOKI_CONFIG"):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _from_file(known: Mapping[str, Setting], file: Path | None, problems: list[str]) -> Iterator[_Given]:
    if file is None:
        return
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{file}: {error.strerror or error}")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{file} is not TOML: {error}")
        return
    for name, value in _flatten(document):
        is_path = name in known and known[name].holds_path and isinstance(value, str)
        yield _Given(name, str(file.parent / value) if is_path else value, str(file), False)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _from_environment(
    known: Mapping[str, Setting], environment: Mapping[str, str], problems: list[str] | None, others: Collection[str]
) -> Iterator[_Given]:
    """`problems`: collects unknown variables; None: they are ignored."""
    names = {setting.variable: name for name, setting in known.items()}
    ignored = _OTHER_VARIABLES.union(variable_of(name) for name in others)
    for variable, value in environment.items():
        if not variable.startswith(ENV_PREFIX) or (variable in ignored and variable not in names):
            continue
        if variable in names:
            yield _Given(names[variable], value, variable, True)
        elif problems is not None:
            problems.append(_unknown(variable, "the environment", names))


def _unknown(name: str, origin: str, allowed: Mapping[str, Any]) -> str:
    if inside := [known for known in allowed if known.startswith(f"{name}.")]:
        example = inside[0].removeprefix(f"{name}.")
        return f"{name} ({origin}) is a table: write [{name}] and below it one line for each, as {example} = ..."
    # What all names share says nothing about which one was meant.
    bare = {known.removeprefix(ENV_PREFIX): known for known in allowed}
    near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX), bare, n=1, cutoff=0.75)
    guess = f"; did you mean {bare[near[0]]}?" if near else f". Allowed: {', '.join(sorted(allowed))}"
    return f"unknown setting {name} ({origin}){guess}"


def _build(
    kind: type[StructType], values: Mapping[str, Any], problems: list[str], prefix: str = ""
) -> StructType | None:
    """The struct with these values, or None; structs inside it are built first."""
    arguments: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name = prefix + field.encode_name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            inner = _build(field.type, values, problems, f"{name}.")
            if inner is not None:
                arguments[field.name] = inner
        elif name in values:
            arguments[field.name] = values[name]
    try:
        return kind(**arguments)
    except ConfigError as error:
        problems.extend(error.details.get("problems", [error.message]))
        return None


def _field_problem(name: str, value: Any, kind: Any) -> str:
    if _is_path(kind) and not isinstance(value, Path):
        return f"{name} = {value!r}: expected a Path, got {type(value).__name__}"
    try:
        check_finite(msgspec.convert(msgspec.to_builtins(value, enc_hook=str), kind, dec_hook=_to_path))
    except msgspec.ValidationError as error:
        return f"{name} = {value!r}: {_expected(kind, error)}"
    return ""


def _is_path(kind: Any) -> bool:
    return kind is Path or Path in get_args(kind)


def _to_path(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise msgspec.ValidationError(f"Expected a path, got {type(value).__name__}")


def _expected(kind: Any, error: Exception) -> str:
    """What is wrong with a value of that type; a choice is told with the choices."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(bare) is Literal:
        return f"expected {' or '.join(get_args(bare))}"
    text = str(error).replace("`", "")
    return text[:1].lower() + text[1:]


def _unit_advice(name: str, value: Any) -> str:
    """What to write for a number with a unit behind it, as help texts show it."""
    if not isinstance(value, str) or not value[:1].isdigit() or value[-1:].isdigit():
        return ""
    unit = {"s": "seconds", "bytes": "bytes"}.get(name.rpartition("_")[2])
    return f"; write {unit} without a unit" if unit else ""


def refusal(problems: list[str]) -> ConfigError:
    """One error that lists every problem."""
    what = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return ConfigError(f"the configuration has {what}:{lines}", problems=problems)
