"""Style as a test: how large, how named and how explained files are, and what the pure ones may touch.

Each rule is a function from a source text to the violations in it, and each has a test that it finds one: a check that
cannot fail is a defect.
"""

import ast
import fnmatch
import functools
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import markdown
from tests.wording import IDIOMS, plain_words

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
BANNED_STEMS = {"utils", "util", "helpers", "helper", "manager", "common", "base", "misc", "types", "impl", "service"}
IMPURE = {"asyncio", "time", "random", "os", "socket", "threading", "secrets", "uuid", "subprocess"}
PUBLIC_MODULES = {
    "boki",
    "boki.blocking",
    "boki.client",
    "boki.errors",
    "boki.extending",
    "boki.faces",
    "boki.retry",
    "boki.testing",
}
# What faces of libraries may see besides: see docs/libraries.md.
FACE_MODULES = re.compile(
    r"boki\.(protocol\.calls|log\.\w+|api\.(logbook|http\.exchange|payloads\.values)"
    r"|gateway\.server\.http(\.(answers|arguments|bodies|endpoints|events|openapi_parts))?|cli\.(connection|help|log|terminal|things))"
)
# The first folders of absolute paths that only exist on somebody's machine, and the way out of the checkout.
LOCAL_PATHS = re.compile(r"(?<![\w.\-/}>])/(?:home|root|Users|work|tmp|mnt|srv|opt)/[\w.]|\.\./shared\b")
UNFINISHED = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b")

Rule = Callable[[Path, str], list[str]]


@functools.lru_cache(maxsize=1)
def tree_of(source: str) -> ast.Module:
    """Parsed once for all rules that look at one file in turn: that is what they spend their time on."""
    return ast.parse(source)


@functools.lru_cache(maxsize=1)
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Every node of the tree, walked once for all rules."""
    return tuple(ast.walk(tree_of(source)))


def functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def small_files(_path: Path, source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{lines} lines: split it, files stay below {MAX_FILE_LINES}"] if lines >= MAX_FILE_LINES else []


def small_functions(_path: Path, source: str) -> list[str]:
    lengths = ((function.name, (function.end_lineno or 0) - function.lineno + 1) for function in functions(source))
    return [
        f"{name} has {lines} lines, the limit is {MAX_FUNCTION_LINES}"
        for name, lines in lengths
        if lines >= MAX_FUNCTION_LINES
    ]


def named_after_what_it_knows(path: Path, _source: str) -> list[str]:
    return [f"the name {path.stem} says nothing"] if path.stem.lower() in BANNED_STEMS else []


def explained(_path: Path, source: str) -> list[str]:
    """A module docstring everywhere; ruff asks for those of public classes and functions."""
    return (
        []
        if not source or ast.get_docstring(tree_of(source))
        else ["no module docstring: say what the file is for, and why"]
    )


def finished(_path: Path, source: str) -> list[str]:
    return [f"unfinished: {match.group()}" for match in UNFINISHED.finditer(source)]


def free_of_local_paths(_path: Path, source: str) -> list[str]:
    return [f"a path of one machine: {match.group()}" for match in LOCAL_PATHS.finditer(source)]


def pure(_path: Path, source: str) -> list[str]:
    """A core decides and a shell acts: no awaiting, no clock, no chance, no files, no logging."""
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found += [f"imports {alias.name}" for alias in node.names if alias.name.split(".")[0] in IMPURE]
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in IMPURE:
            found.append(f"imports {node.module}")
        elif isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"line {node.lineno}: async")
        elif isinstance(node, ast.AsyncFunctionDef) and not _only_described(node):
            found.append(f"line {node.lineno}: async def {node.name}")
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "logging" and not node.attr.isupper():
            found.append(f"line {node.lineno}: logging.{node.attr}")  # the names of levels are only numbers
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"open", "print", "input"}
        ):
            found.append(f"line {node.lineno}: {node.func.id}()")
    return found


def on_the_public_api(path: Path, source: str) -> list[str]:
    """The libraries are built on what users have; only the file layout lets them see more. Their faces may see more."""
    is_face = "face" in path.parts
    found = []
    for node in nodes_of(source):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        is_ours = [name for name in names if name.split(".")[0] == "boki" and not name.startswith("boki.libs")]
        seen = [name for name in is_ours if name in PUBLIC_MODULES or (is_face and FACE_MODULES.fullmatch(name))]
        found += [f"imports {name}" for name in is_ours if name not in seen]
    return found


def _only_described(function: ast.AsyncFunctionDef) -> bool:
    """A method of a Protocol: a docstring and nothing else."""
    return len(function.body) == 1 and ast.get_docstring(function) is not None


def sleepless(_path: Path, source: str) -> list[str]:
    """Tests wait for events or on a virtual clock. `sleep(0)` lets others run, `flow.sleep` is a timer of the log."""
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func) != "flow.sleep":
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_yield = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if name == "sleep" and not is_yield:
                found.append(f"line {node.lineno}: sleeps")
    return found


def property_said(_path: Path, source: str) -> list[str]:
    return [
        f"{function.name} has no docstring that says which property it holds"
        for function in functions(source)
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]


def always_run(_path: Path, source: str) -> list[str]:
    """Nothing is skipped: a test that does not run says nothing."""
    return [
        f"line {node.lineno}: {node.attr}"
        for node in nodes_of(source)
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "importorskip", "xfail"}
    ]


def one_width(_path: Path, source: str) -> list[str]:
    """Markdown wraps at one width, whoever wrote it."""
    return [f"{found}: wrap pages by `python -m tests.markdown`" for found in markdown.long_lines(source)]


def python_files(*folders: str) -> list[Path]:
    return sorted(
        path for folder in folders for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts
    )


def text_files() -> list[Path]:
    found = [path for folder in ("boki", "functions", "tests", "docs", ".ci") for path in (ROOT / folder).rglob("*")]
    found += [*ROOT.glob("*.md"), *ROOT.glob("*.toml")]
    return sorted(
        path for path in found if path.is_file() and path.suffix in {".py", ".md", ".toml", ".txt", ".sh", ""}
    )


def shells() -> list[str]:
    """The patterns of files that may do I/O: the very ones that ruff lets import asyncio."""
    ignores = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    return [each for pattern, rules in ignores.items() if "TID251" in rules for each in expanded(pattern)]


def expanded(pattern: str) -> list[str]:
    """The patterns that one with `{a,b}` stands for."""
    before, brace, rest = pattern.partition("{")
    words, _, after = rest.partition("}")
    return [f"{before}{word}{after}" for word in words.split(",")] if brace else [pattern]


def is_shell(path: Path, patterns: list[str]) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(fnmatch.fnmatch(name, pattern.replace("**", "*")) for pattern in patterns)


def violations(rules: list[Rule], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {text}"
        for path in paths
        for source in [path.read_text(encoding="utf-8")]
        for rule in rules
        for text in rule(path, source)
    ]


def refuse(found: list[str]) -> None:
    assert not found, "\n".join(["", *found])


def test_sources_are_small_named_explained_and_finished() -> None:
    """Every Python file keeps to the rules of size, name, explanation and completeness."""
    paths = python_files("boki", "functions", "tests")
    assert len(paths) > 20
    refuse(violations([small_files, small_functions, named_after_what_it_knows, explained, finished], paths))


def test_cores_are_pure() -> None:
    """Every file that ruff does not let import asyncio is synchronous and touches nothing outside itself."""
    patterns = shells()
    paths = [path for path in python_files("boki") if not is_shell(path, patterns)]
    names = {path.relative_to(ROOT).as_posix() for path in paths}
    assert {"boki/log/batch.py", "boki/sequencer/core.py", "boki/storage/core.py", "boki/engine/core.py"} <= names
    refuse(violations([pure], paths))


def test_libraries_and_applications_see_only_the_public_api() -> None:
    """What Boki's own libraries and examples can do, anybody's can do."""
    refuse(violations([on_the_public_api], python_files("boki/libs", "functions", "boki/cli/template")))


def test_tests_hold_a_property_without_sleeping_or_skipping() -> None:
    """Every test says what it holds, waits for nothing but events, and runs."""
    refuse(violations([sleepless, property_said, always_run], python_files("tests")))


def test_no_file_names_a_path_of_one_machine() -> None:
    """What is committed works in any checkout."""
    paths = [path for path in text_files() if path != Path(__file__)]
    assert len(paths) > 20
    refuse(violations([free_of_local_paths], paths))


def test_pages_have_one_width() -> None:
    """No line of a page is longer than all pages' width, tables and code aside."""
    assert len(markdown.pages()) > 20
    refuse(violations([one_width], markdown.pages()))


@pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: page.name)
def test_wrapping_changes_no_word_and_is_done_once(page: Path) -> None:
    """Whoever wraps a page loses nothing, and wrapping it again changes nothing."""
    text = page.read_text(encoding="utf-8")
    once = markdown.wrapped(text)
    assert once.split() == text.split()
    assert markdown.wrapped(once) == once


def test_wrapping_leaves_code_tables_and_links() -> None:
    """Only paragraphs and items are filled, and a line never begins with what would make it a list."""
    words = "word " * 30
    code = f"```text\n{words}\n```\n"
    table = f"| {words}| b |\n"
    assert markdown.wrapped(code) == code
    assert markdown.wrapped(table) == table
    link = f"[a {words.strip()}](docs/a.md)"
    assert link in markdown.wrapped(f"{words}{link} {words}\n")
    item = markdown.wrapped(f"- {words * 2}\n").splitlines()
    assert [line[:2] for line in item] == ["- ", "  ", "  ", "  "]
    dashed = markdown.wrapped("- " + "- x " * 60).splitlines()
    assert not [line for line in dashed[1:] if line.strip().startswith("-")]


def test_prose_is_plain() -> None:
    """Comments, docstrings and pages use the words of the field: each idiom that is refused comes with its remedy."""
    assert len(IDIOMS) >= 25
    sources = [path for path in python_files("boki", "functions", "tests") if path.name != "wording.py"]
    refuse(violations([plain_words], [*sources, *markdown.pages()]))


IDIOMATIC = """
begins anew; lost for ever; it goes on; others go on; so many messages; for so long; gone for good; taken for lost; is
mended; held against a model; looks whether; sees to it; lets go of it; lies still; stands still; tells of it; is passed
by; without end; shall be; what there is; records that are there; what came of it; in vain; lest it ends; acted upon;
follow one another; thereby; to be had; is put right; comes to nothing; some day; runs out of time; a line's begin; come
into being; as many as may be; rightly; till then; by and by; of its own accord; as it were; must needs; dawdles;
leavings; a sighting; its farewell; say it by the option; letting be
"""


@pytest.mark.parametrize(("pattern", "remedy"), IDIOMS.items())
def test_every_idiom_is_found(pattern: str, remedy: str) -> None:
    """In a docstring, over the end of a line, in a comment and on a page; not in a code span. The remedy is said."""
    (words,) = [each for each in IDIOMATIC.replace("\n", " ").split(";") if re.search(pattern, each)][:1]
    two_lines = words.strip().replace(" ", "\n", 1)
    for path, source in {
        "a.py": f'"""{words}"""',
        "b.py": f'"""Why.\n\n{two_lines}\n"""',
        "c.py": f"x = 1  # {words}",
        "d.md": f"# A\n\n{two_lines}",
    }.items():
        found = plain_words(Path(path), source)
        assert any(each.endswith(remedy) for each in found), (path, source)
    assert not plain_words(Path("a.md"), f"`{words.strip()}`\n```text\n{words}\n```\n")


LONG_FUNCTION = "def long():\n" + "    x = 1\n" * MAX_FUNCTION_LINES

BAD: list[tuple[Rule, str, str]] = [
    (small_files, "a.py", "x = 1\n" * MAX_FILE_LINES),
    (small_functions, "a.py", LONG_FUNCTION),
    (named_after_what_it_knows, "utils.py", ""),
    (explained, "a.py", "x = 1\n"),
    (finished, "a.py", "# TO" + "DO: later\n"),
    (free_of_local_paths, "a.md", "see /ho" + "me/ann/notes"),
    (free_of_local_paths, "a.md", "see ../sha" + "red/design.md"),
    (pure, "core.py", "import asyncio"),
    (pure, "core.py", "from time import monotonic"),
    (pure, "core.py", "async def f(): pass"),
    (pure, "core.py", "async def f():\n    await g()"),
    (pure, "core.py", "import logging\nlogging.getLogger('x')"),
    (pure, "core.py", "open('x')"),
    (on_the_public_api, "queue.py", "from boki.log.record import Record"),
    (on_the_public_api, "queue.py", "import boki.engine.core"),
    (on_the_public_api, "queue.py", "import boki.protocol.calls"),
    (on_the_public_api, "face/http.py", "import boki.gateway.core"),
    (sleepless, "test_a.py", "time.sleep(0.1)"),
    (sleepless, "test_a.py", "await_(sleep(1))"),
    (property_said, "test_a.py", "def test_a(): pass"),
    (one_width, "a.md", "word " * 30),
    (plain_words, "a.py", '"""It begins anew."""'),
    (always_run, "test_a.py", "@pytest.mark.skip\ndef test_a(): pass"),
]

GOOD: list[tuple[Rule, str, str]] = [
    (small_files, "a.py", "x = 1\n" * (MAX_FILE_LINES - 1)),
    (small_functions, "a.py", LONG_FUNCTION.removesuffix("    x = 1\n" * 2)),
    (named_after_what_it_knows, "quorum.py", ""),
    (explained, "a.py", '"""Why."""\n'),
    (finished, "a.py", "# done\n"),
    (free_of_local_paths, "a.md", "POST /function/greet, boki/log/ids.py and /tmp"),
    (pure, "core.py", "import struct\nfrom boki.log.ids import Term\n"),
    (pure, "port.py", 'class Port(Protocol):\n    async def ask(self) -> int:\n        """The answer."""'),
    (pure, "core.py", "import logging\nTrace(logging.INFO, 'x')"),
    (explained, "__init__.py", ""),
    (
        on_the_public_api,
        "face/http.py",
        "import boki.protocol.calls\nfrom boki.gateway.server.http.answers import json_answer",
    ),
    (on_the_public_api, "queue.py", "import boki.testing\nfrom boki import Context\nfrom boki.libs.q import state"),
    (sleepless, "test_a.py", "asyncio.sleep(0)"),
    (plain_words, "a.py", '"""It begins again."""\nx = "anew"'),
    (one_width, "a.md", f"| {'word ' * 30}|\n```\n{'word ' * 30}\n```\n"),
    (property_said, "test_a.py", 'def test_a():\n    """Holds."""'),
    (always_run, "test_a.py", "@pytest.mark.parametrize('x', [1])\ndef test_a(x): pass"),
]


@pytest.mark.parametrize(("rule", "name", "source"), BAD, ids=lambda value: getattr(value, "__name__", None))
def test_every_rule_finds_a_violation(rule: Rule, name: str, source: str) -> None:
    """A rule that can find nothing would hold nothing."""
    assert rule(Path(name), source)


@pytest.mark.parametrize(("rule", "name", "source"), GOOD, ids=lambda value: getattr(value, "__name__", None))
def test_every_rule_lets_good_sources_pass(rule: Rule, name: str, source: str) -> None:
    """A rule that refuses everything would be switched off."""
    assert not rule(Path(name), source)


def test_every_rule_is_tried_on_a_violation() -> None:
    """No rule is added without the proof that it works."""
    rules = {
        name
        for name, value in globals().items()
        if callable(value)
        and getattr(value, "__annotations__", {}).get("return") == list[str]
        and "source" in "".join(value.__annotations__)
    }
    assert rules == {rule.__name__ for rule, _, _ in BAD}
