"""The connection that goes when a listener is full, and the clients that are never shut out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.hosting.doors.connection_shares import ConnectionTable, Rank, Shares, owner_of

JANE = Dn("/O=Grid/CN=Jane")


def table(total: int = 10, reserve: int = 2, address: int = 3, dn: int = 4) -> ConnectionTable:
    return ConnectionTable(Shares(total, reserve, address, dn))


def filled(its: ConnectionTable, *, busy: bool) -> None:
    for number in range(8):
        assert its.came(f"s{number}", f"10.0.0.{number}", Rank.STRANGER).taken
        if busy:
            its.busy(f"s{number}")


@pytest.mark.parametrize(("rank", "share"), [(Rank.STRANGER, 3), (Rank.USER, 4)])
def test_whoever_exceeds_his_share_loses_his_own_oldest(rank: Rank, share: int) -> None:
    its = table()
    its.came("other", "10.0.0.1", Rank.STRANGER)
    for number in range(share):
        assert its.came(number, "x", rank).cut is None
    its.busy(0)
    its.idle(0)
    assert its.came("new", "x", rank).cut == 1, "0 was at work since"
    assert len(its) == share + 1


def test_nobody_at_work_is_cut() -> None:
    its = table()
    for number in range(3):
        its.came(number, "x", Rank.STRANGER)
        its.busy(number)
    verdict = its.came("new", "x", Rank.STRANGER)
    assert not verdict.taken
    assert verdict.limit == "connections of one address"
    assert len(its) == 3


def test_who_has_gone_counts_no_more_when_its_work_ends() -> None:
    """A client may be gone before its address is known: it counts for an owner without a name."""
    its = table()
    for number in range(2):
        its.came(f"nameless{number}", owner_of(ANONYMOUS, ""), Rank.STRANGER)
        its.busy(f"nameless{number}")
    its.came("gone", "10.0.0.1", Rank.STRANGER)
    its.busy("gone")
    its.gone("gone")
    its.idle("gone")
    its.came("nameless2", "", Rank.STRANGER)
    assert its.came("new", "", Rank.STRANGER).cut == "nameless2"
    assert len(its) == 3


def test_a_full_listener_lets_go_the_oldest_idle_stranger_and_then_users() -> None:
    its = table()
    filled(its, busy=False)
    assert its.came("jane", JANE, Rank.USER).cut == "s0"
    for number in range(1, 8):
        its.busy(f"s{number}")
    assert not its.came("late", "10.0.0.99", Rank.STRANGER).taken, "a stranger does not push a user out"
    assert its.came("john", "/O=Grid/CN=John", Rank.USER).cut == "jane"


def test_known_services_have_a_reserve() -> None:
    its = table()
    filled(its, busy=True)
    assert not its.came("jane", JANE, Rank.USER).taken
    for number in range(2):
        assert its.came(f"k{number}", "/CN=host", Rank.KNOWN).cut is None
    assert not its.came("k2", "/CN=host", Rank.KNOWN).taken
    its.gone("s0")
    assert its.came("k2", "/CN=host", Rank.KNOWN).taken


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.sampled_from(Rank), st.integers(0, 3))))
def test_no_share_is_ever_exceeded(steps: list[tuple[int, int, Rank, int]]) -> None:
    its, owners = table(), {}
    for verb, connection, rank, who in steps:
        match verb:
            case 0 if connection not in owners:
                verdict = its.came(connection, f"{rank.name}{who}", rank)
                owners.pop(verdict.cut, None)
                if verdict.taken:
                    owners[connection] = (rank, who)
            case 1:
                its.busy(connection)
            case 2:
                its.idle(connection)
            case _:
                its.gone(connection)
                owners.pop(connection, None)
        assert len(its) == len(owners) <= 10
        held = list(owners.values())
        assert all(held.count(own) <= (3, 4, 10)[own[0]] for own in held)


@pytest.mark.parametrize(
    ("dn", "address", "owner"),
    [
        (JANE, "10.0.0.1", JANE),
        (ANONYMOUS, "10.0.0.1", "10.0.0.1"),
        (ANONYMOUS, "::ffff:10.0.0.1", "10.0.0.1"),
        (ANONYMOUS, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        (ANONYMOUS, "fe80::1%eth0", "fe80::/64"),
        (ANONYMOUS, "", ""),
    ],
)
def test_a_stranger_counts_for_his_address(dn: Dn, address: str, owner: str) -> None:
    assert owner_of(dn, address) == owner
