"""How results look: text for people, exact values for programs."""

import json

import pytest

from boki.cli.log import record_json
from boki.cli.terminal import data_text, print_json
from boki.log.ids import MAX_SEQNUM
from boki.log.record import Record


def test_seqnums_are_strings_in_json() -> None:
    """63 bits survive readers that know only floating-point numbers."""
    record = Record(MAX_SEQNUM, ("a",), b"x", None, 5)
    assert json.loads(json.dumps(record_json(record)))["seqnum"] == str(MAX_SEQNUM)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b'{"a": 1}', {"text": '{"a": 1}'}), (b"\xff\x00", {"base64": "/wA="}), (b"", {"text": ""})],
)
def test_data_is_text_if_it_is_text_and_base64_if_not(data: bytes, expected: dict[str, str]) -> None:
    """Nothing is lost or replaced."""
    assert record_json(Record(1, (), data, None, 5)).items() >= expected.items()


def test_data_stays_on_one_line_and_in_its_width() -> None:
    """Line ends, control characters and long data do not spoil a table."""
    for data in (b"a\nb", b"\x1b[31m", b"x" * 10_000, "é".encode() * 500):
        text = data_text(data, limit=40)
        assert text.isprintable()
        assert len(text) < 60


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Also if a text holds line ends."""
    print_json({"a": "b\nc"})
    print_json({"é": 1})
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"a": "b\nc"}, {"é": 1}]
