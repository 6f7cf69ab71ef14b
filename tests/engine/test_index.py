"""The index against the naive one: any history, on any number of logs and terms, with any amount of memory."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boki.engine.index.layout import HISTORY_PAGES
from boki.log.ids import MAX_SEQNUM
from boki.log.view import place_book
from tests.engine.index_history import (
    BOOKS,
    FENCE,
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
forgets = st.builds(
    TrimStep,
    st.sampled_from(BOOKS),
    st.sampled_from(TAGS),
    st.one_of(st.floats(0, 1), st.just(2.0)),
    st.just(False),
    st.just(True),
    st.one_of(st.just(()), st.just(TAGS)),
)
checkpoints = st.builds(CheckpointStep, st.booleans(), st.booleans())
terms = st.builds(TermStep, st.integers(1, 3))
histories = st.lists(
    st.one_of(cuts, cuts, cuts, trims, trims, forgets, deletions, checkpoints, checkpoints, terms), max_size=25
)

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


def cut_of(*tags: str) -> CutStep:
    """One record of book "a" with these tags."""
    return one_cut(DrawnGroup("a", (tags,)))


def pages_on_disk(history: History) -> int:
    return sum(key.startswith(HISTORY_PAGES) for key in history.disk.rows)


def test_a_row_that_is_forgotten_before_the_disk_has_heard_of_it_stays_empty() -> None:
    """What the disk still has of it is read by nothing that comes before the next checkpoint, or after it."""
    forget = TrimStep("a", FENCE, 2.0, forgets=True)
    for between in ([], [TrimStep("a", FENCE, 2.0)], [TrimStep("a", FENCE, 2.0), CheckpointStep(is_stored=False)]):
        with small_parts():
            steps = [cut_of(FENCE), cut_of(FENCE), CheckpointStep(), *between, forget, cut_of(FENCE), CheckpointStep()]
            play(History(memory_bytes=NOTHING), steps)


def test_pages_of_the_order_go_when_no_record_is_left_in_them() -> None:
    """One that is kept holds its page, and no other; a tag alone does, too, and so does a key while it counts."""
    with small_parts():
        history = History(memory_bytes=NOTHING)
        for number in range(60):
            history.perform(cut_of("x", *["y"] * (number == 20)))
            if number % 5 == 4:
                history.perform(CheckpointStep())
        assert pages_on_disk(history) >= 20
        for tag in ("x", "y"):
            history.perform(TrimStep("a", tag, 2.0, forgets=True))
            for _ in range(4 * pages_on_disk(history)):  # a round comes when there are more pages than it left before
                history.perform(cut_of("xy"))
            history.perform(TrimStep("a", "xy", 2.0, forgets=True))
            for _ in range(5):
                history.perform(CheckpointStep())
            history.compare()
            assert pages_on_disk(history) <= 4
        assert not list(history.index.page("a", None, 0, MAX_SEQNUM, 10))
