"""When a follower that acknowledges nothing has its engine roused."""

from chelonia.ahash.group.effects import GroupStatus, PeerRole
from chelonia.ahash.group.following import STILL_MS, Standstill
from chelonia.ahash.group.log_vouching import Vouched


def status(
    acked: int, head: int = 9, role: PeerRole = PeerRole.FOLLOWER, term: int = 3, master: int = 2
) -> GroupStatus:
    return GroupStatus(role, master, term, True, True, 0, head, 0, 1, Vouched(0, 0, 0), (), acked=acked)


def test_who_acknowledges_nothing_is_roused_again_and_again() -> None:
    still = Standstill()
    looks = [still.look(status(4), now_ms) for now_ms in range(0, 2 * STILL_MS + 1, STILL_MS // 10)]
    assert [each for each in looks if each] == [STILL_MS, 2 * STILL_MS]


def test_who_gets_on_or_lacks_nothing_or_follows_another_is_left_alone() -> None:
    for after in (status(5), status(9), status(4, term=4), status(4, master=1), status(4, role=PeerRole.ALONE)):
        still = Standstill()
        assert not still.look(status(4), 0)
        assert not still.look(after, STILL_MS)
    still = Standstill()
    assert not any(still.look(status(9), now_ms) for now_ms in range(0, 3 * STILL_MS, STILL_MS))
