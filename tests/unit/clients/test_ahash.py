"""`chelonia admin ahash ...` for administrators: fake A-Hashes, each with a status of its own."""

from dataclasses import dataclass, field
from io import StringIO

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.ports.ahash import AHashStatus, GroupChange, GroupStep, PagesSeen, PeerView
from chelonia.core.values import replace
from chelonia_clients.arguments import UsageError
from chelonia_clients.verbs import ahash as verbs_ahash


def view(replica: int, role: str = "follower", lag: int = 0) -> PeerView:
    return PeerView(replica, Dn(f"/CN={replica}"), f"h{replica}:7", role, lag)


MASTER = AHashStatus(
    Position("c", 2, 77), "master", True, 5, 1 << 30, 2, 4, 371, Ms(1_700_000_000_000), 5,
    (view(1), view(2, "master"), view(3, "away", -1)),
)  # fmt: skip
FOLLOWER = replace(MASTER, role="client", replica=1, writable=False, lease_ms=0)
ALONE = replace(FOLLOWER, role="alone", replica=3, replicas=(view(1, "away", -1), view(2, "away", -1), view(3)))
NETWORK = CheloniaError(Kind.NETWORK, cause="cannot connect to https://h3: connection refused")


@dataclass
class PaperAHash:
    """One fake A-Hash: its answers, and the changes requested of it."""

    tells: AHashStatus | CheloniaError
    changes: list[GroupChange] = field(default_factory=list)
    swallows: int = 0
    """The number of changes that it makes without an answer."""
    asked: int = 0
    holds_all: bool = True

    async def status(self, call: Call) -> AHashStatus:
        self.asked += 1
        if isinstance(self.tells, CheloniaError):
            raise self.tells
        return self.tells

    async def backup(self, call: Call, name: str) -> str:
        if not self.holds_all:
            raise CheloniaError(Kind.UNAVAILABLE, cause="this replica does not hold what the group has")
        return f"/backups/{name}"

    async def regroup(self, call: Call, change: GroupChange) -> AHashStatus:
        status = await self.status(call)
        self.changes.append(change)
        if change.step is GroupStep.ADD:
            new = PeerView(4, change.dn, change.address, "away", -1)
            self.tells = replace(status, replicas=(*status.replicas, new))
        else:
            kept = tuple(each for each in status.replicas if each.replica != change.replica)
            self.tells = replace(status, replicas=kept)
        if self.swallows:
            self.swallows -= 1
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, cause="replica 2 was lost as master")
        return self.tells


class Clock:
    """A clock on which every look brings the new replica nearer to its vote."""

    def __init__(self, ahash: PaperAHash) -> None:
        self._ahash = ahash
        self._now_ms = 0

    def monotonic_ms(self) -> int:
        """The time: each request costs two seconds, as an A-Hash without a master holds it for so long."""
        return self._now_ms + 2_000 * self._ahash.asked

    async def sleep(self, duration_ms: int) -> None:
        self._now_ms += duration_ms
        status = self._ahash.tells
        if isinstance(status, CheloniaError):
            return
        after = {"away": "learner", "learner": "follower"}
        voters = (
            replace(each, role=after.get(each.role, each.role)) if each.replica == 4 else each
            for each in status.replicas
        )
        self._ahash.tells = replace(status, replicas=tuple(voters))


class PaperSession:
    """A verb's session: fake ports, and a buffer for its output."""

    def __init__(self, **ahashes: PaperAHash) -> None:
        self.ahashes = {f"https://{name}/AHash": ahash for name, ahash in ahashes.items()}
        self.clock = Clock(next(iter(ahashes.values())))
        self.said = StringIO()
        self.results: list[dict[str, object]] = []
        self.out = self

    def administrator(self) -> "PaperSession":
        return self

    def write(self, *lines: str) -> None:
        self.said.write("".join(line + "\n" for line in lines))

    def notify(self, *lines: str) -> None:
        self.said.write("".join(line + "\n" for line in lines))

    def result(self, **facts: object) -> None:
        self.results.append(facts)


async def test_the_status_is_that_of_the_master_and_names_who_does_not_answer() -> None:
    session = PaperSession(a=PaperAHash(FOLLOWER), b=PaperAHash(MASTER), c=PaperAHash(NETWORK))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    said = session.said.getvalue()
    assert "https://c/AHash: does not answer" in said
    assert "master     replica 2, term 4" in said
    assert "371 ms left" in said
    assert "2.77" in said
    assert [row.split()[:3] for row in said.splitlines() if row.lstrip().startswith(("1 ", "2 ", "3 "))] == [
        ["1", "follower", "0"], ["2", "master", "0"], ["3", "away", "?"],
    ]  # fmt: skip
    assert [result["answers"] for result in session.results] == [False, True, True]


async def test_a_master_that_does_not_answer_here_is_named_as_others_see_it() -> None:
    session = PaperSession(a=PaperAHash(ALONE), b=PaperAHash(FOLLOWER))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    said = session.said.getvalue()
    assert "master     replica 2 at h2:7, says replica 1; its A-Hash does not answer here: name it in `ahash`" in said
    assert " holds " not in said, "nothing is lost"


async def test_a_master_that_nobody_knows_is_said_with_what_to_do() -> None:
    session = PaperSession(a=PaperAHash(ALONE))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    said = session.said.getvalue()
    assert "master     none that replica 3 (alone) knows of; if it stays so, start the" in said
    assert "position   2.? (a master tells)" in said, "what is durable cannot be known"


async def test_without_a_master_it_is_told_whose_disk_holds_the_most() -> None:
    """A longer log of an older term lacks later acknowledged changes; only a master gives positions."""
    old = replace(ALONE, replica=1, vouched_term=4, vouched_sequence=900)
    new = replace(ALONE, vouched_term=5, vouched_sequence=850)
    session = PaperSession(a=PaperAHash(old), b=PaperAHash(NETWORK), c=PaperAHash(new))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    assert [line for line in session.said.getvalue().splitlines() if " holds " in line] == [
        "replica 1 holds generation 2, term 4, commit 900",
        "replica 3 holds generation 2, term 5, commit 850: the newest of those that answer",
    ]
    assert [result["vouched"] for result in session.results if result["answers"]] == [
        {"term": 4, "sequence": 900}, {"term": 5, "sequence": 850},
    ]  # fmt: skip


async def test_a_disk_that_was_being_filled_is_never_called_the_newest() -> None:
    """It reports commits that it held before, which are gone; its position cannot be read."""
    half = replace(ALONE, position=Position("c", 0, 0), vouched_term=5, vouched_sequence=850)
    session = PaperSession(a=PaperAHash(half))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    assert [line for line in session.said.getvalue().splitlines() if " holds " in line] == [
        "replica 3 holds nothing whole: it is empty, or was being filled"
    ]


async def test_pages_that_nobody_has_looked_at_are_not_called_sound() -> None:
    fresh = AHashStatus(Position("c", 1, 3), "master", True, 5, 9, pages=PagesSeen(0, 0, Ms(0), 0))
    session = PaperSession(a=PaperAHash(fresh))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    assert "https://a/AHash: its pages have not been looked at since its start" in session.said.getvalue()
    assert "none damaged" not in session.said.getvalue()


async def test_the_scrub_of_each_replicas_pages_is_told_and_what_to_do_about_damage() -> None:
    sound = replace(FOLLOWER, pages=PagesSeen(413, 8, Ms(1_700_000_000_000), 0))
    damaged = replace(MASTER, pages=PagesSeen(413, 413, Ms(1_700_000_000_000), 2))
    alone = AHashStatus(Position("c", 1, 3), "master", True, 5, 9, pages=PagesSeen(413, 413, Ms(0), 1))
    session = PaperSession(a=PaperAHash(sound), b=PaperAHash(damaged), c=PaperAHash(FOLLOWER), d=PaperAHash(alone))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    said = {line.split(": ")[0]: line for line in session.said.getvalue().splitlines() if "pages" in line}
    assert "8 of 413 pages scrubbed in this round, all checked at 2023-11-14" in said["https://a/AHash"]
    assert said["https://a/AHash"].endswith("none damaged")
    assert "2 DAMAGED: see docs/operate/ahash-replicas.md, Replace a replica" in said["https://b/AHash"]
    assert "not scrubbed" in said["https://c/AHash"]
    assert "no whole round yet; 1 DAMAGED: see docs/operate/backup-and-restore.md" in said["https://d/AHash"]
    told = {result["url"]: result["pages"] for result in session.results}
    assert told["https://b/AHash"] == {"pages": 413, "checked": 413, "ended_ms": 1_700_000_000_000, "damaged": 2}
    assert told["https://c/AHash"] is None


async def test_replicas_farther_apart_than_their_group_is_made_for_are_named_with_the_cure() -> None:
    def seen(by: AHashStatus, *trips: int) -> AHashStatus:
        views = (replace(each, round_trip_ms=trip) for each, trip in zip(by.replicas, trips, strict=True))
        return replace(by, replicas=tuple(views), round_trip_ms=100)

    session = PaperSession(a=PaperAHash(seen(FOLLOWER, -1, 187, 100)), b=PaperAHash(seen(MASTER, 184, -1, 1700)))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    said = [line for line in session.said.getvalue().splitlines() if line.startswith("WARNING")]
    assert [("from replica 2 to 1 and back takes 184 ms" in said[0], "set it to 200 on every replica" in said[0])] == [
        (True, True)
    ]
    assert "from replica 2 to 3 and back takes 1700 ms" in said[1]
    assert "set it to 1000" in said[1]
    assert len(said) == 2
    assert {result["round_trip_ms"] for result in session.results} == {100}


async def test_two_histories_are_an_error_whoever_tells_of_them() -> None:
    torn = replace(MASTER, replicas=(view(1, "parted", -1), view(2, "master"), view(3)))
    session = PaperSession(a=PaperAHash(torn), b=PaperAHash(NETWORK))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    [line] = [line for line in session.said.getvalue().splitlines() if line.startswith("ERROR")]
    assert "replicas 1 and 2 of the A-Hash have two histories" in line
    assert "Two histories" in line


async def test_an_a_hash_alone_says_so() -> None:
    session = PaperSession(a=PaperAHash(AHashStatus(Position("c", 1, 3), "master", True, 5, 9)))
    await verbs_ahash.status(session)  # type: ignore[arg-type]
    assert "this A-Hash is alone" in session.said.getvalue()


async def test_when_nobody_answers_it_is_an_error() -> None:
    with pytest.raises(CheloniaError, check=lambda error: error.kind is Kind.NETWORK):
        await verbs_ahash.status(PaperSession(a=PaperAHash(NETWORK)))  # type: ignore[arg-type]


async def test_changes_go_to_whoever_answers_and_the_new_id_is_told() -> None:
    there = PaperAHash(MASTER)
    session = PaperSession(a=PaperAHash(NETWORK), b=there)
    await verbs_ahash.add(session, "/CN=new", "h4:7")  # type: ignore[arg-type]
    assert there.changes == [GroupChange(GroupStep.ADD, dn=Dn("/CN=new"), address="h4:7")]
    assert "replica_id = 4" in session.said.getvalue()
    await verbs_ahash.remove(session, "3")  # type: ignore[arg-type]
    assert there.changes[1:] == [GroupChange(GroupStep.REMOVE, 3)]
    for wrong in ("", "0", "x", "-1"):
        with pytest.raises(UsageError):
            await verbs_ahash.remove(session, wrong)  # type: ignore[arg-type]


async def test_a_change_whose_answer_is_lost_is_looked_for_and_not_made_twice() -> None:
    """A removed replica is cut off before it can pass the answer on."""
    there = PaperAHash(MASTER, swallows=1)
    session = PaperSession(a=there)
    await verbs_ahash.remove(session, "3")  # type: ignore[arg-type]
    assert "replica 3: removed" in session.said.getvalue()
    there.swallows = 1
    await verbs_ahash.add(session, "/CN=new", "h4:7")  # type: ignore[arg-type]
    assert "replica_id = 4" in session.said.getvalue()
    assert [change.step for change in there.changes] == [GroupStep.REMOVE, GroupStep.ADD]


async def test_who_was_taken_out_knows_of_no_master_and_the_next_is_asked() -> None:
    out = PaperAHash(CheloniaError(Kind.UNAVAILABLE, cause="there is no master now"))
    there = PaperAHash(MASTER)
    await verbs_ahash.remove(PaperSession(a=out, b=there), "3")  # type: ignore[arg-type]
    assert there.changes == [GroupChange(GroupStep.REMOVE, 3)]


async def test_a_change_that_nobody_can_make_is_given_up_soon_and_by_the_word_of_who_answers() -> None:
    """Without a majority it took a minute and a half, and the error named one that was down."""
    away = PaperAHash(CheloniaError(Kind.UNAVAILABLE, cause="there is no master now"))
    session = PaperSession(a=away, b=PaperAHash(NETWORK))
    with pytest.raises(CheloniaError, check=lambda error: "there is no master now" in error.cause):
        await verbs_ahash.remove(session, "3")  # type: ignore[arg-type]
    assert session.clock.monotonic_ms() <= 20_000


async def test_a_replaced_replica_goes_only_when_the_new_one_votes_and_the_command_can_be_repeated() -> None:
    ahash = PaperAHash(MASTER)
    session = PaperSession(a=ahash)
    await verbs_ahash.replace(session, "3", "/CN=new", "h4:7")  # type: ignore[arg-type]
    assert [change.step for change in ahash.changes] == [GroupStep.ADD, GroupStep.REMOVE]
    told = await ahash.status(Call())
    assert {each.replica: each.role for each in told.replicas} == {1: "follower", 2: "master", 4: "follower"}
    await verbs_ahash.replace(session, "3", "/CN=new", "h4:7")  # type: ignore[arg-type]
    assert len(ahash.changes) == 2


@pytest.mark.parametrize(
    ("old", "dn", "address", "kind"),
    [
        ("3", "/CN=3", "h9:7", Kind.EXISTS),
        ("3", "/CN=3", "h3:7", Kind.EXISTS),
        ("3", "/CN=2", "h9:7", Kind.EXISTS),
        ("3", "/CN=2", "h2:7", Kind.EXISTS),
        ("9", "/CN=new", "h9:7", Kind.NOT_FOUND),
    ],
)
async def test_nobody_is_taken_out_for_one_who_is_there_already(old: str, dn: str, address: str, kind: Kind) -> None:
    """It would leave a group of two; and where no replica is to go, none comes."""
    ahash = PaperAHash(MASTER)
    with pytest.raises(CheloniaError, check=lambda error: error.kind is kind):
        await verbs_ahash.replace(PaperSession(a=ahash), old, dn, address)  # type: ignore[arg-type]
    assert ahash.changes == []


@pytest.mark.parametrize(("full", "made_by"), [("a b c d", "b"), ("a c d", "d"), ("a c", "c")])
async def test_a_backup_is_of_a_replica_that_holds_all_a_follower_if_one_does(full: str, made_by: str) -> None:
    """One that is being filled looks like a follower, and one without the others answers too."""
    roles = {"a": NETWORK, "x": ALONE, "c": MASTER, "b": FOLLOWER, "d": FOLLOWER}
    session = PaperSession(**{name: PaperAHash(tells, holds_all=name in full) for name, tells in roles.items()})
    await verbs_ahash.backup(session, "today")  # type: ignore[arg-type]
    assert session.results == [{"url": f"https://{made_by}/AHash", "directory": "/backups/today"}]


async def test_why_no_replica_could_be_backed_up_is_told() -> None:
    session = PaperSession(a=PaperAHash(FOLLOWER, holds_all=False), b=PaperAHash(ALONE, holds_all=False))
    with pytest.raises(CheloniaError, match="does not hold what the group has"):
        await verbs_ahash.backup(session, "today")  # type: ignore[arg-type]
