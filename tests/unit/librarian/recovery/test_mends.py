"""Faults that are gone before fsck mends them."""

from __future__ import annotations

from chelonia.core.ids import ROOT, ObjectId
from chelonia.core.ports.librarian import Finding, Severity
from chelonia.librarian.recovery import invariants
from tests.support.librarian import ADMIN, BARTENDER, bench


async def test_a_name_that_is_reserved_anew_while_fsck_looks_does_not_end_it() -> None:
    """The whole call was refused as if somebody had removed a collection that is not empty."""
    async with bench() as made:
        await made.service.begin_put(BARTENDER, made.begin("coming", named=True))
        found = Finding(ObjectId(ROOT), invariants.EXPIRED, "coming", Severity.WORK, "")
        assert await made.service._parts.fsck._with_cure(ADMIN, found) == found
