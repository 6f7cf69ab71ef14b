"""What a gateway answers to those who keep no views of their own (`boki.libs.bokistore.far`)."""

from __future__ import annotations

from typing import Final

from boki import InvalidArgument, TooLarge
from boki.libs.bokistore.far import MAX_ASKED, Held, Views, Wanted
from boki.libs.bokistore.json_values import MISSING, encode
from boki.libs.bokistore.queries import answer_of
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.views import View
from boki.libs.fold.steps import Steps

MAX_ANSWER_BYTES: Final = 16 << 20


def answer(reader: Reader, wanted: Wanted) -> Steps[Views]:
    """The answers and views that are wanted, all as of one moment."""
    names = list(dict.fromkeys([*(name for name, _ in wanted.questions), *wanted.objects]))
    if not names or len(wanted.questions) + len(wanted.objects) > MAX_ASKED:
        raise InvalidArgument(f"ask 1 to {MAX_ASKED:,} questions or objects at once", field="questions")
    seqnum, views = yield from reader.views_of(names, wanted.at)
    answers = [answer_of(name, question, views[name].value) for name, question in wanted.questions]
    held = [_held(views[name]) for name in wanted.objects]
    size_bytes = sum(len(encode(value)) for value in answers if value is not MISSING)
    if size_bytes + sum(views[name].size_bytes for name in wanted.objects) > MAX_ANSWER_BYTES:
        raise TooLarge(f"the answers have more than {MAX_ANSWER_BYTES:,} bytes: ask fewer at once", field="questions")
    return Views(seqnum, [[] if value is MISSING else [value] for value in answers], held)


def _held(view: View) -> Held:
    value = [] if view.value is MISSING else [view.value]
    return Held(value, view.last, view.since, view.version, view.is_listed)
