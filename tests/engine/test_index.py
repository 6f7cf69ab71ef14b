"""The index against the naive one: any history, on any number of logs and terms, with any amount of memory."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boki.log.view import place_book
from tests.engine.index_history import (
    BOOKS,
    KEYS,
    TAGS,
    WINDOW_US,
    CheckpointStep,
    Condition,
    CutStep,
    DrawnGroup,
    History,
    Step,
    TermStep,
    TrimStep,
    small_parts,
)

AMPLE = 1 << 30
NOTHING = 0

tag_sets = st.lists(st.sampled_from(TAGS), max_size=3, unique=True).map(tuple)
conditions = st.builds(Condition, st.sampled_from(TAGS), st.sampled_from((0, 0, 1, 2, 3, 3, 4, 5)))
groups = st.builds(
    DrawnGroup,
    st.sampled_from(BOOKS),
    st.lists(tag_sets, min_size=1, max_size=5).map(tuple),
    st.one_of(st.just(()), st.lists(conditions, max_size=2).map(tuple)),
    st.one_of(st.none(), st.none(), st.sampled_from(KEYS)),
)
chunks = st.lists(groups, min_size=1, max_size=3).map(tuple)
batches = st.lists(chunks, min_size=1, max_size=3).map(tuple)
shards = st.lists(batches, max_size=2).map(tuple)
cuts = st.builds(
    CutStep,
    st.integers(0, 2),
    st.sampled_from((0, 1, WINDOW_US - 1, WINDOW_US)),
    st.lists(shards, min_size=1, max_size=3).map(tuple),
)
trims = st.builds(
    TrimStep,
    st.sampled_from(BOOKS),
    st.one_of(st.none(), st.sampled_from(TAGS)),
    st.one_of(st.floats(0, 1), st.just(2.0)),
)
deletions = st.builds(
    TrimStep, st.sampled_from(BOOKS), st.none(), st.one_of(st.floats(0, 1), st.just(2.0)), st.just(True)
)
checkpoints = st.builds(CheckpointStep, st.booleans(), st.booleans())
terms = st.builds(TermStep, st.integers(1, 3))
histories = st.lists(st.one_of(cuts, cuts, cuts, trims, trims, deletions, checkpoints, checkpoints, terms), max_size=25)

patient = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def play(history: History, steps: list[Step]) -> None:
    for number, step in enumerate(steps):
        history.perform(step)
        if number % 8 == 7:
            history.compare()
    history.compare()
    history.tidy()
    history.compare()


@settings(patient, max_examples=40)
@given(histories)
def test_every_answer_is_the_naive_one_when_all_is_in_memory(steps: list[Step]) -> None:
    """Rows, floors, verdicts, places, times, lists: as the naive index has them, after any history."""
    play(History(memory_bytes=AMPLE), steps)


@settings(patient, max_examples=100)
@given(histories)
def test_every_answer_is_the_naive_one_when_nothing_stays_in_memory(steps: list[Step]) -> None:
    """The same when all that is stored leaves memory at once, so that every answer comes from the disk."""
    with small_parts():
        play(History(memory_bytes=NOTHING), steps)


@settings(patient, max_examples=100)
@given(histories, st.integers(2_000, 12_000))
def test_every_answer_is_the_naive_one_when_some_of_it_stays_in_memory(steps: list[Step], memory_bytes: int) -> None:
    """The same when rows are partly in memory, with gaps between their parts."""
    with small_parts():
        play(History(memory_bytes=memory_bytes), steps)


def one_cut(*groups_of_a_chunk: DrawnGroup) -> CutStep:
    """A cut of one batch in the log of book "a"."""
    return CutStep(place_book("a", 2), 0, (((groups_of_a_chunk,),),))


def test_a_book_whose_first_record_was_refused_is_listed_with_its_first_record() -> None:
    """A checkpoint in between writes nothing of a book without records: memory alone knows of it."""
    refused = one_cut(DrawnGroup("a", ((),), (Condition("x", 2),)))
    play(History(memory_bytes=AMPLE), [refused, CheckpointStep(), one_cut(DrawnGroup("a", ((),)))])


def test_a_key_whose_first_use_was_deleted_in_part_names_what_is_left_of_it() -> None:
    """Whatever happens to be in memory of what the deletion has hidden: all indexes answer alike."""
    first = one_cut(DrawnGroup("a", ((), ()), key="k"), DrawnGroup("a", ((),)))
    again = one_cut(DrawnGroup("a", ((),), key="k"))
    for memory_bytes in (AMPLE, NOTHING):
        play(History(memory_bytes=memory_bytes), [first, TrimStep("a", None, 0.5, everything=True), again])
