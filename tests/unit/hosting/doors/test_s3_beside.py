"""The S3 door on a cluster in memory: keys of which one is part of the other, written at the same time to a bucket that
keeps versions."""

from __future__ import annotations

import pytest

from chelonia.core.ports.files import Change, Clone, Move, Seal, Write
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile, write
from tests.unit.hosting.doors.test_s3_versions import Door, door, kept

__all__ = ["door", "kept", "meanwhile"]


@pytest.mark.parametrize(("key", "other"), [("k", "k/below"), ("k/below", "k")])
@pytest.mark.parametrize("change", [Write, Clone, Seal])
def test_a_version_takes_no_other_keys_place_away(
    kept: Door, meanwhile: Meanwhile, change: type[Change], key: str, other: str
) -> None:
    """A version of `k` changed names with the collection that `k/below` had just made, which was lost among the
    versions then. One of `k/below` was refused with 400, and stayed as a version that never had its key."""
    kept.put("z", b"new")
    upload = kept.opened(key)
    whole = kept.part(key, upload, b"new")
    told = meanwhile(Move, ("PUT", f"/lab/{other}", "other"))
    write(kept, change, f"/lab/{key}?uploadId={upload}", whole, key)
    assert [each.status for each in told] == [200]
    assert kept.ask("GET", f"/lab/{key}").body == b"new"
    assert kept.ask("GET", f"/lab/{other}").body == b"other"
    assert [(name, mark) for name, _, mark in kept.history()] == [("k", "*"), ("k/below", "*"), ("z", "*")]
