"""Etags of successive versions of a file."""

from __future__ import annotations

import pytest

from chelonia.core.contents.attributes import is_spliced


@pytest.mark.parametrize(
    ("etag", "before", "result"),
    [
        ("c1-1", "blob", True),
        ("c1-1", "guid-0", True),
        ("c1-2", "blob", False),
        ("c1-2", "c1-1", True),
        ("c1-3", "c1-1", False),
        ("c1-1", "c1-1", False),
        ("c2-1", "c1-7", True),
        ("c2-2", "c1-1", False),
        ("blob", "c1-1", False),
        ("chosen-by-its-writer", "blob", False),
        ("", "", False),
    ],
)
def test_whether_a_version_is_the_next_splice_over_another(etag: str, before: str, result: bool) -> None:
    assert is_spliced(etag, before) is result
