"""Histories that each release has recorded of each feature: today's code replays all of them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from boki.libs.bokiflow.recorded import decode
from tests.libs.bokiflow import golden_attendants
from tests.libs.bokiflow.golden import FEATURES, FOLDER, SINCE, files_of, parts_of, release_now
from tests.libs.bokiflow.test_checking import check_whole

RELEASES = sorted((path.name for path in FOLDER.iterdir()), key=parts_of)
FILES = [path for release in RELEASES for path in sorted((FOLDER / release).iterdir())]
ATTENDANT = ".attendant.json"


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def test_each_release_has_a_folder() -> None:
    """Those that the changelog names, and the one that is to come: `python -m tests.libs.bokiflow.golden` makes it."""
    changelog = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)
    assert sorted({*released, release_now()}, key=parts_of) == RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_each_feature_has_a_history_of_each_release_that_had_it(release: str) -> None:
    """And there is none of which nobody knows the workflow."""
    assert sorted(path.name for path in (FOLDER / release).iterdir()) == sorted(files_of(release))


def test_a_feature_is_in_the_releases_since_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier ones could not record it."""
    assert all(parts_of(since) <= parts_of(release_now()) for since in SINCE.values())
    monkeypatch.setitem(SINCE, "steps", "1.10.0")
    assert ["steps.json" in files_of(release) for release in ("0.1.0", "1.9.0", "1.10.0", "2.0.0")] == [0, 0, 1, 1]


@pytest.mark.parametrize("path", [path for path in FILES if not path.name.endswith(ATTENDANT)], ids=name_of)
def test_what_a_release_has_recorded_replays(path: Path) -> None:
    """All of it, and the code of today does the same."""
    found = decode(path.read_bytes(), path.name)
    assert found.journal
    asyncio.run(check_whole(FEATURES[path.stem], found))


@pytest.mark.parametrize("path", [path for path in FILES if path.name.endswith(ATTENDANT)], ids=name_of)
def test_what_an_attendant_of_a_release_has_recorded_is_read(path: Path) -> None:
    """Today's fold comes to the state of that release."""
    kind = path.name.removesuffix(ATTENDANT)
    found = golden_attendants.decode(path.read_bytes())
    assert len(found.records) > 5
    assert golden_attendants.folded(kind, found.records) == golden_attendants.state_of(kind, found)


@pytest.mark.parametrize("kind", golden_attendants.ATTENDANTS)
async def test_what_an_attendant_records_now_is_read(kind: str) -> None:
    """The way through the file changes nothing."""
    found = await golden_attendants.followed(kind)
    assert golden_attendants.decode(golden_attendants.encode(found)) == found
    assert golden_attendants.folded(kind, found.records) == golden_attendants.state_of(kind, found)
