"""`boki store` against a running system."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from boki.cli.app import app
from boki.client import BlockingClient
from boki.config.loading import DevConfig
from boki.launch.child import Child
from boki.libs.bokistore.blocking import Store

pytestmark = pytest.mark.xdist_group("one running system for objects")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("objects")
    (folder / "functions").mkdir()
    with Child(DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)).start() as child:
        yield child.url


def boki(url: str, *words: str, code: int = 0, stdin: str = "") -> Result:
    done = CliRunner().invoke(app, ["store", *words, "--url", url], input=stdin)
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def test_objects_are_set_read_changed_and_deleted(url: str) -> None:
    """JSON as JSON, anything else as text; what is not there ends with code 1."""
    boki(url, "get", "shop", "ada", code=1)
    boki(url, "set", "shop", "ada", '{"name": "Ada"}')
    boki(url, "set", "shop", "ada", "London", "--path", "city")
    boki(url, "set", "shop", "ada", "-", "-p", "age", stdin="36")
    assert json.loads(boki(url, "get", "shop", "ada").stdout) == {"name": "Ada", "city": "London", "age": 36}
    assert boki(url, "get", "shop", "ada", "--path", "city").stdout == "London\n"
    assert json.loads(boki(url, "get", "shop", "ada", "-p", "age", "--json").stdout) == {"object": "ada", "value": 36}
    assert boki(url, "increment", "shop", "ada", "age", "--by=-6", "--key", "k").stdout == "30\n"
    assert boki(url, "increment", "shop", "ada", "age", "--by=-6", "--key", "k").stdout == "30\n"
    boki(url, "patch", "shop", "ada", '{"city": null}')
    assert json.loads(boki(url, "get", "shop", "ada").stdout) == {"name": "Ada", "age": 30}
    boki(url, "delete", "shop", "ada", "--path", "age")
    boki(url, "delete", "shop", "ada", "--path", "age", code=1)
    boki(url, "set", "shop", "ada", "{oops", code=2)
    for number in ("NaN", "-Infinity", "inf"):
        refused = boki(url, "set", "shop", "ada", "-", "-p", "age", stdin=number, code=2)
        assert f"{number} is not a value of JSON" in refused.output
    assert json.loads(boki(url, "get", "shop", "ada").stdout) == {"name": "Ada"}
    boki(url, "patch", "shop", "ada", "not an object", code=2)
    assert boki(url, "increment", "shop", "far", "--by=1e300").stdout == "1e+300\n"
    boki(url, "set", "shop", "ada", "1", "--path", "name.first", code=1)


def test_text_is_printed_as_it_is_and_takes_one_line_of_a_list(url: str) -> None:
    """`get` prints what the object holds, tabs and colons too; between others a text cannot look like two items."""
    text = "a\tb\n\x1b[2J:x:"
    with BlockingClient(url) as client:
        store = Store(client.logbook("texts"))
        store.object("one").set("", text)
        store.map("users").set("ada", text)
    assert boki(url, "get", "texts", "one").stdout == f"{text}\n"
    assert boki(url, "scan", "texts", "users").stdout == "ada\ta\\tb\\n\\x1b[2J:x:\n"


def test_names_are_listed(url: str) -> None:
    """Page by page, of objects and of maps; a counter is a number."""
    for name in ("b", "c", "a"):
        boki(url, "increment", "names", name)
    with BlockingClient(url) as client:
        Store(client.logbook("names")).map("users").set("ada", 36)
    assert boki(url, "get", "names", "a").stdout == "1\n"
    assert boki(url, "list", "names", "-n", "2").stdout == "a\nb\n"
    assert boki(url, "list", "names", "--after", "b", "--json").stdout == '{"object":"c"}\n'
    assert boki(url, "list", "names", "--maps").stdout == "users\n"


def test_the_past_and_forks(url: str) -> None:
    """A history in a table and as JSON, a value as of a seqnum, and a copy."""
    for number in range(3):
        boki(url, "set", "shop", "x", str(number))
    versions = [json.loads(line) for line in boki(url, "history", "shop", "x", "--json").stdout.splitlines()]
    assert [version["value"] for version in versions] == [0, 1, 2]
    table = boki(url, "history", "shop", "x", "-n", "2").stdout.splitlines()
    assert len(table) == 3
    times = [line.split("\t")[1] for line in boki(url, "history", "shop", "x").stdout.splitlines()[1:]]
    assert boki(url, "get", "shop", "x", "--at-time", times[1]).stdout == "1\n"
    boki(url, "get", "shop", "x", "--at-time", "yesterday", code=2)
    said = boki(url, "get", "shop", "x", "--at", "1", "--at-time", times[1], code=2).stderr
    assert "--at-time" in said
    at = str(versions[1]["seqnum"])
    assert boki(url, "get", "shop", "x", "--at", at).stdout == "1\n"
    boki(url, "fork", "shop", "shop-copy", "--at", at)
    assert boki(url, "get", "shop-copy", "x").stdout == "1\n"
    boki(url, "fork", "shop", "shop", code=2)
    boki(url, "configure", "shop", "--history-s", "3600")
    boki(url, "configure", "shop", "--keep-all")
    boki(url, "configure", "shop", code=2)


def test_items_of_a_map(url: str) -> None:
    """In order, with the partitions that it was made with."""
    boki(url, "scan", "shop", "users", code=1)
    with BlockingClient(url) as client:
        Store(client.logbook("shop")).map("users", partitions=3).set_many({"bob": {"n": 1}, "ada": "text"})
    assert boki(url, "scan", "shop", "users").stdout == 'ada\ttext\nbob\t{"n":1}\n'
    rows = [
        json.loads(line) for line in boki(url, "scan", "shop", "users", "--after", "ada", "--json").stdout.splitlines()
    ]
    assert rows == [{"key": "bob", "value": {"n": 1}}]


def test_other_records_are_not_appended_under_the_tags_of_the_store(url: str) -> None:
    """By hand they would be taken for changes of objects."""
    done = CliRunner().invoke(app, ["log", "append", "shop", "x", "--tag", "!o:ada", "--url", url])
    assert done.exit_code == 2
