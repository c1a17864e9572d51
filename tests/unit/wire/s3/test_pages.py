"""Pages of listings: the common prefixes of a delimiter, and two listings as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chelonia.wire.s3 import pages
from chelonia.wire.s3.answers import Asked, Item

KEYS = st.sets(st.text("a/.b", min_size=1, max_size=5), max_size=20)


def shown(keys: set[str], asked: Asked) -> list[Item]:
    return pages.summed_up((Item(key) for key in sorted(keys)), asked, asked.after)


@given(KEYS, KEYS, st.text("a/", max_size=2), st.sampled_from(["", "/", "a"]), st.text("a/.b", max_size=3))
def test_two_listings_are_as_one(one: set[str], other: set[str], prefix: str, delimiter: str, after: str) -> None:
    asked = Asked("b", prefix, delimiter, 4, after)
    both = shown(one | other, asked)
    assert pages.merged(shown(one, asked), shown(other, asked), 5) == both[:5]
    assert all(item.key > after and item.key.startswith(prefix) for item in both)


def test_of_two_the_name_counts_and_the_collection_does_not() -> None:
    names, others = [Item("a", etag="name"), Item("d/", etag="collection")], [Item("a"), Item("d/", etag="bytes")]
    assert [item.etag for item in pages.merged(names, others, 9)] == ["name", "bytes"]
