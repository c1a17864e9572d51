"""Uploads that are not stored yet: refused ones, waiting ones without space, forgotten ones."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chelonia.core import bounds
from chelonia.core.ids import Dn, ReferenceId
from chelonia.shepherd.rules.open_uploads import NOBODY, Crowd, OpenUploads, TicketedUpload

OF_OWNER, OF_ALL, KEPT_MS = 3, 5, 100


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "UPLOADS_OPEN_PER_OWNER_MAX", OF_OWNER)
    monkeypatch.setattr(bounds, "UPLOADS_OPEN_MAX", OF_ALL)


def asked(uploads: OpenUploads, *words: str, now_ms: int = 0) -> list[Crowd | None]:
    """The refusal of each: `a1` is a's first, of one byte; `!1` a claimed copy. A refused caller opens nothing."""
    told = []
    for word in words:
        owner = NOBODY if word[0] == "!" else Dn(word[0])
        told.append(uploads.crowded(owner, now_ms))
        if told[-1] is None:
            uploads.add(TicketedUpload(ReferenceId(word), owner, int(word[1:]), now_ms + KEPT_MS))
    return told


def test_uploads_that_do_not_begin_shut_nobody_out_and_the_earliest_are_forgotten() -> None:
    uploads = OpenUploads()
    assert asked(uploads, *(f"a{n}" for n in range(1, 8))) == [None] * 7
    assert uploads.forgotten() == ["a1"]
    assert list(uploads) == ["a5", "a6", "a7"]
    assert uploads.forgotten() == []


def test_an_owner_whose_uploads_have_all_begun_is_refused_and_no_other_nor_healing() -> None:
    uploads = OpenUploads()
    asked(uploads, "a1", "a2", "a3")
    for reference in list(uploads):
        uploads.begin(reference)
    assert asked(uploads, "a4", "b1", "!1") == [Crowd.OF_OWNER, None, None]
    uploads.end(ReferenceId("a2"))
    assert asked(uploads, "a5") == [None], "b's that has not begun loses its space for it"
    for reference in ("a5", "b1"):
        uploads.begin(ReferenceId(reference))
    assert asked(uploads, "c1") == [Crowd.OF_ALL]


def test_space_is_kept_for_a_time_and_the_ticket_for_longer() -> None:
    uploads = OpenUploads()
    asked(uploads, "a10", "b5")
    assert uploads.bytes_max == 15
    asked(uploads, "c7", now_ms=KEPT_MS)
    assert (list(uploads), uploads.bytes_max) == (["c7"], 7)
    uploads.begin(ReferenceId("a10"))
    assert uploads.bytes_max == 17
    uploads.broke_off(ReferenceId("a10"))
    assert uploads.bytes_max == 7
    assert uploads.forgotten() == []


def test_of_all_that_are_idle_those_of_whoever_has_most_are_forgotten() -> None:
    uploads = OpenUploads()
    asked(uploads, "a1", "b1", "b2", "b3", "c1")
    asked(uploads, "c2", now_ms=KEPT_MS)
    asked(uploads, "d1", now_ms=2 * KEPT_MS)
    assert uploads.forgotten() == ["b1"]


def test_uploads_that_begin_and_break_off_are_forgotten_as_others_that_wait() -> None:
    uploads = OpenUploads()
    for n in range(1, 8):
        asked(uploads, f"a{n}")
        uploads.begin(ReferenceId(f"a{n}"))
        uploads.broke_off(ReferenceId(f"a{n}"))
    assert uploads.forgotten() == ["a1", "a2", "a3", "a4"]


class Histories(RuleBasedStateMachine):
    """Any order of calls: the table equals a list of all events."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads = OpenUploads()
        self.now_ms = self.made = 0
        self.open: dict[ReferenceId, tuple[Dn, int]] = {}
        self.begun: set[ReferenceId] = set()

    @rule(owner=st.sampled_from(["a", "b", NOBODY]), size=st.integers(0, 9), passed=st.sampled_from([0, 0, 0, KEPT_MS]))
    def ask(self, owner: Dn, size: int, passed: int) -> None:
        self.now_ms += passed
        crowd = self.uploads.crowded(owner, self.now_ms)
        self.forget()
        own = [reference for reference in self.begun if self.open[reference][0] == owner]
        if crowd is Crowd.OF_OWNER:
            assert owner != NOBODY
            assert len(own) >= OF_OWNER
        if crowd is Crowd.OF_ALL:
            assert len(self.begun) >= OF_ALL
        if crowd is None:
            self.made += 1
            reference = ReferenceId(str(self.made))
            self.uploads.add(TicketedUpload(reference, owner, size, self.now_ms + KEPT_MS))
            self.open[reference] = owner, size
            self.begun |= {reference} if owner == NOBODY else set()

    @rule(which=st.randoms(), what=st.sampled_from(["begin", "broke_off", "end"]))
    def happens(self, which: st.DataObject, what: str) -> None:
        if self.open:
            reference = which.choice(sorted(self.open))  # type: ignore[attr-defined]
            getattr(self.uploads, what)(reference)
            owner, _ = self.open[reference]
            if what == "end":
                del self.open[reference]
            if what == "begin":
                self.begun.add(reference)
            elif what == "end" or owner != NOBODY:
                self.begun.discard(reference)
            self.forget()

    def forget(self) -> None:
        for reference in self.uploads.forgotten():
            assert reference not in self.begun
            del self.open[reference]

    @invariant()
    def counts(self) -> None:
        counted = list(self.uploads)
        idle = Counter(owner for reference, (owner, _) in self.open.items() if reference not in counted)
        assert max(idle.values(), default=0) <= OF_OWNER
        assert idle.total() <= OF_ALL
        assert self.begun <= set(counted) <= set(self.open)
        assert self.uploads.bytes_max == sum(self.open[reference][1] for reference in counted)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
