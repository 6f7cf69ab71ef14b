"""The house: its folders are those of the README's picture, and a file's place says whether it may do I/O.

What is pure is found by walking the imports, not by a list of files.
"""

import ast
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from boki.controller.core import ControllerCore
from boki.engine.checkpoint.bootstrap import Bootstrap
from boki.protocol.messages import FetchView, Message
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from tests.test_tidy import pure

ROOT = Path(__file__).parents[1]
ROLES = ("gateway", "engine", "dispatch", "sequencer", "storage", "controller")
FOLDS = ("books", "libs", "spark")
LAYERS = 20
SHELLS = 10
OUTSIDE_OF_FOLDERS = {
    "contract": "one set of tests for every way to a log",
    "e2e": "whole systems that are killed, flooded and damaged",
    "functions": "the example applications, which stand beside boki/",
    "http_functions": "functions that tests of all folders deploy",
    "old_data": "data directories that earlier versions wrote",
    "typing": "programs that type checkers must take or refuse",
    "wrong_inputs": "what users may give anywhere, and the errors that answer it",
}


def picture(text: str) -> set[str]:
    """The folders that the picture shows directly below `boki/`."""
    drawn = re.search(r"```text\nboki/\n(.*?)```", text, re.DOTALL)
    assert drawn, "README.md has no picture of the folders: a ```text block that begins with boki/"
    lines = [line for line in drawn[1].splitlines() if re.match(r"  \w", line)]
    return {word for line in lines for word in re.findall(r"(\w+)/(?= )", f"{leading(line)} ")}


def leading(line: str) -> str:
    """The folders at the start of a line: before the first word that is none."""
    found = re.match(r"\s*((?:\w+/\s*)+)", line)
    return found[1] if found else ""


def folders() -> set[str]:
    return {path.parent.name for path in (ROOT / "boki").glob("*/__init__.py")}


def test_the_folders_are_those_of_the_picture() -> None:
    """Who has seen the README finds every part where the picture says."""
    assert picture((ROOT / "README.md").read_text()) == folders()


def test_a_picture_that_lacks_a_folder_is_seen() -> None:
    """The check above can fail, and reads lines with several folders."""
    drawn = "```text\nboki/\n  log/   records; like sim/ and so on\n  host/  net/   disks\n```"
    assert picture(drawn) == {"log", "host", "net"}


@functools.cache
def file_of(module: str) -> Path | None:
    """Where one of our modules stands; None if it is no module of ours."""
    path = ROOT / Path(*module.split("."))
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.exists():
            return found
    return None


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def outside_type_checking(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes that run: what is imported for annotations alone is never imported."""
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        yield from ast.walk(statement)


def defining(module: str, name: str) -> str:
    """The module that a name imported from `module` comes from: through what a package's `__init__` passes on."""
    if file_of(f"{module}.{name}"):
        return f"{module}.{name}"
    path = file_of(module)
    if path is not None and path.name == "__init__.py":
        for node in outside_type_checking(parsed(path).body):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("boki"):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return defining(node.module, alias.name)
    return module


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules of ours that this one uses when it runs."""
    path = file_of(module)
    assert path is not None, module
    found = set()
    for node in outside_type_checking(parsed(path).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "boki"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "boki":
            found |= {defining(node.module or "", alias.name) for alias in node.names}
    return frozenset(found - {module})


def reached(module: str) -> set[str]:
    """This module and all that it uses, by whatever way."""
    found, left = {module}, [module]
    while left:
        for other in imported(left.pop()) - found:
            found.add(other)
            left.append(other)
    return found


@functools.cache
def impurities(module: str) -> tuple[str, ...]:
    path = file_of(module)
    assert path is not None, module
    return tuple(pure(path, path.read_text(encoding="utf-8")))


def impure(modules: Iterable[str]) -> list[str]:
    return [
        f"{module} reaches {other}: {impurities(other)[0]}"
        for module in modules
        for other in sorted(reached(module))
        if impurities(other)
    ]


def modules_below(folder: str) -> list[str]:
    paths = sorted((ROOT / "boki" / folder).rglob("*.py"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths if "__pycache__" not in path.parts]
    return [".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts]


def is_of_a_server(module: str) -> bool:
    return "server" in module.split(".")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_pure_outside_of_its_server(role: str) -> None:
    """Nothing that a core reaches, in its folder or elsewhere, has a clock, chance, I/O or an `await`."""
    modules = [module for module in modules_below(role) if not is_of_a_server(module)]
    assert f"boki.{role}.core" in modules
    assert not impure(modules)


@pytest.mark.parametrize("folder", ["log", "protocol"])
def test_vocabulary_is_pure(folder: str) -> None:
    """What cores are made of is as pure as they are."""
    modules = modules_below(folder)
    assert len(modules) > 5
    assert not impure(modules)


def folds() -> list[str]:
    """The modules that define a fold: a class, no Protocol, whose `apply` takes a seqnum first."""
    found = []
    for module in [module for folder in FOLDS for module in modules_below(folder)]:
        path = file_of(module)
        assert path is not None
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and "Protocol" not in "".join(map(ast.unparse, node.bases)):
                applies = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "apply"]
                if any([argument.arg for argument in each.args.args][1:2] == ["seqnum"] for each in applies):
                    found.append(module)
    return found


def test_folds_are_pure() -> None:
    """Every reader of the log must come to the same state: a fold has nothing else to decide by."""
    found = folds()
    assert len(found) >= 5, found
    assert not impure(found)


def test_what_is_impure_is_seen() -> None:
    """The walk can fail: through other modules, and through what a package passes on."""
    assert impure(["boki.engine.server.log_service"])
    assert not impure(["boki.engine.core"])
    assert defining("boki", "LogBook") == "boki.api.logbook"
    assert "boki.log.ids" in reached("boki.engine.core")


def folder_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:3]) if parts[1:2] == ["libs"] else ".".join(parts[:2])


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other."""
    reach = {node: reached_in(edges, node) for node in edges}
    groups = {tuple(sorted(other for other in reach[node] if node in reach.get(other, ()))) for node in edges}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def reached_in(edges: dict[str, set[str]], node: str) -> set[str]:
    found, left = {node}, [node]
    while left:
        for other in edges.get(left.pop(), set()) - found:
            found.add(other)
            left.append(other)
    return found


def test_no_folder_imports_one_that_imports_it() -> None:
    """Folders stand on each other. Faces stand on gateway and CLI by design, and nothing stands on a face."""
    edges: dict[str, set[str]] = {}
    for module in [module for folder in folders() for module in modules_below(folder)]:
        if ".face" not in module:
            edges.setdefault(folder_of(module), set()).update(
                folder_of(other) for other in imported(module) if ".face" not in other and other.count(".")
            )
    assert len(edges) > 20
    assert not circles({node: others - {node} for node, others in edges.items()})


def test_no_module_imports_one_that_imports_it() -> None:
    """No import circle, of two modules or of twenty."""
    names = [module for folder in folders() for module in modules_below(folder)]
    assert len(names) > 300
    assert not circles({name: set(imported(name)) for name in names})


def test_a_circle_is_seen() -> None:
    """The checks above can fail."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def described(module: str) -> set[str]:
    """The modules of ours that this one imports for annotations alone."""
    path = file_of(module)
    assert path is not None, module
    blocks = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.If)]
    imports = [each for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for each in block.body]
    return {
        defining(each.module or "", alias.name)
        for each in imports
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("boki")
        for alias in each.names
    }


def test_no_annotation_points_back_inside_a_package() -> None:
    """`if TYPE_CHECKING` hides no circle: two files that need each other are one thing, or need a Protocol between."""
    names = [module for folder in folders() for module in modules_below(folder)]
    assert sum(len(described(name)) for name in names) > 20
    edges = {name: set(imported(name)) | described(name) for name in names}
    reach = {name: reached_in(edges, name) for name in names if described(name)}
    back = {
        (name, other)
        for name in reach
        for other in described(name)
        if folder_of(name) == folder_of(other) and name in reached_in(edges, other)
    }
    assert not back


QUESTIONS = {
    "ZooKeeper client": "boki.coordination.zookeeper",
    "retry policy": "boki.retry",
    "config file": "boki.config.loading",
    "idempotency key": "boki.books.calls.logged_calls",
    "rate limit": "boki.libs.bokiflow.gates",
    "cron": "boki.libs.bokiflow.schedules.spec",
    "Unix sockets": "boki.net.local",
    "linearizable appends": "boki.verify.histories.appends",
    "fork worker": "boki.worker.zygote",
    "repair": "boki.storage.repair",
}
"""What a stranger looks for, in words that one would type, and the module that has it."""
MOST_HITS = 3


@functools.cache
def listing() -> dict[str, str]:
    """What one reads of each module without opening it: its path, and the first line of its docstring."""
    found = {}
    for module in modules_below(""):
        path = file_of(module)
        assert path is not None, module
        found[module] = f"{module} {(ast.get_docstring(parsed(path)) or '').partition(chr(10))[0]}".lower()
    return found


def hits(question: str, lines: dict[str, str]) -> list[str]:
    """The modules whose line has all these words."""
    return [module for module, line in lines.items() if all(word in line for word in question.lower().split())]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_listing_answers(question: str) -> None:
    """Ten questions of a stranger, in the terms of the field: the answer is one of very few modules."""
    found = hits(question, listing())
    assert QUESTIONS[question] in found
    assert len(found) <= MOST_HITS


def test_a_question_that_the_listing_does_not_answer_is_seen() -> None:
    """The check above can fail: by no hit, and by too many."""
    assert hits("blockchain", listing()) == []
    assert len(hits("log", listing())) > MOST_HITS


def contracts() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def test_the_contracts_name_layers_and_not_modules() -> None:
    """Who reads them sees the architecture: few layers, and few places for I/O, none of them a file of a package."""
    layers = contracts()["importlinter"]["contracts"][0]["layers"]
    assert len(layers) <= LAYERS
    assert all(
        name.count(".") <= 1 + name.startswith("boki.libs")
        for layer in layers
        for name in re.findall(r"boki[\w.]*", layer)
    )
    ignores = contracts()["ruff"]["lint"]["per-file-ignores"]
    patterns = [pattern for pattern, rules in ignores.items() if "TID251" in rules]
    assert len(patterns) <= SHELLS
    assert not [pattern for pattern in patterns if pattern.endswith(".py")]


def test_tests_mirror_the_house() -> None:
    """The tests of a folder are found below its name; every other folder of tests has a reason."""
    tests = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert tests - folders() == set(OUTSIDE_OF_FOLDERS)
    assert not folders() - tests, "a folder without tests"


def signatures(module: str) -> Iterator[tuple[str, ast.expr]]:
    """The annotations of what is public in a module: of parameters, results, and fields of classes."""
    path = file_of(module)
    assert path is not None, module
    for node in parsed(path).body:
        members = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*member.args.posonlyargs, *member.args.args, *member.args.kwonlyargs]
                found = [*(argument.annotation for argument in arguments), member.returns]
                name = member.name
            elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                found, name = [member.annotation], member.target.id
            else:
                continue
            if not name.startswith("_"):
                yield from ((f"{module}.{name}", each) for each in found if each is not None)


def untyped(annotation: ast.expr) -> bool:
    """Whether it says `Any`, other than for what a JSON object holds: `dict[str, Any]`, `Mapping[str, Any]`."""
    text = re.sub(r"\b(dict|Mapping)\[str, Any\]", "", ast.unparse(annotation))
    return re.search(r"\bAny\b", text) is not None


@pytest.mark.parametrize("folder", [*ROLES, "protocol"])
def test_no_signature_of_a_core_says_any(folder: str) -> None:
    """Messages, effects, answers and tokens have types. What operators read is JSON."""
    modules = [module for module in modules_below(folder) if not is_of_a_server(module)]
    found = [(name, annotation) for module in modules for name, annotation in signatures(module)]
    assert len(found) > 20
    assert not [name for name, annotation in found if untyped(annotation)]


def test_a_signature_that_says_any_is_seen() -> None:
    """The check above can fail."""
    kinds = ("Any", "dict[str, list[Any]]", "Callable[[Any], None]", "dict[str, Any] | None")
    assert [untyped(ast.parse(kind, mode="eval").body) for kind in kinds] == [True, True, True, False]


def ends_of_matches(body: ast.AST) -> Iterator[tuple[ast.Match, bool]]:
    """The matches in there over classes, and whether each ends in `assert_never`."""
    for node in ast.walk(body):
        if isinstance(node, ast.Match):
            yield node, any(ast.unparse(statement).startswith("assert_never(") for statement in node.cases[-1].body)


@pytest.mark.parametrize("role", ["controller", "engine", "sequencer", "storage"])
def test_what_a_core_hears_is_matched_to_the_end(role: str) -> None:
    """A new message does not fall through: the union of what a core hears is exhausted, or the rest of it is passed on
    to a method of which the same holds.
    """
    matched = 0
    for module in [module for module in modules_below(role) if not is_of_a_server(module)]:
        path = file_of(module)
        assert path is not None
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.FunctionDef) or "message" not in [each.arg for each in node.args.args]:
                continue
            for match, is_exhausted in ends_of_matches(node):
                if ast.unparse(match.subject) == "message":
                    matched += 1
                    passed_on = "sender, message" in ast.unparse(match.cases[-1].body[0])
                    assert is_exhausted or passed_on, f"{module}.{node.name}"
    assert matched


def test_every_message_is_heard_by_a_role() -> None:
    """Each message between nodes that keep the log is in the union of a core, or in that of what comes before it."""
    heard = SequencerCore.HEARS | StorageCore.HEARS | Bootstrap.HEARS | ControllerCore.HEARS
    known = {kind for kind in Message.__subclasses__() if kind.__module__ == Message.__module__}
    assert len(known) > 30
    assert known - heard == {FetchView}, "views are fetched from the coordinator"
