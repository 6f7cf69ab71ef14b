"""What a controller is doing, and what leads from one to the other."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Phase(Enum):
    """What a controller is doing."""

    FOLLOWING = "following"
    """It does not lead, or cannot reach the coordinator: it watches, and does nothing."""
    WATCHING = "watching"
    FORMING = "forming"
    """The first view is being installed."""
    CHANGING = "changing"
    RESTING = "resting"
    """After a change: until the new primaries lead, or until the pause is over. That doubles with each term that ends
    soon.
    """


NEXT: Final[dict[tuple[Phase, str], Phase]] = {
    (Phase.FOLLOWING, "leads"): Phase.WATCHING,
    (Phase.WATCHING, "enough nodes"): Phase.FORMING,
    (Phase.WATCHING, "change begun"): Phase.CHANGING,
    (Phase.WATCHING, "new view"): Phase.RESTING,
    (Phase.FORMING, "new view"): Phase.RESTING,
    (Phase.CHANGING, "new view"): Phase.RESTING,
    (Phase.CHANGING, "given up"): Phase.RESTING,
    (Phase.RESTING, "new view"): Phase.RESTING,
    (Phase.RESTING, "rested"): Phase.WATCHING,
    (Phase.WATCHING, "stands down"): Phase.FOLLOWING,
    (Phase.FORMING, "stands down"): Phase.FOLLOWING,
    (Phase.CHANGING, "stands down"): Phase.FOLLOWING,
    (Phase.RESTING, "stands down"): Phase.FOLLOWING,
}
