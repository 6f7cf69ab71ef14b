"""What the next term shall look like, and how it is chosen from what the operator wants and who is alive."""

from __future__ import annotations

from dataclasses import dataclass

from boki.log.ids import NodeId
from boki.log.view import View


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next term shall look like. Everything else of its view follows from how the last one ended."""

    log_count: int
    sequencers: tuple[NodeId, ...]
    incarnations: dict[NodeId, int]
    storage: tuple[NodeId, ...]
    replicas: int
    write_quorum: int
    primaries: tuple[NodeId, ...] = ()
    """Per log; none: the logs are spread over the sequencers in their order."""

    def first_view(self) -> View:
        """The view of term 1."""
        return self._view(1, (), 0)

    def next_view(self, last: View, ends: tuple[int, ...], start_time_us: int) -> View:
        """The view after `last`, whose logs ended at `ends`."""
        return self._view(last.term + 1, ends, start_time_us)

    def _view(self, term: int, ends: tuple[int, ...], start_time_us: int) -> View:
        spread = tuple(self.sequencers[log % len(self.sequencers)] for log in range(self.log_count))
        return View(
            term=term,
            log_count=self.log_count,
            sequencers=self.sequencers,
            primaries=self.primaries or spread,
            incarnations=self.incarnations,
            storage=self.storage,
            replicas=self.replicas,
            write_quorum=self.write_quorum,
            previous_ends=ends,
            start_time_us=start_time_us,
        )
