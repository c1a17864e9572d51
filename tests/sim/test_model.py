"""The model that checks users' answers in the simulator: possible histories and impossible ones."""

from __future__ import annotations

import random

import pytest

from tests.sim.model import Op, Story, Violation

A, B = 0, 1
ANN, BOB = 0, 1


class Teller:
    """Tells a story of two names, operation by operation."""

    def __init__(self, *, trash: bool = False) -> None:
        self.story = Story(2, trash=trash)
        self._count = 0

    def ask(self, kind: str, name: int, user: int = ANN, other: int = B, target: int = -1) -> Op:
        """Begin an operation; its content has its number."""
        self._count += 1
        op = Op(self._count, user, kind, name, other, self._count, 2, f"note {self._count}", target)
        self.story.begin(op)
        return op

    def do(self, kind: str, name: int, told: str = "done", **more: int) -> Op:
        """Begin an operation and answer it while nothing else happens."""
        op = self.ask(kind, name, **more)
        self.story.answered(op, told)
        return op


def test_what_was_acknowledged_is_read_back() -> None:
    tell = Teller()
    first = tell.do("put", A)
    tell.do("read", A, f"read {first.content}")
    second = tell.do("put", A)
    tell.do("move", A, other=B)
    tell.do("read", A, "read 0")
    tell.do("read", B, f"read {second.content}")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (("put",), "read 0"),
        (("put", "put"), "read 1"),
        (("put", "delete"), "read 1"),
        (("put", "move"), "read 1"),
        (("put",), "read 7"),
        (("put", "wanted"), "stat 9 "),
    ],
    ids=["lost", "overwrite lost", "deleted file back", "moved file still there", "nobody wrote it", "count lost"],
)
def test_what_cannot_be_is_a_violation(steps: tuple[str, ...], told: str) -> None:
    tell = Teller()
    for kind in steps:
        tell.do(kind, A)
    with pytest.raises(Violation, match="nobody can have been told this"):
        tell.do(told.split(" ", maxsplit=1)[0], A, told)


def test_concurrent_writes_leave_either_content_but_reads_agree() -> None:
    tell = Teller()
    one, two = tell.ask("put", A, user=ANN), tell.ask("put", A, user=BOB)
    tell.story.answered(one, "done")
    tell.story.answered(two, "done")
    assert tell.story.contents(A) == {one.content, two.content}
    tell.do("read", A, f"read {one.content}")
    with pytest.raises(Violation):
        tell.do("read", A, f"read {two.content}")


def test_an_unknown_outcome_may_come_at_any_time_until_it_is_settled() -> None:
    tell = Teller()
    kept = tell.do("put", A)
    lost = tell.ask("delete", A)
    tell.story.unknown(lost)
    tell.do("read", A, f"read {kept.content}")
    tell.do("read", A, "read 0")
    with pytest.raises(Violation):
        tell.do("read", A, f"read {kept.content}")
    tell = Teller()
    kept = tell.do("put", A)
    tell.story.unknown(lost := tell.ask("delete", A))
    tell.do("read", A, f"read {kept.content}")
    tell.story.settled(lost)
    assert tell.story.open == 0
    assert tell.story.contents(A) == {0, kept.content}


def test_a_refusal_has_a_reason_and_no_effect() -> None:
    tell = Teller()
    with pytest.raises(Violation):
        Teller().do("delete", A)
    tell.do("delete", A, "refused not-found")
    kept = tell.do("put", A)
    with pytest.raises(Violation):
        tell.do("delete", A, "refused not-found")
    tell = Teller()
    kept = tell.do("put", A)
    tell.do("put", A, "refused no-shepherd")
    tell.do("read", A, f"read {kept.content}")


def test_a_right_taken_away_is_not_used_except_by_the_owner() -> None:
    tell = Teller()
    tell.do("put", A, user=ANN)
    tell.do("bar", A, user=ANN, target=BOB)
    tell.do("bar", A, user=BOB, target=ANN)
    tell.do("delete", A, "refused denied", user=BOB)
    tell.do("put", A, "refused denied", user=BOB)
    tell.do("delete", A, user=ANN)
    tell = Teller()
    tell.do("put", A, user=ANN)
    tell.do("bar", A, user=ANN, target=BOB)
    with pytest.raises(Violation):
        tell.do("delete", A, user=BOB)


def test_an_upload_replaces_the_file_it_found_under_whatever_name_it_is_then() -> None:
    tell = Teller()
    tell.do("put", A)
    upload = tell.ask("put", A, user=BOB)
    tell.do("move", A, other=B)
    tell.story.answered(upload, "done")
    assert upload.content in tell.story.contents(A) | tell.story.contents(B)


def test_a_hard_link_is_the_same_file_until_its_last_name_goes() -> None:
    tell = Teller()
    tell.do("put", A)
    tell.do("link", A, other=B)
    newer = tell.do("put", B)
    tell.do("unlink", A)
    tell.do("read", B, f"read {newer.content}")
    tell.do("link", B, other=A)
    tell.do("delete", A)
    tell.do("read", B, "read 0")


def test_what_was_deleted_comes_back_to_its_owner_under_a_name_that_it_had() -> None:
    tell = Teller(trash=True)
    first = tell.do("put", A)
    tell.do("note", A)
    tell.do("link", A, other=B)
    tell.do("delete", A)
    assert tell.story.can_come_back(ANN) == [A, B]
    assert tell.story.can_come_back(BOB) == []
    tell.do("undelete", B)
    tell.do("read", B, f"read {first.content}")
    tell.do("stat", B, "stat 2 note 2")
    tell.do("read", A, "read 0")
    assert tell.story.can_come_back(ANN) == []


@pytest.mark.parametrize("user", [ANN, BOB])
def test_nothing_comes_back_that_is_not_kept_or_not_ones_own(user: int) -> None:
    tell = Teller(trash=user == BOB)
    tell.do("put", A)
    tell.do("delete", A)
    with pytest.raises(Violation, match="nobody can have been told this"):
        tell.do("undelete", A, user=user)


def test_of_several_deleted_any_may_come_back_and_none_onto_a_name_that_is_taken() -> None:
    tell = Teller(trash=True)
    first = tell.do("put", A)
    tell.do("unlink", A)
    tell.do("put", A)
    tell.do("undelete", A, "refused exists")
    tell.do("delete", A)
    tell.do("undelete", A)
    tell.do("read", A, f"read {first.content}")
    with pytest.raises(Violation, match="nobody can have been told this"):
        tell.do("undelete", A)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_of_the_possible_states_is_all_that_can_be(seed: int) -> None:
    """The set grows as operations begin, and is not computed anew each time."""
    rng, tell, begun = random.Random(seed), Teller(trash=seed % 2 == 0), list[Op]()
    for _ in range(12):
        if len(begun) == 4 or (begun and rng.random() < 0.3):
            tell.story.settled(begun.pop(rng.randrange(len(begun))))
        else:
            begun.append(tell.ask(rng.choice(("put", "move", "delete", "link", "note")), rng.choice((A, B))))
    tell.story.contents(A)
    known = tell.story.copied()
    known._begun = set(known._pending)
    assert known._reachable() == tell.story._configs


def test_a_read_that_nobody_heard_of_tells_nothing() -> None:
    tell = Teller()
    lost = tell.ask("read", A)
    tell.story.unknown(lost)
    assert tell.story.open == 0
    tell.story.settled(lost)
