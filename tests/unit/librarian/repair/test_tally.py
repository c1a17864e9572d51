"""Repair's counts, and their corrections."""

from chelonia.core.bounds import LOST_NAMES_SHOWN
from chelonia.core.cluster.healing import Endangered
from chelonia.core.ids import BlobId, Ms
from chelonia.librarian.repair.plan.decide import BlobPlan
from chelonia.librarian.repair.tally import RepairTally


def plan(blob: str, live: int) -> BlobPlan:
    return BlobPlan(BlobId(blob), version=1, live=live, wanted=2, created_ms=Ms(0))


def test_a_blob_that_no_survey_finds_exposed_any_more_is_not_counted() -> None:
    """It was deleted or healed through another Librarian, so nothing here plans it again."""
    tally = RepairTally()
    tally.note(plan("a", 1))
    tally.note(plan("b", 0))
    tally.begin()
    tally.note(plan("b", 0))
    assert tally.exposed == 2
    tally.end()
    assert tally.exposed == 1
    tally.begin()
    tally.note(plan("c", 1))
    tally.end()
    assert tally.exposed == 1


def test_a_plan_corrects_the_count_at_once() -> None:
    tally = RepairTally()
    tally.note(plan("a", 1))
    tally.note(plan("a", 2))
    assert tally.exposed == 0


def lost(blob: str) -> Endangered:
    return Endangered(BlobId(blob), f"/{blob}", 0, 2, 7, Ms(0))


def test_lost_blobs_are_counted_and_the_first_named_until_one_comes_back_or_is_gone() -> None:
    tally = RepairTally()
    assert tally.lose(lost("a"))
    assert not tally.lose(lost("a")), "told once"
    tally.note(plan("a", 0))
    tally.note(plan("b", 0))
    assert (tally.lost, tally.unreachable, tally.lost_named) == (1, 1, (lost("a"),))
    for number in range(LOST_NAMES_SHOWN):
        tally.lose(lost(f"n{number}"))
    assert (tally.lost, len(tally.lost_named)) == (LOST_NAMES_SHOWN + 1, LOST_NAMES_SHOWN)
    tally.found(BlobId("a"))
    assert tally.lost == LOST_NAMES_SHOWN
    assert not tally.lose(lost(f"n{LOST_NAMES_SHOWN - 1}"))
    assert len(tally.lost_named) == LOST_NAMES_SHOWN, "the next survey names one in the place of what came back"
    tally.begin()
    tally.lose(lost("n1"))
    tally.end()
    assert (tally.lost, tally.exposed) == (1, 0), "what no survey meets is gone"
