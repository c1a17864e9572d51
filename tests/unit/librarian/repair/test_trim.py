"""Trimming: the reports that prove a copy whole, and the return of removals that the rate guard has held back."""

from types import SimpleNamespace
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId
from chelonia.core.ports.shepherd import ReplicaStatOutcome
from chelonia.core.values import replace
from chelonia.librarian.repair.guard import MINUTE_MS
from chelonia.librarian.repair.trim import Trimming, is_whole

FACTS = ReplicaFacts(BlobId("b"), Guid("g"), "/f", Dn("/CN=a"), 5, Checksums("aa", "bb"), 2, Ms(0))
WHOLE = ReplicaStatOutcome("1", ReferenceId("r"), True, "alive", "md5", "bb", size=5)


@pytest.mark.parametrize(
    ("changed", "whole"),
    [({}, True), ({"found": False}, False), ({"state": "invalid"}, False), ({"size": 6}, False),
     ({"checksum": "cc"}, False), ({"checksum_type": "crc"}, False), ({"checksum_type": "adler32"}, False)],
)  # fmt: skip
def test_who_says_that_it_has_all_of_a_blob(changed: dict[str, Any], whole: bool) -> None:
    assert is_whole(replace(WHOLE, **changed), FACTS) is whole
    assert not is_whole(None, FACTS)


@pytest.mark.expect_log("trimming waits")
def test_what_is_held_back_comes_again_when_it_is_about_its_turn() -> None:
    on, later = SimpleNamespace(now=Ms(7), settings=SimpleNamespace(backoff_max_ms=1_000)), list[Ms]()
    trimming = Trimming(on, None, None, lambda due, blob: later.append(due))  # type: ignore[arg-type]
    for number in range(3 * bounds.ERASURES_UNASKED_PER_MIN_MAX):
        trimming._hold_back(BlobId(str(number)))
    assert (later[0], later[-1]) == (1_007, 3 * MINUTE_MS + 7)
