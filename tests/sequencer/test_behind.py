"""What a backup knows of the records that are in front of cuts that run ahead."""

from __future__ import annotations

from boki.log.ids import NodeId
from boki.protocol.messages import RecordsTaken
from boki.sequencer.behind import Behind


def test_an_answer_of_what_lies_below_what_is_known_counts() -> None:
    """Else the same question is asked again at once, and answered, and asked (seed 105935)."""
    behind = Behind(NodeId("storage-1"))
    behind.note(RecordsTaken(1, 0, 7, 20, 30))
    behind.note(RecordsTaken(1, 0, 7, 8, 13))
    assert behind.reach(1, 0, 7, 8) == 13
    behind.note(RecordsTaken(1, 0, 7, 13, 15))
    assert behind.reach(1, 0, 7, 8) == 15
