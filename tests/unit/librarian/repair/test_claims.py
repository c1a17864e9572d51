"""The length of claims: renewed while bytes arrive, and bounded whatever Shepherds report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId, blob_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import Arriving
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import is_
from chelonia.librarian.repair.claims.decide import GIVEN_UP, Arrivals, rate_min, renewal

CLAIM_MS = 120_000
PLACE = Location(ServiceId("https://s1/Shepherd"), ReferenceId("r1"))
COPY = Arriving(PLACE.reference, BlobId("b1"), 0)


def due(arrivals: Arrivals, here: int, at_s: float, rate: float = 1_000) -> bool:
    """Whether a claim is renewed when so many bytes are here."""
    now = Ms(round(at_s * 1000))
    earned = bool(arrivals.due({PLACE: replace(COPY, here=here)}, rate, now))
    if earned:
        arrivals.written(PLACE)
    return earned


@pytest.mark.parametrize(
    ("told", "renewed"),
    [
        ([(0, 0), (29, 10**6)], []),  # too early to be worth a write
        ([(0, 0), (30, 10**6), (59, 10**8), (60, 10**8)], [30, 60]),
        ([(0, 0), (30, 30_000), (60, 60_000)], [30, 60]),  # just as fast as it must be
        ([(0, 0), (30, 29_999), (60, 59_999)], []),
        ([(0, 0), (30, 29_999), (31, 31_000)], [31]),  # it has caught up
        ([(0, 10**6), (30, 10**6), (600, 10**6)], []),  # nothing arrives
        ([(0, 10**6), (30, 2 * 10**6), (60, 10**6), (90, 2 * 10**6)], [30]),  # no byte counts twice
    ],
)
def test_a_claim_is_renewed_by_bytes_that_arrive(told: list[tuple[int, int]], renewed: list[int]) -> None:
    arrivals = Arrivals(CLAIM_MS)
    assert [at for at, here in told if due(arrivals, here, at)] == renewed


def test_who_is_silent_for_a_moment_does_not_count_its_bytes_again() -> None:
    arrivals = Arrivals(CLAIM_MS)
    assert [due(arrivals, 0, 0), due(arrivals, 10**6, 30)] == [False, True]
    assert arrivals.due({}, 1_000, Ms(31_000)) == {}
    assert not due(arrivals, 1, 32)
    assert not due(arrivals, 10**6, 90)
    assert due(arrivals, 2 * 10**6, 91)


def test_what_could_not_be_written_stays_due() -> None:
    arrivals, told = Arrivals(CLAIM_MS), {PLACE: replace(COPY, here=10**9)}
    assert arrivals.due({PLACE: COPY}, 1_000, Ms(0)) == {}
    assert arrivals.due(told, 1_000, Ms(40_000)) == told
    assert arrivals.due(told, 1_000, Ms(500_000)) == told
    arrivals.written(PLACE)
    assert arrivals.due(told, 1_000, Ms(501_000)) == {}


@given(
    steps=st.lists(st.tuples(st.integers(100, 60_000), st.integers(-5_000, 50_000), st.booleans()), max_size=200),
    rate=st.sampled_from([1, 100, 10_000]),
)
def test_whatever_is_told_a_claim_comes_to_its_end(steps: list[tuple[int, int, bool]], rate: int) -> None:
    """It lasts `size / rate` for the bytes, one claim until the first are reported, and one after the last."""
    size, arrivals, now, here, until = 300_000, Arrivals(CLAIM_MS), 0, 0, CLAIM_MS
    for passed_ms, grown, silent in steps:
        now, here = now + passed_ms, min(max(here + grown, 0), size)
        if now >= until:
            break
        if not silent and due(arrivals, here, now / 1000, rate):
            until = now + CLAIM_MS
    assert until <= 2 * CLAIM_MS + size * 1000 / rate


@pytest.mark.parametrize(
    ("configured", "ordered", "expected"), [(10_000, 0, 10_000), (10_000, 10**9, 10_000), (10_000, 3_200, 100)]
)
def test_a_copy_need_not_be_faster_than_the_rate_that_was_ordered_allows(
    configured: int, ordered: int, expected: float
) -> None:
    assert rate_min(configured, ordered) == expected


def blob(state: str, claim: str, size: str = "100") -> StoredObject:
    sections = {"blob": {"size": size}, "locations": {str(PLACE): state}, "claims": {str(PLACE): claim}}
    return StoredObject(
        blob_object(COPY.blob), 3, {name: {k: v for k, v in of.items() if v} for name, of in sections.items()}
    )


@pytest.mark.parametrize(
    ("stored", "here", "renewed"),
    [
        (blob("creating", "1000"), 100, True),
        (blob("creating", "1000"), 101, False),
        (blob("creating", "1000"), -1, False),
        (blob("creating", "120000"), 100, True),
        (blob("creating", "120001"), 100, False),  # renewed less than an eighth of a claim ago
        (blob("creating", "135000"), 100, False),
        (blob("creating", "135001"), 100, True),  # by a clock that is ahead
        (blob("creating", "1000", "-1"), 1, False),
        (blob("creating", GIVEN_UP), 100, False),
        (blob("creating", ""), 100, False),
        (blob("creating", "soon"), 100, False),
        (blob("alive", ""), 100, False),
        (blob("thirdwheel", "1000"), 100, False),
        (blob("", ""), 100, False),
        (StoredObject(blob_object(COPY.blob), 0), 100, False),
    ],
)
def test_only_a_claim_that_stands_is_renewed(stored: StoredObject, here: int, renewed: bool) -> None:
    element = renewal(stored, PLACE, here, (Ms(15_000), Ms(15_000 + CLAIM_MS)), anyhow=True)
    assert (element is not None) is renewed
    if element is not None:
        assert (element.section, element.property, element.value) == ("claims", str(PLACE), "135000")
        claim = stored.value("claims", str(PLACE))
        assert element.conditions == (is_("locations", str(PLACE), "creating"), is_("claims", str(PLACE), claim))


@pytest.mark.parametrize("ahead_s", [-86_400, -300, -60, 0, 60, 300, 86_400])
def test_a_wrong_clock_beside_the_leader_ends_no_claim(ahead_s: int) -> None:
    """Each Librarian with the Shepherd's heartbeats renews in its turn; the leader's clock judges the record."""
    start = 10**9
    claim = start + CLAIM_MS
    for at_s in range(30, 3_600, 15):
        leads = at_s % 30 == 0
        now = Ms(start + 1000 * (at_s if leads else at_s + ahead_s))
        element = renewal(blob("creating", str(claim)), PLACE, 1, (now, Ms(now + CLAIM_MS)), anyhow=leads)
        claim = claim if element is None else int(element.value)
        assert 0 < claim - (start + 1000 * at_s) <= 2 * CLAIM_MS


def test_who_does_not_lead_renews_what_stands_by_its_clock_too() -> None:
    def renewed(claim: int) -> bool:
        span = Ms(15_000), Ms(15_000 + CLAIM_MS)
        return renewal(blob("creating", str(claim)), PLACE, 1, span, anyhow=False) is not None

    assert [renewed(claim) for claim in (1_000, 15_000, 15_001, 120_000, 135_001)] == [False, False, True, True, False]
