"""Positions: their order, and a process's knowledge of them from answers."""

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Horizon, Position, later
from chelonia.core.ids import Dn, ServiceId

FIRST, SECOND = Position("c", 1, 5), Position("c", 1, 6)
RESTORED = Position("c", 2, 1)
FOREIGN = Position("d", 9, 9)


@pytest.mark.parametrize(
    ("claimed", "known", "expected"),
    [
        (None, None, None),
        (FIRST, None, FIRST),
        (None, FIRST, FIRST),
        (FIRST, SECOND, SECOND),
        (SECOND, FIRST, SECOND),
        (SECOND, RESTORED, RESTORED),
        (FOREIGN, FIRST, FIRST),
        (FIRST, FOREIGN, FOREIGN),
    ],
)
def test_the_later_of_two(claimed: Position | None, known: Position | None, expected: Position | None) -> None:
    assert later(claimed, known) == expected


def test_a_horizon_never_goes_back_and_follows_the_cluster_that_answers() -> None:
    horizon = Horizon()
    seen = []
    for position in (SECOND, FIRST, RESTORED, SECOND, FOREIGN, RESTORED):
        horizon.saw(position)
        seen.append(horizon.newest)
    assert seen == [SECOND, SECOND, RESTORED, RESTORED, FOREIGN, RESTORED]


def test_keys_are_shared_by_a_role_and_by_nobody_else() -> None:
    one = Call(Dn("/CN=one"), (Role.LIBRARIAN,), ServiceId("https://1"))
    two = Call(Dn("/CN=two"), (Role.AHASH, Role.LIBRARIAN), ServiceId("https://2"))
    shepherd = Call(Dn("/CN=one"), (Role.SHEPHERD,), ServiceId("https://s"))
    assert one.key_scope(Role.LIBRARIAN) == two.key_scope(Role.LIBRARIAN) == "librarian"
    scopes = {call.key_scope(Role.BARTENDER) for call in (one, two, shepherd, Call(Dn("bartender")))}
    assert len(scopes) == 4
    assert "bartender" not in scopes
