"""The documents are true: snippets run, commands parse, every setting is listed, every link leads somewhere."""

import ast
import asyncio
import inspect
import math
import os
import re
import shlex
import subprocess
import sys
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import boki.testing
from boki.cli.app import app
from boki.config.loading import DevConfig, flag, settings
from boki.launch.child import Child

ROOT = Path(__file__).parents[1]
DOCUMENTED_URL = "http://127.0.0.1:8080"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "boki/cli/template/README.md"]
PAGES = [*DOCUMENTS, *sorted((ROOT / "docs/design").glob("*.md")), ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md"]


def snippets(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The words after `boki` of every command in a console snippet."""
    found = []
    for document in DOCUMENTS:
        for line in "".join(snippets(document, "console")).splitlines():
            for part in re.split(r"&&|\|(?= boki)", line):
                words = shlex.split(part.split(" > ")[0], comments=True)
                if words[:1] == ["boki"]:
                    found.append(words[1:])
    return found


def parse(words: list[str]) -> None:
    """Let the command line take the words apart without running anything; it raises on what it does not know."""
    command = typer.main.get_command(app)
    context = command.make_context("boki", list(words), resilient_parsing=False)
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest and getattr(command, "invoke_without_command", False):
            return
        name, command, rest = command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


async def run_snippets(document: Path, url: str = "") -> list[str]:
    """Run all Python snippets of a document in one module, as if inside a function, then the tests that they define.

    Clients in them speak to the system at `url`.
    """
    module = types.ModuleType("snippets")
    ran = []
    async with boki.testing.context(book="docs") as ctx:
        vars(module)["ctx"] = ctx
        for number, snippet in enumerate(snippets(document, "python"), 1):
            name = f"{document.name}, snippet {number}"
            code = compile(
                snippet.replace(DOCUMENTED_URL, url),
                name,
                "exec",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )
            await _finished(eval(code, vars(module)))
            ran.append(name)
    for name, test in list(vars(module).items()):
        if name.startswith("test_"):
            await _finished(await asyncio.to_thread(test))
            ran.append(name)
    return ran


async def _finished(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A system that serves the first function of the API's page, and a workflow."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "functions").mkdir()
    (folder / "functions/orders.py").write_text(snippets(ROOT / "docs/api.md", "python")[0])
    welcome = next(one for one in snippets(ROOT / "docs/workflows.md", "python") if "async def welcome" in one)
    (folder / "functions/welcomes.py").write_text(welcome)
    config = DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)
    with Child(config).start() as child:
        yield child.url


@pytest.mark.xdist_group("one running system")
@pytest.mark.parametrize(
    "name", ["README.md", "docs/api.md", "docs/calls.md", "docs/objects.md", "docs/queues.md", "docs/workflows.md"]
)
def test_every_python_snippet_runs(name: str, url: str) -> None:
    """What a reader copies works."""
    assert asyncio.run(run_snippets(ROOT / name, url))


def test_the_page_on_testing_can_be_pasted_into_a_test_file(tmp_path: Path) -> None:
    """With nothing configured, all of its tests run and pass (found.md, E2)."""
    text = "\n\n".join(snippets(ROOT / "docs/testing.md", "python"))
    (tmp_path / "test_pasted.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_boki.plugin",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{text.count('def test_')} passed" in done.stdout


def test_a_snippet_that_is_wrong_is_found(tmp_path: Path) -> None:
    """The check above can fail, in a snippet and in a test that a snippet defines."""
    document = tmp_path / "bad.md"
    for snippet in ("assert await ctx.logbook.check_tail() is not None", "def test_it():\n    assert False"):
        document.write_text(f"```python\n{snippet}\n```\n")
        with pytest.raises(AssertionError):
            asyncio.run(run_snippets(document))


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_in_the_documents_parses(words: list[str]) -> None:
    """Commands, flags and arguments are those of the command line."""
    parse(words)


def test_a_command_with_an_unknown_flag_is_found() -> None:
    """The check above can fail."""
    assert len(commands()) > 15
    for words in (["invoke", "greet", "--colour"], ["lgo", "books"], ["log", "raed", "flights"], ["dev", "more"]):
        with pytest.raises(Exception, match=r"(?i)no such|unexpected"):
            parse(words)


def test_the_readme_has_exactly_two_set_up_commands() -> None:
    """One to see it work, one to test it."""
    lines = [line for block in snippets(ROOT / "README.md", "console") for line in block.splitlines() if "pip " in line]
    set_up = ["pip install '.[demo]' && boki demo", "pip install '.[dev]' && pytest"]
    assert [line for line in lines if "'" in line] == set_up
    assert [line for line in lines if "'" not in line] == ["pip install pytest && pytest"]  # in a project of `boki new`


def test_the_first_function_does_what_the_readme_says(tmp_path: Path) -> None:
    """It is the one that `boki new` makes, and each command with a comment prints what the comment says."""
    template = ROOT / "boki/cli/template"
    first = snippets(ROOT / "README.md", "python")[0]
    assert first == "# functions/hello.py\n" + (template / "functions/hello.py").read_text(encoding="utf-8")
    lines = "".join(snippets(ROOT / "README.md", "console")).splitlines()
    said = dict(line.split("#", 1) for line in lines if "#" in line)
    config = DevConfig(data=tmp_path, functions=template / "functions", port=0, reload=False)
    with Child(config).start() as child:
        for line, expected in said.items():
            words = shlex.split(line.replace(DOCUMENTED_URL, child.url))
            if words[:2] == ["curl", "-d"]:
                with urllib.request.urlopen(words[3], data=words[2].encode(), timeout=30) as answer:
                    printed = answer.read().decode()
            else:
                environment = os.environ | {"BOKI_URL": child.url}
                printed = subprocess.check_output([sys.executable, "-m", *words], env=environment, text=True).strip()
            if words[1:3] == ["log", "read"]:
                assert printed.endswith("\tguest:Ada\tAda")
            else:
                assert printed == expected.strip()
    assert len(said) == 3


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """From an empty folder, in order: files are written, commands are typed, the system is killed and started again."""
    (tmp_path / "functions").mkdir()
    config = DevConfig(data=tmp_path / "data", functions=tmp_path / "functions", port=0)
    compared = 0
    with Child(config) as child:
        text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
        for language, block in re.findall(r"^```(python|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if language == "python":
                (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block)
                continue
            for line in block.splitlines():
                command, _, expected = line.partition("  #")
                if command.startswith("kill -9"):
                    child.kill()
                elif command == "boki dev":
                    child.start()
                elif expected:
                    assert _comes_true(shlex.split(command), expected.strip(), child.url), line
                    compared += 1
    assert compared == 25


def _comes_true(words: list[str], expected: str, url: str) -> bool:
    """Whether the command prints that. What is read from a log may still be on its way there, and a module that was
    just saved may not be loaded yet: then a start or a call is refused, and is tried again.
    """
    may_be_early = words[1:3] in (["log", "read"], ["flow", "start"])
    for _ in range(60):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            env=os.environ | {"BOKI_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
        printed = (done.stdout or done.stderr).strip()
        if words[1:3] == ["log", "read"]:
            printed = ", ".join(sorted(line.rpartition("\t")[2] for line in printed.splitlines()[1:]))
        if printed == expected:
            return True
        if not (may_be_early or "there is no function" in printed):
            break
    print(printed)
    return False


def test_every_setting_is_listed_with_its_flag_and_variable() -> None:
    """The table of settings is the struct's."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_.]+)` \| `(\S+)` \| `(\S+)` \|", text, re.MULTILINE)
    assert rows == [(setting.name, flag(setting.name), setting.variable) for setting in settings(DevConfig)]


def slugs(page: Path) -> set[str]:
    """What links can name of a page: its headings, as GitHub and GitLab write them; a repeated one gets a number."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    counts = [plain[:number].count(slug) for number, slug in enumerate(plain)]
    return {f"{slug}-{count}" if count else slug for slug, count in zip(plain, counts, strict=True)}


def dead_links(page: Path, text: str) -> list[str]:
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        if "://" not in target and not (file.exists() and (not heading or heading in slugs(file))):
            found.append(target)
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    """No page points at a file or a heading that is not there."""
    assert not dead_links(page, page.read_text(encoding="utf-8"))


def test_a_dead_link_is_found() -> None:
    """The check above can fail."""
    text = "[a](nowhere.md) [b](DESIGN.md#nothing) [c](DESIGN.md#the-index-of-it) [d](DESIGN.md#what-is-durable-when)"
    assert len(dead_links(ROOT / "README.md", text)) == 3


def test_pages_that_code_names_are_there() -> None:
    """A comment that names a page leads to one that exists."""
    paths = [path for folder in ("boki", "functions", "tests") for path in (ROOT / folder).rglob("*.py")]
    named = {
        (path.name, page)
        for path in paths
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert not [(name, page) for name, page in named if not (ROOT / page).exists() and page != "docs/a.md"]


def test_the_design_has_two_pages() -> None:
    """200 lines of 100 columns, a table's long rows counted as what they fill: details have pages of their own."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    assert sum(max(1, math.ceil(len(line) / 100)) for line in text.splitlines()) <= 200
    listed = set(re.findall(r"\]\(docs/design/([\w-]+\.md)\)", text))
    assert listed == {page.name for page in (ROOT / "docs/design").glob("*.md")}


def missing_files(text: str) -> list[str]:
    """The Python files that code spans name and that are nowhere: by their path below the root or boki/, or its end."""
    paths = [
        path.relative_to(ROOT).as_posix() for folder in ("boki", "tests") for path in (ROOT / folder).rglob("*.py")
    ]
    named = [
        name for span in re.findall(r"`([^`\n]+)`", text) for name in re.findall(r"(?<![>\w/])\w[\w/]*\.py\b", span)
    ]
    return [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in paths)]


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "DESIGN.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "docs/simulation.md",
        *sorted((ROOT / "docs/design").glob("*")),
    ],
    ids=lambda path: path.name,
)
def test_files_that_pages_name_are_there(page: Path) -> None:
    """Whoever follows a walk, or looks up a mechanism, finds each file after it was moved."""
    assert not missing_files(page.read_text(encoding="utf-8"))


def test_a_file_that_is_nowhere_is_found() -> None:
    """The check above can fail."""
    assert missing_files("`engine/reads.py`, `core.py` and `engine/nowhere.py`") == ["engine/nowhere.py"]
