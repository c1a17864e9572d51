"""The state of healing in words: whether all is whole, why that is unknown, and when it will be.

The command line and the page of the cluster use the same words.
"""

from __future__ import annotations

from chelonia.core.cluster.healing import HealStatus


def doubt(status: HealStatus) -> str:
    """Return why more may be exposed than these figures show; "" when they are complete."""
    if not status.leader:
        return "nobody leads repair"
    if not status.is_leader:
        return "the repair leader does not answer"
    if status.waits_for:
        return status.waits_for
    return "" if all(cursor.read for cursor in status.cursors) else "the repair leader is still looking"


def is_whole(status: HealStatus) -> bool:
    """Whether it is certain that nothing is exposed."""
    return not (status.exposed or status.lost or doubt(status))


def nothing_to_mend(status: HealStatus) -> bool:
    """Whether it is certain that nothing is exposed but lost blobs."""
    others = status.unreachable or any(found.live for found in status.exposed)
    return not others and sum(found.blobs for found in status.exposed) <= status.lost and not doubt(status)


def forecast(status: HealStatus) -> str:
    """Return the time to full health, in words."""
    if is_whole(status):
        return "it is whole"
    if status.lost and nothing_to_mend(status):
        return "never: what is lost is lost, unless a disk with it comes back; all else is whole"
    if status.control.paused:
        return "never, while it is paused"
    if not status.exposed or not status.is_leader or status.waits_for:
        return f"not known: {doubt(status)}"
    if status.at_rest:
        return "not known: nothing can be copied now"
    if status.forecast_ms < 0:
        return "not known yet: too little has been looked at or copied"
    seconds = status.forecast_ms / 1000
    if seconds < 100:
        return f"about {seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 100 else f"about {minutes // 60} h {minutes % 60} min"
