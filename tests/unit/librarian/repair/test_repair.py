"""The repair planner: tables of the present replicas and the right plans, and invariants."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.core.cluster.replicas import Cause, Location, ReplicaState, next_state
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.values import replace
from chelonia.librarian.repair.plan.decide import (
    ApprovedShepherds,
    BlobView,
    NodeHealth,
    RepairPolicy,
    ReplicaOnRecord,
    plan,
    plan_blob,
    vouched,
)

NOW = Ms(1_000_000)
DEV = RepairPolicy(repair_delay_ms=0, trim_grace_ms=3_000, claim_ms=3_600_000)
CALM = RepairPolicy(repair_delay_ms=600_000, trim_grace_ms=3_000, claim_ms=3_600_000)
S = ReplicaState
LETTERS = {
    "A": S.ALIVE, "C": S.CREATING, "X": S.CREATING, "I": S.INVALID, "T": S.STALLED, "W": S.THIRDWHEEL,
    "V": S.THIRDWHEEL, "J": S.INVALID, "Y": S.CREATING, "U": S.THIRDWHEEL, "K": S.INVALID,
}  # fmt: skip
"""The letters of replica states.

- A alive, C creating, X creating with an expired claim, T stalled.
- I invalid since long, J since just now, W fresh thirdwheel, V one past grace.
- Y U K like C W J, but written by a clock a day ahead.
"""
CLAIMS = {"C": NOW + 5_000, "X": NOW, "W": NOW - 2_999, "J": NOW - 2_999, "V": NOW - 3_000}
CLAIMS |= dict.fromkeys("YUK", NOW + 86_400_000)


def node(number: int, how: str) -> tuple[ServiceId, NodeHealth]:
    """The node of a mark.

    - `+` here, `-` away since long, `~` away since just now, `m` in maintenance and away.
    - `f` here but full, `!` here but coming and going, `d` here and being drained.
    - `?` here but not proven: no heartbeat yet, or its disk not compared yet.
    - `s` no heartbeat yet since this Librarian started, which may have been just now.
    """
    state = {"-": "offline", "~": "offline", "s": "offline", "m": "maintenance"}.get(how, "alive")
    since = NOW - 1 if how == "~" else 0
    view = NodeView(ServiceId(f"s{number}"), Dn("/CN=s"), state, Ms(since), 1, 0 if how == "f" else 1000, 2000, 0, True)
    return view.shepherd, NodeHealth(view, how in "+f?!d", how in "+f!d", how != "!", how == "d", how == "s")


def cluster(how: str, **changed: NodeHealth) -> ApprovedShepherds:
    """A node for every mark; `changed` replace those of their names."""
    return ApprovedShepherds.of(dict(node(number, mark) for number, mark in enumerate(how)) | changed)  # type: ignore[arg-type]


def replica(location: Location, state: S, noted: Ms) -> ReplicaOnRecord:
    """A replica and its claim: until when it is coming, or since when it is what it is."""
    if state is S.CREATING:
        return ReplicaOnRecord(location, state, claimed_until_ms=noted)
    return ReplicaOnRecord(location, state, since_ms=noted)


def blob(replicas: str, wanted: int, name: str = "b") -> BlobView:
    """One letter per node, `.` for none. A second replica on node 0 is written after a blank."""
    first, _, extra = replicas.partition(" ")
    placed = [*enumerate(first), *((0, letter) for letter in extra)]
    held = tuple(
        replica(Location(ServiceId(f"s{n}"), ReferenceId(f"r{i}")), LETTERS[letter], Ms(CLAIMS.get(letter, 0)))
        for i, (n, letter) in enumerate(placed)
        if letter != "."
    )
    return BlobView(BlobId(name), 1, wanted, 10, Ms(0), held)


def told(view: BlobView, nodes: str, policy: RepairPolicy = DEV) -> str:
    """A plan in one line: `copy:<n>` (with targets when forced), `<state>:<nodes>`, `-<reason>:<nodes>`."""
    made = plan_blob(view, cluster(nodes), policy, NOW)
    words = [f"copy:{len(made.copies)}"] if made.copies else []
    words += [f"{mark.state.value}:{mark.location.shepherd}" for mark in made.marks]
    words += [f"-{removal.reason}:{removal.location.shepherd}" for removal in made.removals]
    words += [f"short:{made.short}"] if made.short else []
    return " ".join(words)


@pytest.mark.parametrize(
    ("replicas", "wanted", "nodes", "expected"),
    [
        # enough
        ("AA...", 2, "+++++", ""),
        ("A....", 1, "+++++", ""),
        # too few: copies at once at dev settings
        ("A....", 2, "+++++", "copy:1"),
        ("A....", 4, "+++++", "copy:3"),
        ("AAAA.", 4, "-++++", "copy:1"),
        ("AA...", 2, "-++++", "copy:1"),
        # creating counts as coming while its claim lasts and its Shepherd is there
        ("AC...", 2, "+++++", ""),
        ("AX...", 2, "+++++", "copy:1 -expired:s1"),
        ("AC...", 2, "+-+++", "copy:1"),
        # no source, no target
        ("A....", 2, "-++++", "short:2"),
        ("AA", 3, "++", "short:1"),
        ("A....", 2, "+ffff", "short:1"),
        (".....", 2, "+++++", "short:2"),
        # damaged copies go only when enough verified ones are elsewhere
        ("AAI..", 2, "+++++", "-invalid:s2"),
        ("AAJ..", 2, "+++++", ""),
        ("AJ...", 2, "+++++", "copy:1"),
        ("AAT..", 2, "+++++", "-stalled:s2"),
        ("AI...", 2, "+++++", "copy:1"),
        ("AAI..", 2, "+-+++", "copy:1"),
        ("II...", 2, "+++++", "short:2"),
        # a node with only a damaged copy is the last resort
        ("AI", 2, "++", "copy:1"),
        # an expired claim is removed only beside a verified copy; else its bytes may be the last
        ("X....", 2, "+++++", "stalled:s0 short:2"),
        ("AX...", 2, "-++++", "stalled:s1 short:2"),
        # surplus: one thirdwheel at a time
        ("AAA..", 2, "+++++", "thirdwheel:s2"),
        ("AAAA.", 2, "+++++", "thirdwheel:s3"),
        ("AAAW.", 2, "+++++", ""),
        ("AAAV.", 2, "+++++", "-surplus:s3"),
        ("AA..V", 2, "+++++", "-surplus:s4"),
        ("AA..V", 2, "++++-", ""),
        ("AA..W", 2, "+++++", ""),
        ("AAA", 2, "++-", ""),
        # two copies on one node: one is surplus even if the count by node fits
        ("AA... A", 2, "+++++", "thirdwheel:s0"),
        ("A.... A", 2, "+++++", "copy:1"),
        ("A.... A", 1, "+++++", "thirdwheel:s0"),
        ("A.... V", 1, "+++++", "-surplus:s0"),
        # a thirdwheel is called back before anything is copied (golden, kept: other copy offline -> back to alive)
        ("AW...", 1, "-++++", "alive:s1"),
        ("AAW..", 2, "-++++", "alive:s2"),
        ("AAV..", 2, "-++++", "alive:s2"),
        ("AAVW.", 3, "-++++", "alive:s2 alive:s3"),
        ("AAV..", 4, "-++++", "copy:2 alive:s2"),
        # nothing wanted is still one copy
        ("A....", 0, "+++++", ""),
        ("AA...", 0, "+++++", "thirdwheel:s1"),
        ("AV...", 0, "+++++", "-surplus:s1"),
    ],
)
def test_plans(replicas: str, wanted: int, nodes: str, expected: str) -> None:
    assert told(blob(replicas, wanted), nodes) == expected


@pytest.mark.parametrize(
    ("replicas", "wanted", "nodes", "expected"),
    [
        # away for less than the delay: waited for, unless one live copy is all there is
        ("AAA..", 3, "~++++", ""),
        ("AAA..", 3, "-++++", "copy:1"),
        ("AA...", 2, "~++++", "copy:1"),
        ("AAA..", 3, "~~+++", "copy:2"),
        ("AC...", 2, "~++++", "short:1"),
        # maintenance is waited for in any case
        ("AA...", 2, "m++++", ""),
        ("AAA..", 3, "m-+++", "copy:1"),
        # so is one that may only be starting
        ("AA...", 2, "s++++", ""),
        ("AAA..", 3, "s-+++", "copy:1"),
        # a wheel beside a waited-for copy is called back, for verified copies are too few
        ("AAW..", 2, "~++++", "alive:s2"),
    ],
)
def test_patience(replicas: str, wanted: int, nodes: str, expected: str) -> None:
    assert told(blob(replicas, wanted), nodes, CALM) == expected


@pytest.mark.parametrize(
    ("replicas", "wanted", "expected"),
    [("AY...", 2, "copy:1 -expired:s1"), ("AAU..", 2, "-surplus:s2"), ("AAK..", 2, "-invalid:s2")],
)
def test_what_a_wrong_clock_wrote_is_not_waited_for(replicas: str, wanted: int, expected: str) -> None:
    assert told(blob(replicas, wanted), "+++++") == expected


def test_a_shepherd_called_away_in_the_future_is_not_waited_for() -> None:
    away = node(0, "~")[1]
    nodes = cluster("~++++", s0=replace(away, view=replace(away.view, since_ms=Ms(NOW + 600_000))))
    assert len(plan_blob(blob("AAA..", 3), nodes, CALM, NOW).copies) == 1


@pytest.mark.parametrize(
    ("replicas", "wanted", "nodes", "expected"),
    [
        # a Shepherd that may have died with the rest, or come back empty, is no reason to give up another copy
        ("AAV..", 2, "??+++", ""),
        ("AAV..", 2, "+?+++", ""),
        ("AAA..", 2, "?++++", ""),
        ("A.... A", 1, "?++++", ""),
        ("AV...", 1, "?++++", ""),
        ("AAI..", 2, "+?+++", ""),
        ("AAAA.", 2, "?++++", "thirdwheel:s3"),
        # but it is a source, and counts where nothing is given up for it
        ("AA...", 2, "??+++", ""),
        ("A....", 2, "?++++", "copy:1"),
        # a claim that has expired waits until it is certain that its bytes are not the last
        ("AX...", 2, "?++++", "copy:1"),
        ("AAX..", 2, "?++++", "-expired:s2"),
    ],
)
def test_nothing_is_given_up_for_hearsay(replicas: str, wanted: int, nodes: str, expected: str) -> None:
    assert told(blob(replicas, wanted), nodes) == expected


@pytest.mark.parametrize(
    ("replicas", "wanted", "nodes", "expected"),
    [
        # its copies are replaced while it is there and while it is not, however short its absence
        ("AA...", 2, "!++++", "copy:1"),
        ("AAA..", 3, "!++++", "copy:1"),
        ("A....", 1, "!++++", "copy:1"),
        # they are no reason to give up others, and no surplus themselves while they do not count
        ("AAA..", 2, "!++++", ""),
        ("AAI..", 2, "!++++", "copy:1"),
        ("AX...", 1, "!++++", "copy:1"),
        # a surplus copy elsewhere is called back for one, its own is not
        ("AAW..", 2, "!++++", "alive:s2"),
        ("AW...", 2, "+!+++", "copy:1"),
    ],
)
def test_a_node_that_comes_and_goes_counts_as_away(replicas: str, wanted: int, nodes: str, expected: str) -> None:
    assert told(blob(replicas, wanted), nodes, CALM) == expected


def test_an_absence_in_the_middle_of_flapping_is_not_waited_for() -> None:
    flapping = replace(node(0, "~")[1], steady=False)
    assert len(plan_blob(blob("AAA..", 3), cluster("~++++", s0=flapping), CALM, NOW).copies) == 1


@pytest.mark.parametrize(
    ("replicas", "wanted", "nodes", "expected"),
    [
        ("AA...", 2, "d++++", ""),
        ("AAA..", 2, "d++++", "thirdwheel:s0"),
        ("AAA..", 2, "dd+++", "thirdwheel:s1"),
        ("AAA..", 2, "d+-++", ""),
    ],
)
def test_of_surplus_copies_those_of_a_draining_node_go_first(
    replicas: str, wanted: int, nodes: str, expected: str
) -> None:
    assert told(blob(replicas, wanted), nodes) == expected


@pytest.mark.parametrize(
    ("domains", "gone"),
    [("x/1 x/2 y/1", "s1"), ("x/1 x/1 y/1 y/2", "s1"), ("x/1 x/2 x/3 y/1 y/1", "s4"), ("x/1 x/2 x/3 y/1 y/2", "s2")],
)
def test_a_trim_keeps_as_many_domains_as_can_be(domains: str, gone: str) -> None:
    """Coarse and fine: no site is given up while two copies share one, nor a rack."""
    nodes = sited(*domains.split())
    held = "A" * len(nodes.health)
    marks = plan_blob(blob(held, len(held) - 1), nodes, DEV, NOW).marks
    assert [mark.location.shepherd for mark in marks] == [gone]


@pytest.mark.parametrize(
    ("replicas", "wanted", "nodes", "answered", "gone"),
    [
        ("AAV..", 2, "+++++", "s0 s1", "s2"),
        ("AAV..", 2, "+++++", "s0", ""),
        ("AAAV.", 2, "+++++", "s0 s2", "s3"),
        ("AAI..", 2, "+++++", "", ""),
        # one good copy is enough to give up what never came, but not to give up what was wanted
        ("AX...", 2, "+++++", "s0", "s1"),
        ("AX...", 2, "+++++", "", ""),
        ("AAVX.", 2, "+++++", "s1", "s3"),
        # a surplus copy may be the only good one
        ("VX...", 2, "+++++", "s0", "s1"),
        # a copy of unproven state gets no query: it would not count
        ("AAV..", 2, "+?+++", "s0 s1", ""),
    ],
)
def test_removals_stand_only_if_enough_others_answer(
    replicas: str, wanted: int, nodes: str, answered: str, gone: str
) -> None:
    made = plan_blob(blob(replicas, wanted), cluster(nodes), DEV, NOW)
    said = {witness for witness in made.witnesses if witness.shepherd in answered.split()}
    stands = vouched(made, said)
    assert [removal.location.shepherd for removal in stands.removals] == gone.split()
    assert (stands.copies, stands.marks) == ((), ())


def test_the_last_resort_gets_a_new_reference_beside_the_damaged_one() -> None:
    made = plan_blob(blob("AI", 2), cluster("++"), DEV, NOW)
    assert [copy.target for copy in made.copies] == [ServiceId("s1")]
    assert made.removals == ()
    there = plan_blob(blob("AI.", 2), cluster("+++"), DEV, NOW)
    assert [copy.target for copy in there.copies] == [ServiceId("s2")]


def sited(*domains: str) -> ApprovedShepherds:
    """A healthy node in each of these domains."""
    changed = {}
    for number, domain in enumerate(domains):
        shepherd, health = node(number, "+")
        changed[shepherd] = replace(health, view=replace(health.view, domain=domain))
    return ApprovedShepherds.of(changed)


def test_copies_go_to_other_domains_first_and_surplus_is_taken_from_the_crowded_one() -> None:
    nodes = sited("x/1", "x/2", "x/3", "y/1")
    assert [c.target for c in plan_blob(blob("A...", 2), nodes, DEV, NOW).copies] == ["s3"]
    marks = plan_blob(blob("A.AA", 2), nodes, DEV, NOW).marks
    assert [mark.location.shepherd for mark in marks] == ["s2"]


def test_shepherd_and_shepherd2_are_two_nodes() -> None:
    one, two = ServiceId("https://h/Shepherd"), ServiceId("https://h/Shepherd2")
    nodes = ApprovedShepherds.of({s: NodeHealth(replace(node(0, "+")[1].view, shepherd=s), True) for s in (one, two)})
    held = tuple(ReplicaOnRecord(Location(s, ReferenceId("r" + s)), S.ALIVE) for s in (one, two))
    assert plan_blob(BlobView(BlobId("b"), 1, 2, 1, Ms(0), held), nodes, DEV, NOW).idle


def test_the_most_endangered_comes_first_then_the_oldest() -> None:
    blobs = [
        blob("AAA..", 4, "three"),
        replace(blob("A....", 4, "young"), created_ms=Ms(2)),
        replace(blob("A....", 4, "old"), created_ms=Ms(1)),
        blob("AA...", 4, "two"),
    ]
    for order in itertools.permutations(blobs):
        assert [p.blob for p in plan(order, cluster("+++++"), DEV, NOW)] == ["old", "young", "two", "three"]
        assert plan(order, cluster("+++++"), DEV, NOW) == plan(blobs, cluster("+++++"), DEV, NOW)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_plan_depends_on_no_order(seed: int) -> None:
    """Blobs, their replicas and the nodes in any order give the same plans."""
    chance = random.Random(seed)
    blobs = [
        blob("".join(chance.choice("AACXITWVJ...") for _ in range(6)) + chance.choice(("", " A", " W")), 3, f"b{n}")
        for n in range(4)
    ]
    health = dict(node(n, chance.choice("+++++-~mf?!d")) for n in range(8))
    for shepherd, there in health.items():
        domain = chance.choice(("", "x/1", "x/2", "y/1"))
        health[shepherd] = replace(there, view=replace(there.view, domain=domain))
    made = plan(blobs, ApprovedShepherds.of(health), CALM, NOW)
    assert made == plan(
        [
            replace(b, replicas=tuple(chance.sample(b.replicas, len(b.replicas))))
            for b in chance.sample(blobs, len(blobs))
        ],
        ApprovedShepherds.of(dict(chance.sample(list(health.items()), len(health)))),
        CALM,
        NOW,
    )
    for one in blobs:
        assert plan_blob(one, ApprovedShepherds.of(health), CALM, NOW) in made


def test_no_claim_is_longer_because_the_blob_is_large() -> None:
    far = ReplicaOnRecord(Location(ServiceId("s1"), ReferenceId("r1")), S.CREATING, Ms(NOW + 2 * DEV.claim_ms + 1))
    view = blob("A....", 2)
    size = replace(view, size=1 << 50, replicas=(*view.replicas, far))
    assert plan_blob(size, cluster("+++++"), DEV, NOW).removals[0].location == far.location
    near = replace(far, claimed_until_ms=Ms(NOW + 2 * DEV.claim_ms))
    assert not plan_blob(replace(size, replicas=(*view.replicas, near)), cluster("+++++"), DEV, NOW).removals


def test_who_may_only_be_starting_is_left_to_the_leader() -> None:
    """A Librarian that has just started waits for a Shepherd that may have been silent to the leader for days."""
    assert plan_blob(blob("AA...", 2), cluster("s++++"), DEV, NOW).ripening
    assert not plan_blob(blob("AA...", 2), cluster("m++++"), DEV, NOW).ripening
    assert not plan_blob(blob("A....", 1), cluster("+ss++"), DEV, NOW).ripening


def test_a_plan_says_when_to_look_again() -> None:
    assert plan_blob(blob("AC...", 2), cluster("+++++"), DEV, NOW).revisit_ms == CLAIMS["C"]
    assert plan_blob(blob("AAW..", 2), cluster("+++++"), DEV, NOW).revisit_ms == CLAIMS["W"] + 3_000
    assert plan_blob(blob("AA...", 2), cluster("+++++"), DEV, NOW).revisit_ms == 0


def apply(view: BlobView, nodes: str, now: Ms, fresh: "itertools.count[int]") -> tuple[BlobView, list[ReplicaOnRecord]]:
    """Apply a plan; returns the blob after it, and the replicas ordered erased."""
    made = plan_blob(view, cluster(nodes), DEV, now)
    held = {replica.location: replica for replica in view.replicas}
    erased = []
    for mark in made.marks:
        since = now if mark.state is S.THIRDWHEEL else Ms(0)
        held[mark.location] = ReplicaOnRecord(mark.location, mark.state, since_ms=since)
    for removal in made.removals:
        erased.append(held.pop(removal.location))
    for copy in made.copies:
        location = Location(copy.target, ReferenceId(f"n{next(fresh)}"))
        held[location] = ReplicaOnRecord(location, S.CREATING, Ms(now + 5_000))
    return replace(view, version=view.version + 1, replicas=tuple(held.values())), erased


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(0, 4))
def test_the_last_copy_is_never_erased_whatever_happens(seed: int, wanted: int) -> None:
    """Nodes come and go, replicas rot and arrive in any order; verified copies are erased only beside enough others."""
    chance, fresh, now = random.Random(seed), itertools.count(), NOW
    view = blob("".join(chance.choice("A.IW") for _ in range(4)) + "A", wanted)
    for _ in range(40):
        nodes = "".join(chance.choice("+++-") for _ in range(5))
        before = view
        view, erased = apply(view, nodes, now, fresh)
        here = {f"s{n}" for n, mark in enumerate(nodes) if mark == "+"}
        kept = {r.location.shepherd for r in view.replicas if r.state is S.ALIVE and r.location.shepherd in here}
        if any(r.state in (S.ALIVE, S.THIRDWHEEL, S.INVALID, S.STALLED) for r in erased):
            assert len(kept) >= max(wanted, 1), (before, nodes)
        if erased:
            assert any(r.state in (S.ALIVE, S.THIRDWHEEL) for r in view.replicas), (before, nodes)
        assert sum(r.state is S.THIRDWHEEL for r in view.replicas) <= max(
            1, sum(r.state is S.THIRDWHEEL for r in before.replicas)
        )
        held = [r.location.shepherd for r in view.replicas if r.state is S.CREATING and r.claimed_until_ms > now]
        assert len(held) == len(set(held))
        view = replace(view, replicas=tuple(_life(r, chance) for r in view.replicas))
        now = Ms(now + chance.choice((0, 1_000, 4_000, 6_000)))


def _life(replica: ReplicaOnRecord, chance: random.Random) -> ReplicaOnRecord:
    """A replica's own changes: it arrives, or rots."""
    cause = chance.choice((Cause.VERIFIED, Cause.DAMAGED, None, None, None, None))
    if replica.state is not S.CREATING and cause is Cause.DAMAGED and chance.random() < 0.7:
        cause = None
    after = next_state(replica.state, cause) if cause else None
    return replica if after in (None, replica.state) else ReplicaOnRecord(replica.location, after)


@given(st.integers(0, 2**32))
def test_every_blob_heals_once_nodes_stay(seed: int) -> None:
    chance, fresh, now = random.Random(seed), itertools.count(), NOW
    view = blob("".join(chance.choice("A.IWXCT") for _ in range(4)) + "A", wanted=2)
    for _ in range(60):
        view, _ = apply(view, "+++++", now, fresh)
        done = tuple(
            ReplicaOnRecord(r.location, S.ALIVE) if r.state is S.CREATING and r.claimed_until_ms > now else r
            for r in view.replicas
        )
        view, now = replace(view, replicas=done), Ms(now + 1_000)
    assert [r.state for r in view.replicas] == [S.ALIVE, S.ALIVE]
    assert len({r.location.shepherd for r in view.replicas}) == 2
