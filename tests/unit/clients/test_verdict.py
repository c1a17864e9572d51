"""The verdict on a cluster: its problems, how bad they are, and their cures."""

from __future__ import annotations

import pytest

from chelonia.core.cluster.healing import Exposed, NodeCursor
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.ahash import AHashStatus, PeerView, Position
from chelonia.core.ports.librarian import HealthSummary, NodeView
from chelonia.core.timing.jobs import FAILING, JobView, NodeJobs
from chelonia.core.values import replace
from chelonia.hosting.metrics import Metrics
from chelonia_clients.verbs.status import verdict_lines
from chelonia_clients.verdict import Arrival, Seen, ahead_s, arrived, days_left, full_in_ms, judge
from tests.unit.clients.test_heal import HURT, PAUSED, WHOLE

HEALTH = HealthSummary("https://l/Librarian", True, Position("c", 1, 2), 0, 0, 0, 0)
NODE = NodeView(ServiceId("https://s1/Shepherd"), Dn("/CN=s1"), "alive", Ms(0), 1, 80, 100, accepting=True)
OTHER = NodeView(ServiceId("https://s2/Shepherd"), Dn("/CN=s2"), "alive", Ms(0), accepting=True)
FULL = NodeView(ServiceId("https://s3/Shepherd"), Dn("/CN=s3"), "alive", Ms(0), total_bytes=1)
WELL = Seen(HEALTH, WHOLE, (NODE, OTHER))
FAILS = JobView("librarian", "sweep", FAILING, "", "", 0, None, True)
EXPIRED = CheloniaError(Kind.UNTRUSTED, cause="the CRL of CA /CN=x has expired")
AWAY = CheloniaError(Kind.NETWORK, cause="connection refused")


def ahash(*roles: str, role: str = "master") -> AHashStatus:
    views = tuple(PeerView(n, Dn(f"/CN={n}"), f"h{n}:1", each, 0) for n, each in enumerate(roles, 1))
    return AHashStatus(Position("c", 1, 2), role, True, 10, 1 << 30, 1, replicas=views)


def test_nothing_to_say_is_ok() -> None:
    assert judge(WELL) == []
    assert verdict_lines(WELL)[0].startswith("OK")
    assert judge(replace(WELL, nodes=(NODE, OTHER, replace(FULL, total_bytes=0)))) == [], "not heard yet"
    group = replace(WELL, ahashes={"https://a/AHash": ahash("master", "follower", "follower")})
    assert judge(group) == []
    usual = replace(WELL, days={"u": {"certificate": 14.1, "ca": 900.0, "crl": 7.0}}, clocks={"u": -1.9})
    assert judge(usual) == [], "a grid CA's CRL has 30 days, and is signed anew a week before the end"


@pytest.mark.parametrize(
    ("seen", "level", "said", "cure"),
    [
        (replace(WELL, healing=replace(WHOLE, lost=2)), "BAD", "no good copy of 2 files", "what-was-lost.md"),
        (replace(WELL, healing=replace(WHOLE, unreachable=1)), "BAD", "cannot be read now", "admin node list"),
        (replace(WELL, healing=HURT), "WARN", "too few copies of 42 files", "heal status --watch"),
        (replace(WELL, healing=replace(WHOLE, control=PAUSED)), "WARN", "healing is paused", "heal resume"),
        (replace(WELL, healing=replace(WHOLE, waits_for="a rebuild is not through")), "WARN",
         "healing waits: a rebuild", "chelonia admin rebuild"),
        (replace(WELL, healing=replace(WHOLE, exposed=(Exposed(4, 1),), stuck=1)), "WARN",
         "more copies of 1 file are wanted than can be made now", "report to every Librarian"),
        (replace(WELL, nodes=(replace(NODE, state="offline"),)), "WARN", "s1/Shepherd is offline", "shepherd-dies.md"),
        (replace(WELL, nodes=(replace(NODE, state="offline", trouble="its disk fails"),)), "WARN",
         "s1/Shepherd is offline: its disk fails", "disk-dies.md"),
        (replace(WELL, nodes=(NODE, replace(OTHER, trouble="it comes and goes"))), "WARN", "s2/Shepherd: it comes",
         "disk-dies.md"),
        (replace(WELL, nodes=(NODE, OTHER, replace(FULL, state="maintenance", maintenance_until_ms=Ms(1000)))), "WARN",
         "s3/Shepherd is away or in maintenance, waited for until 1970-01-01 00:00:01Z", "start it"),
        (replace(WELL, nodes=(NODE, OTHER, FULL)), "WARN", "s3/Shepherd is full", "disk-is-full"),
        (replace(WELL, nodes=(NODE, replace(OTHER, domain="oslo/room1"))), "WARN",
         "https://s1/Shepherd has the domain (none), others longer ones", "`domain`"),
        (replace(WELL, nodes=(NODE,)), "WARN", "one Shepherd is alive: uploads that want more", "cheloniad join"),
        (replace(WELL, nodes=(replace(NODE, state="offline"),)), "WARN", "no Shepherd is alive", "start a Shepherd"),
        (replace(WELL, nodes=(replace(NODE, free_bytes=10),)), "WARN", "10 % of the space is free", "add a Shepherd"),
        (replace(WELL, nodes=(replace(NODE, free_bytes=10), replace(NODE, state="maintenance"))), "WARN",
         "10 % of the space is free", "add a Shepherd"),
        (replace(WELL, nodes=(replace(NODE, free_bytes=1),)), "BAD", "1 % of the space is free", "add a Shepherd"),
        (replace(WELL, healing=replace(WHOLE, leader="", is_leader=False)), "WARN",
         "not known whether all files are whole: nobody leads repair", "heal status"),
        (replace(WELL, healing=replace(HURT, is_leader=False)), "WARN", "the repair leader does not answer",
         "heal status"),
        (replace(WELL, healing=replace(WHOLE, cursors=(NodeCursor(NODE.shepherd, "", read=False),))), "WARN",
         "the repair leader is still looking", "heal status"),
        (replace(WELL, ahashes={"u": ahash("master", "parted", "follower")}), "BAD", "have two histories",
         "ahash-replicas.md"),
        (replace(WELL, ahashes={"u": ahash("master", "follower", "away")}), "WARN", "2 of 3 replicas", "ahash status"),
        (replace(WELL, ahashes={"u": ahash("away", "away", "away", role="alone")}), "BAD", "no master",
         "ahash-replicas.md"),
        (replace(WELL, ahashes={"u": ahash("follower", "master", "follower", role="client")}), "WARN",
         "the A-Hash's master, replica 2 at h2:1, is not among those that answer here", "`ahash` of client.toml"),
        (replace(WELL, ahashes={"u": replace(ahash("follower", role="follower"), free_bytes=27 << 20)}), "WARN",
         "27.0 MiB are left on the disk of u", "ahash-replicas.md"),
        (replace(WELL, ahashes={"u": ahash("master")}), "WARN", "one replica: its loss stops all", "cheloniad join"),
        (replace(WELL, silent={"https://a/AHash": AWAY}), "WARN", "does not answer: connection",
         "start its node"),
        (replace(WELL, silent={"https://a/AHash": EXPIRED}), "WARN", "does not answer: the CRL", "certificates.md"),
        (replace(WELL, mute={"https://s1": CheloniaError(Kind.TIMEOUT, cause="it did not answer in time")}), "WARN",
         "did not answer in time", "a firewall is in between; else start it"),
        (replace(WELL, mute={"https://s1": EXPIRED}), "WARN", "does not answer: the CRL", "certificates.md"),
        (replace(WELL, days={"https://s1": {"certificate": 13.5}}), "WARN", "the certificate of https://s1 ends in 13",
         "certificates.md"),
        (replace(WELL, days={"https://s1": {"ca": 0.2}}), "BAD", "a CA of https://s1 ends in 0 days",
         "certificates.md"),
        (replace(WELL, days={"https://s1": {"crl": 4.5}}), "WARN", "a CRL of https://s1 ends in 4 days",
         "certificates.md"),
        (replace(WELL, clocks={"https://s1": 3600.4}), "WARN",
         "the clock of https://s1 is 3600 s ahead of this machine's", "NTP"),
        (replace(WELL, clocks={"https://s1": -31.0}), "WARN", "the clock of https://s1 is 31 s behind this machine's",
         "NTP"),
        (replace(WELL, waiting=("https://s9/Shepherd",)), "WARN", "1 service to be approved", "service list"),
        (replace(WELL, mute={"https://s1": AWAY}), "WARN", "https://s1 does not answer", "start it"),
        (replace(WELL, jobs=(NodeJobs("n1", "p", (FAILS,)),)), "WARN", "sweep on n1", "admin jobs"),
    ],
)  # fmt: skip
def test_each_trouble_has_its_cure(seen: Seen, level: str, said: str, cure: str) -> None:
    [point] = [point for point in judge(seen) if said in point.problem]
    assert (point.level.name, cure in point.cure) == (level, True)
    assert any(said in line and cure in line for line in verdict_lines(seen)[1:])


def test_a_master_that_is_not_asked_is_one_all_the_same() -> None:
    elsewhere = replace(WELL, ahashes={"u": ahash("follower", "master", "follower", role="client")})
    assert [point.level.name for point in judge(elsewhere)] == ["WARN"]
    seen = Seen(HEALTH, WHOLE, (NODE, OTHER), ahashes={"u": ahash("follower", "away", "follower", role="alone")})
    assert "has no master" in judge(seen)[0].problem


def test_a_host_that_does_not_answer_is_named_once() -> None:
    away = {"https://h:60001/AHash": AWAY}
    seen = replace(WELL, silent=away, mute={"https://h:60001": AWAY, "https://h:60003": AWAY})
    assert [point.problem.split(" does")[0] for point in judge(seen)] == [
        "the A-Hash https://h:60001/AHash",
        "https://h:60003",
    ]


def test_the_worst_stands_first() -> None:
    seen = replace(WELL, healing=replace(WHOLE, lost=1), waiting=("a",), days={"u": {"ca": 2.0}})
    assert verdict_lines(seen)[0] == "BAD: no good copy of 1 file, and 2 more"


async def test_when_space_is_full_is_told_from_what_has_come_since_the_nodes_started() -> None:
    metrics = Metrics()
    metrics.data("in", 1000)
    metrics.data("out", 9)
    text = (await metrics.expose()).decode()
    started = float(next(line for line in text.splitlines() if line.startswith("process_start_time")).split()[1])
    found = arrived(text, int(started * 1000) + 7_200_000)
    assert found == Arrival(1000.0, pytest.approx(7_200_000, abs=2))
    assert arrived("", 1) is None
    day = Arrival(20.0, 86_400_000)
    assert full_in_ms(replace(WELL, arrived=(day, day))) == 2 * 86_400_000, "80 bytes are free, 40 come in a day"
    assert full_in_ms(replace(WELL, arrived=(day, Arrival(20.0, 60_000)))) == -1, "too little is known of one"
    assert full_in_ms(replace(WELL, arrived=(day,), mute={"https://s1": AWAY})) == -1
    assert full_in_ms(WELL) == -1


def test_days_are_read_from_metrics() -> None:
    text = (
        '# HELP x\nchelonia_certificate_days_left{what="host"} 364.0\nchelonia_certificate_days_left{what="ca"} 3.5\n'
    )
    assert days_left(text) == {"host": 364.0, "ca": 3.5}
    assert days_left("") == {}


def test_a_clock_is_read_from_the_time_of_an_answer() -> None:
    assert ahead_s({"Date": "Thu, 01 Jan 1970 01:00:00 GMT"}, 10_000) == 3590.0
    assert ahead_s({}, 10_000) is None
    assert ahead_s({"Date": "today"}, 10_000) is None
