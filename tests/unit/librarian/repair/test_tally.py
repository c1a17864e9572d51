"""What repair knows by number, and how that is corrected."""

from chelonia.core.ids import BlobId, Ms
from chelonia.librarian.repair.plan.decide import BlobPlan
from chelonia.librarian.repair.tally import Tally


def plan(blob: str, live: int) -> BlobPlan:
    return BlobPlan(BlobId(blob), version=1, live=live, wanted=2, created_ms=Ms(0))


def test_a_blob_that_no_survey_finds_exposed_any_more_is_not_counted() -> None:
    """It was deleted or healed through another Librarian, so nothing here plans it again."""
    tally = Tally()
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
    tally = Tally()
    tally.note(plan("a", 1))
    tally.note(plan("a", 2))
    assert tally.exposed == 0
