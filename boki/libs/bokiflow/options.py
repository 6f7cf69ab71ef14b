"""Options of starts and schedules, as all that offer these take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from boki.extending import Attribute
from boki.libs.bokiflow.schedules.handle import IfExists
from boki.libs.bokiflow.schedules.spec import Overlap

IfRunning = Literal["use", "fail", "kill"]
IfEnded = Literal["use", "fail", "again", "again_if_failed"]


class StartOptions(TypedDict, total=False):
    """Options of `Workflow.start`, but for limit and book, and of `FlowClient.start`."""

    id: str | None
    if_running: IfRunning
    if_ended: IfEnded
    delay_s: float
    attributes: Mapping[str, Attribute] | None
    limit_key: str | None
    priority: int


class ScheduleOptions(TypedDict, total=False):
    """Options of `Workflow.schedule` and `FlowClient.schedule`, but for id and book."""

    cron: str
    every_s: float
    offset_s: float
    zone: str
    overlap: Overlap
    catch_up_s: float
    jitter_s: float
    attributes: Mapping[str, Attribute] | None
    is_paused: bool
    if_exists: IfExists
