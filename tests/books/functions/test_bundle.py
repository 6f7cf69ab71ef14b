"""Bundles: equal bytes for equal folders, and nothing that leads out of a folder."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.books.functions.bundle import (
    MAGIC,
    MAX_BUNDLE_BYTES,
    MAX_FILES,
    VERSION,
    File,
    bundle_hash,
    module_names,
    pack_files,
    read_bundle,
)
from boki.books.functions.folder import pack_folder
from boki.errors import BokiError, InvalidArgument, TooLarge, VersionTooNew

APP = File("app.py", b"x = 1\n")


def raw(*files: tuple[str, bytes]) -> bytes:
    """A bundle as a stranger may make it."""
    return MAGIC + bytes((VERSION,)) + msgspec.msgpack.encode(list(files))


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return folder


def test_equal_folders_make_equal_bundles(tmp_path: Path) -> None:
    """Whatever their times, modes and the order in which their files were made."""
    first = write(tmp_path / "a", app="x", shared__names="y", zebra="z")
    second = write(tmp_path / "b", zebra="z", shared__names="y", app="x")
    (second / "app.py").chmod(0o700)
    os.utime(second / "app.py", (1, 1))
    assert pack_folder(first) == pack_folder(second)
    (second / "zebra.py").write_text("other")
    assert bundle_hash(pack_folder(first)) != bundle_hash(pack_folder(second))


def test_a_bundle_gives_the_files_back(tmp_path: Path) -> None:
    """Also binary ones, empty ones and those in folders; the modules are the files at the top."""
    folder = write(tmp_path / "f", app="x", shared__inner="y", _common="z")
    (folder / "table.bin").write_bytes(bytes(range(256)))
    (folder / "empty.txt").touch()
    files = read_bundle(pack_folder(folder))
    assert {file.path: file.content for file in files} == {
        "_common.py": b"z",
        "app.py": b"x",
        "empty.txt": b"",
        "shared/inner.py": b"y",
        "table.bin": bytes(range(256)),
    }
    assert module_names(files) == ["app"]


def test_the_layout_is_pinned() -> None:
    """Bundles of this version stay readable: they are records, and their hashes are names."""
    assert pack_files([File("b/c.txt", b""), APP]).hex() == "4246019292a66170702e7079c406" + b"x = 1\n".hex() + (
        "92a7622f632e747874c400"
    )


def test_caches_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    """They are of the machine, not of the functions."""
    folder = write(tmp_path / "f", app="x")
    for path in (".git/config", ".env", "__pycache__/app.cpython-311.pyc", "old.pyc", "sub/.hidden"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("secret")
    assert [file.path for file in read_bundle(pack_folder(folder))] == ["app.py"]


@pytest.mark.parametrize("target", ["app.py", "/etc/passwd", "..", "nowhere"])
def test_links_are_refused(tmp_path: Path, target: str) -> None:
    """Wherever they lead: what they stand for may be anything of this machine."""
    folder = write(tmp_path / "f", app="x")
    (folder / "link.py").symlink_to(target)
    with pytest.raises(InvalidArgument, match=r"link\.py is a link"):
        pack_folder(folder)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Reading a pipe would never end."""
    folder = write(tmp_path / "f", app="x")
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidArgument, match="neither a file nor a folder"):
        pack_folder(folder)


@pytest.mark.parametrize("what", ["nothing", "file", "empty", "private"])
def test_a_folder_without_modules_is_refused(tmp_path: Path, what: str) -> None:
    """The error says what would be one."""
    folder = tmp_path / "f"
    if what == "file":
        folder.touch()
    elif what != "nothing":
        write(folder, **({"_only": "x"} if what == "private" else {}))
    with pytest.raises(InvalidArgument, match="no folder" if what in ("nothing", "file") else "no module"):
        pack_folder(folder)


def test_a_folder_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """By bytes and by files; the message names the file that crossed the limit."""
    folder = write(tmp_path / "f", app="x")
    with (folder / "data.bin").open("wb") as file:
        file.truncate(100 * MAX_BUNDLE_BYTES)  # a hole, which takes no space
    with pytest.raises(TooLarge, match=r"data\.bin"):
        pack_folder(folder)
    with pytest.raises(TooLarge, match="files"):
        pack_files([APP, *(File(f"f{number}", b"") for number in range(MAX_FILES))])


HOSTILE = [
    "/etc/passwd",
    "../up.py",
    "a/../../up.py",
    "a//b.py",
    "./a.py",
    "a/.",
    "",
    ".hidden",
    "a/.git/config",
    "a\\..\\b.py",
    "C:/x.py",
    "a\x00b.py",
    "a\nb.py",
    "a\x9fb.py",
    "x/" * 40 + "y.py",
    "y" * 600,
]


@pytest.mark.parametrize("path", HOSTILE)
def test_paths_that_are_not_plain_are_refused(path: str) -> None:
    """None of them is ever joined to a folder."""
    with pytest.raises(InvalidArgument):
        read_bundle(raw(("app.py", b""), (path, b"x")))
    with pytest.raises(InvalidArgument):
        pack_files([APP, File(path, b"x")])


def test_a_name_that_no_file_system_holds_is_refused() -> None:
    """Where it is packed and where it is read, not by the engine that unpacks it."""
    for make in (lambda: pack_files([APP, File("y" * 257, b"")]), lambda: read_bundle(raw(("y" * 257, b"")))):
        with pytest.raises(TooLarge) as caught:
            make()
        assert caught.value.message == (
            f"a name in a bundle may have at most 255 bytes, as in file systems: '{'y' * 100}'"
        )
    assert read_bundle(pack_files([APP, File("y" * 255, b"")]))


def test_a_list_of_too_many_files_is_refused_before_it_is_decoded() -> None:
    """16 MiB can claim four million empty ones: nothing is made of them."""
    for head in (b"\xdd\x00\x3d\x09\x00", b"\xdc\xff\xff"):
        tracemalloc.start()
        with pytest.raises(TooLarge, match=r"may have at most 4,000 files, not (4,000,000|65,535): leave data out"):
            read_bundle(MAGIC + bytes((VERSION,)) + head + b"\x92\xa0\xc4\x00" * 1_000_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 10_000_000, "the bundle itself"


def test_a_list_that_is_nested_too_deeply_is_refused() -> None:
    """As what it is, and not as a bug of the gateway."""
    deep = MAGIC + bytes((VERSION,)) + b"\x91\x93\xa1a\xc4\x00" + b"\x91" * 100_000
    with pytest.raises(InvalidArgument, match="this is no bundle of functions: it is nested too deeply"):
        read_bundle(deep)


def test_files_that_contradict_each_other_are_refused() -> None:
    """The same path twice, and a file that is another one's folder."""
    with pytest.raises(InvalidArgument, match="twice"):
        read_bundle(raw(("app.py", b""), ("app.py", b"x")))
    with pytest.raises(InvalidArgument, match="below another file"):
        read_bundle(raw(("app.py", b""), ("app.py/x", b"x")))


def test_a_newer_version_is_refused_by_name() -> None:
    """Its layout is not guessed at."""
    with pytest.raises(VersionTooNew, match="version 2"):
        read_bundle(MAGIC + b"\x02")
    with pytest.raises(InvalidArgument, match="no bundle"):
        read_bundle(b"PK\x03\x04")
    with pytest.raises(TooLarge):
        read_bundle(bytes(MAX_BUNDLE_BYTES + 1))


@given(st.binary(max_size=80))
def test_whatever_bytes_come_the_answer_is_files_or_an_error(data: bytes) -> None:
    """And the files, if any, are plain."""
    try:
        files = read_bundle(MAGIC + data)
    except (InvalidArgument, VersionTooNew):
        return
    assert all(not file.path.startswith(("/", ".")) for file in files)


@given(st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=20)), max_size=5))
def test_what_is_read_stays_below_its_folder(files: list[tuple[str, bytes]]) -> None:
    """For any paths at all."""
    folder = Path("/data/functions")
    try:
        found = read_bundle(raw(("app.py", b""), *files))
    except BokiError:
        return
    except UnicodeEncodeError:
        return
    for file in found:
        assert Path(os.path.normpath(folder / file.path)).is_relative_to(folder)
        assert os.path.normpath(folder / file.path) == str(folder / file.path)
