"""The shares of space when more uploads want it than fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ReferenceId
from chelonia.shepherd.rules.promises import Promise, make_room
from tests.support.failing import fails


def promise(text: str) -> Promise:
    """`a60` are 60 bytes requested by a, `a60+` are coming, `a60!` is a claimed copy of a file of a's."""
    return Promise(ReferenceId(text), Dn(text[0]), int(text[1:].rstrip("+!")), text.endswith("+"), text.endswith("!"))


@pytest.mark.parametrize(
    ("wanted", "free", "promised", "ended"),
    [
        ("b40", 100, "a60", ""),
        ("b41", 100, "a60", "a60"),
        ("b10", 100, "a60 a30 a10", "a60"),
        ("b60", 100, "a60 a30 a10", "a60"),
        ("b61", 100, "a60 a30 a10", "a60 a30"),
        ("b100", 100, "a60 a30 a10", None),
        ("a10", 100, "a60 a40", None),
        ("b50", 100, "a40 c40", None),
        ("b10", 100, "b60 a40", None),
        ("b10", 100, "a100!", None),
        ("b10", 100, "a50+ c50!", None),
        ("b10", 100, "a60+ c40!", "a60+"),
        ("b10", 100, "a51+ a49", "a49"),
        ("b90!", 100, "a60 b40", "a60 b40"),
        ("b0", 100, "a99", ""),
        ("b0", 100, "a100", "a100"),
        ("b1", 0, "", None),
    ],
)
def test_who_gives_way(wanted: str, free: int, promised: str, ended: str | None) -> None:
    promises = [promise(text) for text in promised.split()]
    if ended is None:
        with fails(Kind.NO_SPACE):
            make_room(promise(wanted), free, promises)
    else:
        assert make_room(promise(wanted), free, promises) == tuple(ended.split())


PROMISES = st.builds(
    Promise,
    st.uuids().map(lambda value: ReferenceId(str(value))),
    st.sampled_from([Dn("a"), Dn("b"), Dn("c")]),
    st.integers(0, 50),
    st.booleans(),
    st.booleans(),
)


@given(PROMISES, st.integers(0, 200), st.lists(PROMISES, max_size=12))
def test_what_is_given_fits_and_costs_no_claimed_copy_and_nobody_who_asked_for_less(
    wanted: Promise, free: int, promises: list[Promise]
) -> None:
    try:
        ended = make_room(wanted, free, promises)
    except CheloniaError:
        return
    kept = [each for each in promises if each.reference not in ended]
    assert sum(each.bytes for each in kept) + wanted.bytes <= free
    gone = [each for each in promises if each.reference in ended]
    assert not any(each.claimed for each in gone)
    totals = {dn: sum(p.bytes for p in promises if p.owner == dn and not p.claimed) for dn in "abc"}
    own = 0 if wanted.claimed else totals[wanted.owner] + wanted.bytes
    assert all(totals[each.owner] > own for each in gone)
    assert all(wanted.claimed or each.owner != wanted.owner for each in gone)
