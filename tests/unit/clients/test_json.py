"""With --json every end is one document that says whether the command succeeded, and if not, why."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import Struct

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.drills import Drill, DrillStatus
from chelonia.core.cluster.healing import Exposed, HealControl, HealStatus
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.quotas import Quota, QuotaUse
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Guid, Ms, ServiceId
from chelonia.core.ports.access_keys import LINK_PREFIX, AccessKey
from chelonia.core.ports.ahash import AHashStatus
from chelonia.core.ports.bartender import DeletedEntry
from chelonia.core.ports.files import Space
from chelonia.core.ports.librarian import Finding, HealthSummary, NodeView, ServiceRecord
from chelonia.core.rights.scopes import Shared
from chelonia.core.timing.jobs import NodeJobs
from chelonia.core.values import replace
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import Client
from chelonia_clients.session import Session
from chelonia_clients.verbs import share as share_verb
from chelonia_clients.verbs import status
from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command, administrator_on


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (AHashStatus, "role replica term position writable lease_ms elected_ms membership objects_estimate free_bytes "
         "round_trip_ms vouched_term vouched_sequence pages replicas"),
        (DeletedEntry, "name type guid owner size deleted_ms until_ms"),
        (Drill, "action stage shepherd blob name by files noticed_ms whole_ms ended_ms why"),
        (Finding, "object rule subject severity text mendable"),
        (HealStatus, "leader is_leader control exposed delayed stuck copies_to_go bytes_to_go copies_done bytes_done "
         "copying copies_per_min bytes_per_s forecast_ms queue cursors waits_for nodes drains lost lost_named "
         "unreachable"),
        (HealthSummary, "leader is_leader position exposed queued copying erasing replicas paused_by paused_ms "
         "held_back waits_for"),
        (NodeView, "shepherd dn state free_bytes total_bytes replicas accepting domain store reclaimable_bytes trouble "
         "drain"),
    ],
)  # fmt: skip
def test_what_is_told_under_the_name_of_a_field_keeps_that_name(record: type[Struct], told: str) -> None:
    """Programs read it (docs/cli.md, JSON): if a port's field is renamed, the verb keeps the old name."""
    assert set(told.split()) <= set(record.__struct_fields__)


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ((), ""), (("nonsense",), "nonsense"), (("stat",), "stat"), (("stat", "--fly", "/"), "stat"),
        (("-w", "ls", "/"), "ls"), (("--fly", "ls"), ""), (("ls", "relative"), "ls"), (("cat", "/f"), "cat"),
        (("put", "-j", "many", "f", "/f"), "putFile"), (("admin", "fly"), "admin"), (("move", "/a", "/b", "x"), "move"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_a_command_line_that_makes_no_sense(chelonia: Command, words: tuple[str, ...], verb: str, first: bool) -> None:
    ran = chelonia(*(("--json", *words) if first else (*words, "--json")))
    said = json.loads(ran.out)
    assert (ran.code, said["ok"], said["exit_code"], said["verb"]) == (2, False, 2, verb)
    assert said["error"]["kind"] in (Kind.BAD_REQUEST.value, Kind.BAD_NAME.value)
    assert said["error"]["cause"]


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (RuntimeError("oops"), 1, Kind.INTERNAL),
        (FileNotFoundError(2, "No such file or directory", "f"), 3, Kind.NOT_FOUND),
        (OSError("strange"), 1, Kind.INTERNAL),
    ],
)
def test_an_exception(
    chelonia: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, kind: Kind
) -> None:
    async def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("chelonia_clients.verbs.listing.stat", broken)
    ran = chelonia("stat", "/", "--json")
    said = json.loads(ran.out)
    assert (ran.code, said["exit_code"], said["error"]["kind"]) == (code, code, kind.value)


def test_the_first_failure_stands_above_the_results(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/b", b"")
    fake.deny("/b")
    said = json.loads(chelonia("--json", "stat", "/none", "/b", "/").out)
    assert (said["ok"], said["error"]["kind"], len(said["results"])) == (False, "not-found", 3)
    assert "error" not in json.loads(chelonia("--json", "stat", "/").out)


def test_help_stays_text(chelonia: Command) -> None:
    for words in (("--json", "--help"), ("--json", "stat", "--help")):
        assert chelonia(*words).out.startswith("Usage: chelonia")


class Healthy:
    """A Librarian that is well."""

    async def health(self, call: Call) -> HealthSummary:
        return HealthSummary("https://l/Librarian", True, Position("c", 1, 60), 0, 1, 2, 3, {"alive": 4})

    async def drill_status(self, call: Call) -> DrillStatus:
        return DrillStatus(Drill())

    async def heal_status(self, call: Call) -> HealStatus:
        return HealStatus("https://l/Librarian", True, HealControl(0, 1), (), *[0] * 10)

    async def nodes(self, call: Call) -> tuple[object, ...]:
        return ()

    async def services(self, _: Call) -> tuple[ServiceRecord, ...]:
        return ()


def test_admin_status_tells_the_position(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator_on(fake, Healthy()))
    [told] = json.loads(chelonia("admin", "status", "--json").out)["results"]
    assert told["position"] == {"cluster": "c", "generation": 1, "sequence": 60}
    assert chelonia("admin", "status").lines == [
        "WARNING: no Shepherd is alive: nothing can be stored",
        "  WARN  no Shepherd is alive: nothing can be stored: start a Shepherd, or `cheloniad join` on a further host",
        "",
        "A-Hash             none is known here: give --ahash URL, or set CHELONIA_AHASH_URL",
        "repair is led by   https://l/Librarian",
        "metadata position  1.60",
        "Shepherds          none",
        "space              not known",
        "certificates       not known: no node that serves metrics was reached",
        "jobs               none",
        "versions           not known",
        "replicas           4 alive at the last survey",
        "too few copies     0",
        "repair             1 queued, 2 copying, 3 erasing",
    ]


def test_who_is_no_administrator_learns_what_is_missing(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strict(Healthy):
        async def health(self, call: Call) -> HealthSummary:
            raise CheloniaError(Kind.DENIED, "librarian.health", "", "/CN=joe is not registered and approved as x")

    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator_on(fake, Strict()))
    refused = chelonia("admin", "status")
    assert (refused.code, "as x; `admin` needs an administrator's certificate" in refused.err) == (4, True)


def test_before_the_first_survey_no_replica_is_counted(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "none at the last survey" of a cluster full of files, whose leader had not surveyed them."""

    class Unsurveyed(Healthy):
        async def health(self, call: Call) -> HealthSummary:
            return replace(await super().health(call), replicas={})

    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator_on(fake, Unsurveyed()))
    assert "replicas           not surveyed yet" in chelonia("admin", "status").lines


def test_admin_status_tells_which_node_runs_which_version(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ("https://a:1/Librarian", "https://b:1/Shepherd", "https://c:1/Shepherd")
    runs = {
        f"https://{host}:1": NodeJobs("n", host, (), version)
        for host, version in zip("abc", ("0.10.0", "0.9.1", ""), strict=True)
    }

    class Upgraded(Healthy):
        async def services(self, _: Call) -> tuple[ServiceRecord, ...]:
            return tuple(ServiceRecord(Role.LIBRARIAN, Dn("/CN=x"), ServiceId(each), True) for each in hosts)

    async def asked(_: Administrator, url: str) -> status._Told:
        # Software that reports no version sends no such field.
        text = msgspec.json.encode(runs[url]).replace(b',"version":""', b"")
        return status._Told(msgspec.json.decode(text, type=NodeJobs))

    monkeypatch.setattr(status, "_node", asked)
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator_on(fake, Upgraded()))
    assert [line for line in chelonia("admin", "status").lines if "https://" in line and ":1" in line] == [
        "versions           0.10.0: https://a:1",
        "                   0.9.1: https://b:1",
        "                   older, not reported: https://c:1",
    ]
    [told] = json.loads(chelonia("admin", "status", "--json").out)["results"]
    assert told["versions"] == {"https://a:1": "0.10.0", "https://b:1": "0.9.1", "https://c:1": ""}
    runs |= {url: replace(each, version="0.2.0") for url, each in runs.items()}
    assert "versions           0.2.0 on all nodes that answer" in chelonia("admin", "status").lines


def test_admin_status_of_a_librarian_that_does_not_lead_tells_what_the_leader_says(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Second(Healthy):
        async def health(self, call: Call) -> HealthSummary:
            return replace(await super().health(call), is_leader=False, replicas={})

        async def heal_status(self, call: Call) -> HealStatus:
            return replace(await super().heal_status(call), exposed=(Exposed(2, 5),), copies_to_go=6)

        async def nodes(self, call: Call) -> tuple[object, ...]:
            return (NodeView(ServiceId("https://s1/Shepherd"), Dn("/CN=s"), "alive", Ms(0), replicas=7),)

    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator_on(fake, Second()))
    lines = chelonia("admin", "status").lines
    assert "replicas           7 on the Shepherds" in lines
    assert "too few copies     5" in lines
    assert "repair             6 copies to go, 0 copying" in lines


def test_admin_top_looks_again_until_its_time_is_over(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hurt(Healthy):
        looks = 0

        async def heal_status(self, call: Call) -> HealStatus:
            self.looks += 1
            return HealStatus("l", True, HealControl(0, 1), (), *[0] * 10, lost=2 if self.looks == 1 else 0)

        async def nodes(self, call: Call) -> tuple[object, ...]:
            full = NodeView(
                ServiceId("https://s1/Shepherd"), Dn("/CN=s"), "alive", Ms(0), 1, 25, 100, 7, accepting=True
            )
            return (full, NodeView(ServiceId("https://s2/Shepherd"), Dn("/CN=s"), "offline", Ms(0)))

    hurt = Hurt()
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator_on(fake, hurt))
    ran = chelonia("admin", "top", "--for", "5s")
    assert (ran.code, hurt.looks) == (0, 4), "every two seconds"
    assert "BAD: no good copy of 2 files" in ran.out
    assert sum("https://s2/Shepherd is offline" in line for line in ran.lines) == 4 + 3
    bars = [line for line in ran.lines if line.endswith("7 replicas  https://s1/Shepherd")]
    assert bars == ["###############       75%  alive               7 replicas  https://s1/Shepherd"] * 4


def test_a_missing_parent_mentions_what_makes_it(chelonia: Command) -> None:
    assert "-p makes all that is missing" in chelonia("mkdir", "/a/b/c").err


def test_ls_without_a_name_lists_the_root(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/f", b"")
    assert chelonia("ls").lines == ["'/': collection", "  f  <file>"]


def test_a_failure_has_its_facts_beside_what_it_is_of(chelonia: Command) -> None:
    said = json.loads(chelonia("--json", "stat", "/none").out)
    facts = {"kind": "not-found", "errno": "ENOENT", "exit_code": 3, "op": "stat", "subject": "/none",
             "cause": said["error"]["cause"], "retryable": False}  # fmt: skip
    assert said["error"] == facts
    assert said["results"] == [{"ok": False, "ln": "/none", "error": facts}]


def test_a_quota_has_its_facts(chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch) -> None:
    use = QuotaUse(Quota(Dn("/CN=a"), Guid("g"), 100, 7), 40, 2, True, "/c", True)
    spaces = [Space(9, 8, (use,)), Space(9, 8)]

    async def space(_: Client, ln: str) -> Space:
        return spaces.pop(0)

    monkeypatch.setattr(Client, "space", space)
    fake.add_collection("/c")
    counted = {"user": "/CN=a", "tree": "/c", "guid": "g", "bytes": 40, "bytes_max": 100, "files": 2, "files_max": 7,
               "counted": True, "default": True}  # fmt: skip
    assert json.loads(chelonia("--json", "quota", "/c").out)["results"] == [{"ok": True, "ln": "/c", **counted}]
    assert json.loads(chelonia("--json", "quota", "/").out)["results"] == [
        {"ok": True, "ln": "/", "total": 9, "free": 8}
    ]


def test_a_share_link_has_its_facts(chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch) -> None:
    key = AccessKey(f"{LINK_PREFIX}ab", Dn("/CN=a"), Ms(1), Ms(1 << 60), "read /c", void=True)

    class Keys:
        async def list(self, _: Call) -> tuple[AccessKey, ...]:
            return (key, replace(key, id="of S3"), replace(key, expires_ms=Ms(1)))

        async def revoke(self, _: Call, key_id: str) -> None:
            assert key_id == key.id

    async def share(_: Client, ln: str, lifetime_ms: int, **how: bool) -> Shared:
        assert (ln, lifetime_ms, how) == ("/c", 86_400_000, {"upload": True, "write": False})
        return Shared("token", "https://h/c", "https://h/c?authz=token", Ms(77))

    monkeypatch.setattr(Client, "share", share)
    monkeypatch.setattr(connect, "open_keys", lambda *_: Keys())
    monkeypatch.setattr(share_verb, "id_of", lambda _: f"{LINK_PREFIX}ab")
    monkeypatch.setattr(share_verb, "password_of", lambda _: "secret")
    monkeypatch.setattr(Session, "settings", lambda _: None)

    def results(*words: str) -> object:
        return json.loads(chelonia("--json", "share", *words).out)["results"]

    told = {"link": "https://h/c?authz=token", "url": "https://h/c", "token": "token", "password": "secret"}
    assert results("--upload", "/c") == [{"ok": True, "ln": "/c", **told, "until_ms": 77}]
    assert results("--list") == [
        {"ok": True, "id": "ab", "dn": "/CN=a", "created_ms": 1, "until_ms": 1 << 60, "scope": "read /c", "void": True}
    ]
    assert results("--revoke", "ab") == [{"ok": True, "id": "ab", "status": "revoked"}]
