"""`cheloniad admit` and `join` against each other, with certificates of both kinds; only the A-Hash is a stand-in."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.ports.ahash import AHashStatus, GroupChange, PeerView
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.values import replace
from chelonia.hosting.cheloniad import main
from chelonia.hosting.config import load_config, read_secret, render_config
from chelonia.hosting.net.certificates import CertificateAuthority, KeyKind
from chelonia.hosting.net.identity import subject_dn
from chelonia.hosting.setup import cli_join, host_files
from chelonia.hosting.setup.admission import SECRET_BYTES, AdmissionToken, parse_token
from chelonia.hosting.setup.admission_door import Door
from chelonia.hosting.setup.dev import dn_of
from chelonia.hosting.setup.first_config import ADMISSION, HostPaths
from tests.unit.hosting.grid import publish_to, real_now_ms
from tests.unit.hosting.setup.test_cli_init import ACCOUNT, first_port, init, places, tree, where

NEW = "two.example.org"
CHECK_RESOLVES = host_files.check_resolves


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own; names that need no DNS."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(host_files, "check_resolves", lambda _name: None)


@dataclass
class Group:
    """The part of an A-Hash that `admit` uses."""

    members: list[PeerView]
    broken: bool = False
    changes: list[GroupChange] = field(default_factory=list)

    async def status(self, _call: Call) -> AHashStatus:
        if self.broken:
            raise CheloniaError(Kind.UNAVAILABLE, "status", cause="there is no master now")
        position = Position("8e1f7a52", 1, 5)
        return AHashStatus(position, "master", True, 1, 1, replica=1, replicas=tuple(self.members))

    async def regroup(self, call: Call, change: GroupChange) -> AHashStatus:
        self.changes.append(change)
        self.members.append(PeerView(len(self.members) + 1, change.dn, change.address, "learner", -1))
        return await self.status(call)


@dataclass
class Registry:
    """The part of a Librarian that `admit` uses."""

    approved: list[ServiceRecord] = field(default_factory=list)

    async def approve(self, _call: Call, record: ServiceRecord) -> None:
        self.approved.append(record)


class Admission:
    """`admit` for one host, at the host below `tmp_path/one`."""

    def __init__(self, root: Path, group: Group | None = None, *, told_as_json: bool = False) -> None:
        self.reporter = cli_join._Reporter(json=told_as_json)
        self.home = cli_join._home(places(root / "one"))
        assert self.home.core.ahash is not None
        (own,) = self.home.core.ahash.replicas
        one = PeerView(1, self.home.core.ahash.replicas[0].dn, f"{own.host}:{own.port}", "master", 0)  # type: ignore[arg-type]
        self.group, self.registry = group or Group([one]), Registry()
        self.root = root
        self.opened = asyncio.Event()

    async def __aenter__(self) -> Admission:
        ports = cli_join._HomePorts(self.group, self.registry)  # type: ignore[arg-type]
        desk = cli_join._Desk(self.home, ports, NEW, self.reporter, approve_all=False)
        door = Door(desk.secret, desk.decide)
        self.port = self.home.port + ADMISSION
        self.token = str(AdmissionToken(door.pin, desk.secret))
        self.task = asyncio.create_task(door.run("127.0.0.1", self.port, 30, self.opened.set))
        await self.opened.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def join(self, *words: str, host: str = NEW) -> int:
        argv = ["join", f"127.0.0.1:{self.port}", "--as", host, "--token", self.token, "--account", ACCOUNT]
        return await asyncio.to_thread(main, [*argv, *where(self.root / "two"), *words])

    @property
    def two(self) -> HostPaths:
        return places(self.root / "two")


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Give the administrator's answers, in order."""
    answers = iter(lines)

    async def line() -> str:
        return f"{next(answers)}\n"

    monkeypatch.setattr(cli_join, "_line_of_person", line)


async def test_a_host_joins_with_a_key_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one", "--round-trip-ms", "250") == 0
    say(monkeypatch, "y")
    async with Admission(tmp_path) as admission:
        assert await admission.join("--domain", "oslo/b") == 0
        await admission.task
    said, two, one = capsys.readouterr().out, admission.two, places(tmp_path / "one")
    shown = [line.split()[-1] for line in said.splitlines() if "key fingerprint" in line]
    assert len(shown) == 2
    assert shown[0] == shown[1]
    for config in (two.core, two.shepherd):
        assert main(["check-config", "--config", str(config)]) == 0
    core, first = load_config(two.core), load_config(one.core)
    assert core.ahash is not None
    assert first.ahash is not None
    assert (core.ahash.replica_id, core.ahash.tuning) == (2, {"cluster": "8e1f7a52", "round_trip_ms": 250})
    assert core.ahash.replicas == (
        *first.ahash.replicas,
        replace(first.ahash.replicas[0], id=2, host=NEW, dn=dn_of(two.cert, two.key)),
    )
    assert core.trust.administrators == first.trust.administrators
    assert core.trust.issuers == load_config(two.shepherd).trust.issuers == first.trust.issuers
    assert core.trust.issuers == (subject_dn(CertificateAuthority.load(one.grid).certificate),)
    assert two.secret.read_bytes() == one.secret.read_bytes()
    assert not list(two.ahash.parent.glob("ahash")), "it is filled by the group"
    shepherd = load_config(two.shepherd).shepherd
    assert shepherd is not None
    assert [url.partition("//")[2].partition(":")[0] for url in shepherd.librarians] == ["localhost", NEW]
    assert shepherd.tuning == {"domain": "oslo/b"}
    approved = {(each.role, each.service_id, each.dn, each.approved) for each in admission.registry.approved}
    meant = {(Role(each.role), each.id, each.dn, True) for each in core.trust.services}
    assert approved == meant, "none of its services has to wait for another word"
    key = two.key.read_bytes()
    assert not [name for name, (_, held) in tree(tmp_path / "one").items() if key in held]
    assert not (two.grid / "ca").exists()
    before = tree(tmp_path / "two")
    assert await admission.join() == 0
    assert tree(tmp_path / "two") == before


@pytest.mark.parametrize("answer", ["y", "n"])
async def test_a_program_may_admit_as_well(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch, answer)
    capsys.readouterr()
    async with Admission(tmp_path, told_as_json=True) as admission:
        cli_join._report_token(admission.reporter, admission.home, NEW, parse_token(admission.token), 60)
        [waiting] = map(json.loads, capsys.readouterr().out.splitlines())
        port = f"localhost:{admission.port}"
        command = f"cheloniad join {port} --as {NEW} --token {admission.token}"
        assert waiting == {"event": "waiting", "host": NEW, "token": admission.token, "command": command, "minutes": 60}
        assert await admission.join() == (0 if answer == "y" else 1)
        await asyncio.wait((admission.task,))
    said = capsys.readouterr().out.splitlines()
    [asks] = [json.loads(line) for line in said if line.startswith("{")]
    [fingerprint] = [line.split()[-1] for line in said if line.startswith("key fingerprint")]
    assert (asks["event"], asks["host"], asks["fingerprint"]) == ("asks", NEW, fingerprint)
    assert asks["dn"].endswith(f"/CN=host/{NEW}")
    cli_join._report_admitted(admission.reporter, admission.home, NEW)
    librarian = f"https://{NEW}:{admission.home.port + 1}/Librarian"
    assert json.loads(capsys.readouterr().out) == {
        "event": "admitted", "host": NEW, "librarian_to_add": librarian, "cas_to_add": [], "replicas_to_name": []
    }  # fmt: skip


def member(number: int, name: str) -> PeerView:
    return PeerView(number, Dn(f"/O=Grid/O=Chelonia/CN=host/{name}"), f"{name}:60011", "follower", 0)


def status_of(*members: PeerView) -> AHashStatus:
    return AHashStatus(Position("8e1f7a52", 1, 5), "master", True, 1, 1, replica=1, replicas=members)


def test_who_admits_names_the_newcomers_replica_and_says_who_else_has_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica that lost its disk is filled only by those that its configuration names."""
    assert init(tmp_path / "one") == 0
    path = places(tmp_path / "one").core
    path.write_text(path.read_text().replace("\n[[listen]]", "\n# mine\n[[listen]]", 1))
    home = cli_join._home(places(tmp_path / "one"))
    [own] = home.ahash.replicas
    status = status_of(PeerView(1, own.dn, f"{own.host}:{own.port}", "master", 0), member(2, NEW), member(3, "x.org"))
    assert host_files.name_replicas(path, cli_join._replicas(status))
    section = load_config(path).ahash
    assert section is not None
    assert section.replicas == (own, *cli_join._replicas(status)[1:])
    assert "# mine\n" in path.read_text()
    assert host_files.name_replicas(path, section.replicas), "again"
    left = cli_join._to_name(home, "x.org", status, named=True)
    assert left == (NEW,)
    cli_join._report_admitted(cli_join._Reporter(json=False), home, "x.org", left)
    assert f"`replicas` in {path} of {NEW}" in capsys.readouterr().out


def test_replicas_that_a_person_has_written_otherwise_stay_as_they_are(tmp_path: Path) -> None:
    assert init(tmp_path / "one") == 0
    path = places(tmp_path / "one").core
    path.write_text(before := path.read_text().replace("replicas = [\n", "replicas = [ # mine\n"))
    home = cli_join._home(places(tmp_path / "one"))
    [own] = home.ahash.replicas
    status = status_of(PeerView(1, own.dn, f"{own.host}:{own.port}", "master", 0), member(2, NEW))
    assert not host_files.name_replicas(path, cli_join._replicas(status))
    assert path.read_text() == before
    assert cli_join._to_name(home, NEW, status, named=False) == ("localhost",)


def test_a_host_is_said_to_need_the_other_cas_that_are_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a second CA replaces the first: `join` gives one, and other hosts show certificates of both."""
    assert init(tmp_path / "one") == 0
    one = places(tmp_path / "one")
    second = CertificateAuthority.create(tmp_path / "grid2", "/O=Grid/O=Chelonia/CN=CA 2", real_now_ms())
    publish_to(second, one.ca_dir)
    capsys.readouterr()
    cli_join._report_admitted(cli_join._Reporter(json=False), cli_join._home(one), NEW)
    said = capsys.readouterr().out
    assert "/O=Grid/O=Chelonia/CN=CA 2" in said
    assert f"copy their files from {one.ca_dir}" in said
    cli_join._report_admitted(cli_join._Reporter(json=True), cli_join._home(one), NEW)
    assert json.loads(capsys.readouterr().out)["cas_to_add"] == ["/O=Grid/O=Chelonia/CN=CA 2"]


async def test_a_secret_that_somebody_chose_arrives_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert init(tmp_path / "one") == 0
    secret = places(tmp_path / "one").secret
    secret.unlink()
    secret.write_text("not hex, but long enough: für alle\n")
    secret.chmod(0o400)
    say(monkeypatch, "y")
    async with Admission(tmp_path) as admission:
        assert await admission.join() == 0
    assert read_secret(admission.two.secret) == read_secret(secret)


def test_a_secret_that_is_no_text_is_told_of_before_anybody_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newcomer would be a member by then, and the connection close without a word."""
    assert init(tmp_path / "one") == 0
    secret = places(tmp_path / "one").secret
    secret.unlink()
    secret.write_bytes(bytes(range(0xE0, 0x100)))
    secret.chmod(0o400)
    capsys.readouterr()
    assert main(["admit", NEW, *where(tmp_path / "one")]) == 2
    assert "it is no text" in capsys.readouterr().err


def test_a_node_without_a_bartender_admits_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path / "one") == 0
    core = places(tmp_path / "one").core
    config = load_config(core)
    core.write_text(render_config(replace(config, listen=config.listen[:1], bartender=None)))
    capsys.readouterr()
    assert main(["admit", NEW, *where(tmp_path / "one")]) == 2
    assert "run `cheloniad admit` on a host that does" in capsys.readouterr().err


async def test_a_host_that_the_administrator_does_not_know_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch, "")
    async with Admission(tmp_path) as admission:
        assert await admission.join() == 1
        with pytest.raises(CheloniaError, match="said no"):
            await admission.task
    assert "the administrator said no" in capsys.readouterr().err
    assert tree(tmp_path / "two") == {}
    assert admission.group.changes == []
    assert admission.registry.approved == []


async def test_a_host_that_asks_under_another_name_is_told_so_and_may_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch, "yes")
    async with Admission(tmp_path) as admission:
        assert await admission.join(host="three.example.org") == 1
        assert "this token admits two.example.org" in capsys.readouterr().err
        assert await admission.join() == 0


async def test_an_ahash_without_a_master_admits_nobody_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch, "y")
    async with Admission(tmp_path) as admission:
        admission.group.broken = True
        assert await admission.join() == 1
        assert "no master" in capsys.readouterr().err
        admission.group.broken = False
        assert await admission.join() == 0


async def test_who_was_admitted_and_lost_it_keeps_his_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch, "y", "y")
    async with Admission(tmp_path) as first:
        assert await first.join() == 0
    (tmp_path / "two").rename(tmp_path / "lost")
    first.group.members[1] = replace(first.group.members[1], role="away")
    async with Admission(tmp_path, first.group) as second:
        assert await second.join() == 0
    assert len(first.group.changes) == 1, "a member is not made one again"
    config = load_config(second.two.core)
    assert config.ahash is not None
    assert config.ahash.replica_id == 2


# --- a site with certificates of its own ---------------------------------------------------------------------------


def site(tmp_path: Path) -> CertificateAuthority:
    """A site's CA, and a first host that uses it."""
    ca = CertificateAuthority.create(tmp_path / "site", "/DC=org/CN=Site CA", real_now_ms(), kind=KeyKind.P256)
    certify(ca, places(tmp_path / "one"), "localhost")
    words = ("--site-certificate", "--administrator", "/DC=org/CN=Anna Admin")
    assert init(tmp_path / "one", *words) == 0
    return ca


def certify(ca: CertificateAuthority, at: HostPaths, name: str, **how: Any) -> None:
    ca.issue_host(f"/DC=org/CN={name}", [name], real_now_ms(), **how).write(at.cert, at.key)
    publish_to(ca, at.ca_dir)


async def test_a_host_joins_with_its_sites_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = site(tmp_path)
    say(monkeypatch, "y")
    async with Admission(tmp_path) as admission:
        certify(ca, admission.two, NEW)
        before = {path: path.read_bytes() for path in (admission.two.cert, admission.two.key)}
        assert await admission.join("--site-certificate") == 0
    assert {path: path.read_bytes() for path in before} == before
    assert [change.dn for change in admission.group.changes] == [f"/DC=org/CN={NEW}"]
    assert main(["check-config", "--config", str(admission.two.core)]) == 0


def test_who_has_no_ca_is_told_where_it_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site(tmp_path)
    home = cli_join._home(places(tmp_path / "one"))
    capsys.readouterr()
    reporter = cli_join._Reporter(json=False)
    cli_join._report_token(reporter, home, NEW, AdmissionToken(b"p" * 16, b"s" * 16), 60)
    said = capsys.readouterr().out
    assert "run `cheloniad admit` there" in said
    assert said.splitlines()[-3].endswith("--site-certificate")


def test_a_host_without_an_address_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "one")
    monkeypatch.setattr(host_files, "check_resolves", CHECK_RESOLVES)
    capsys.readouterr()
    assert main(["admit", "two.invalid", *where(tmp_path / "one")]) == 2
    assert "two.invalid: bad-config: this name has no address" in capsys.readouterr().err


def test_a_ca_that_is_trusted_no_longer_admits_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second CA has replaced the first: no host would accept a certificate of the first."""
    assert init(tmp_path / "one") == 0
    one = places(tmp_path / "one")
    second = CertificateAuthority.create(tmp_path / "grid2", "/O=Grid/O=Chelonia/CN=CA 2", real_now_ms())
    for file in one.ca_dir.iterdir():
        file.unlink()
    publish_to(second, one.ca_dir)
    capsys.readouterr()
    assert main(["admit", NEW, *where(tmp_path / "one")]) == 2
    assert "is not trusted here any more" in (said := capsys.readouterr().err)
    assert str(one.grid / "ca") in said


def issuers(at: HostPaths, *names: str) -> None:
    """Set `[trust] issuers` of a host's core."""
    config = load_config(at.core)
    at.core.write_text(render_config(replace(config, trust=replace(config.trust, issuers=names))))


def test_a_ca_that_the_nodes_do_not_name_admits_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second CA signs already, and the nodes still bind services to the first: they would refuse the newcomer."""
    assert init(tmp_path / "one") == 0
    issuers(places(tmp_path / "one"), "/O=Grid/O=Chelonia/CN=CA 2")
    capsys.readouterr()
    assert main(["admit", NEW, *where(tmp_path / "one")]) == 2
    assert "bad-config: [trust] issuers does not name /O=Grid/O=Chelonia/CN=Chelonia CA" in capsys.readouterr().err


async def test_a_host_joins_a_cluster_from_before_its_cas_were_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init(tmp_path / "one") == 0
    issuers(places(tmp_path / "one"))
    say(monkeypatch, "y")
    async with Admission(tmp_path) as admission:
        assert await admission.join() == 0
    assert load_config(admission.two.core).trust.issuers == ()


def test_a_ca_that_was_renewed_elsewhere_still_admits(tmp_path: Path) -> None:
    assert init(tmp_path / "one") == 0
    grid = places(tmp_path / "one").grid
    CertificateAuthority.load(grid).renew(real_now_ms())
    assert cli_join._home(places(tmp_path / "one")).ca is not None


async def test_a_certificate_of_nobodys_ca_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = site(tmp_path)
    say(monkeypatch)
    other = CertificateAuthority.create(tmp_path / "other", "/DC=com/CN=Other CA", real_now_ms(), kind=KeyKind.P256)
    async with Admission(tmp_path) as admission:
        certify(other, admission.two, NEW)
        assert await admission.join("--site-certificate") == 1
        assert "not accepted here" in capsys.readouterr().err
        for path in (admission.two.cert, admission.two.key):
            path.unlink()
        assert await admission.join() == 1
        assert "join with --site-certificate" in capsys.readouterr().err
        certify(ca, admission.two, NEW, lifetime_s=-1)
        assert await admission.join("--site-certificate") == 1
    assert admission.group.changes == []
    assert not admission.two.core.exists()


async def test_a_certificate_of_a_ca_for_users_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site(tmp_path)
    say(monkeypatch)
    users = CertificateAuthority.create(tmp_path / "users", "/DC=org/CN=Users CA", real_now_ms(), kind=KeyKind.P256)
    publish_to(users, places(tmp_path / "one").ca_dir)
    issuers(places(tmp_path / "one"), "/DC=org/CN=Site CA")
    async with Admission(tmp_path) as admission:
        certify(users, admission.two, NEW)
        assert await admission.join("--site-certificate") == 1
        assert "[trust] issuers does not name /DC=org/CN=Users CA" in capsys.readouterr().err
    assert admission.group.changes == []


async def test_a_cluster_with_a_ca_signs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch)
    ca = CertificateAuthority.create(tmp_path / "site", "/DC=org/CN=Site CA", real_now_ms(), kind=KeyKind.P256)
    async with Admission(tmp_path) as admission:
        certify(ca, admission.two, NEW)
        assert await admission.join("--site-certificate") == 1
        assert "join without --site-certificate" in capsys.readouterr().err


def test_a_token_is_asked_for_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other users of the host could see it on the command line."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{AdmissionToken(b'p' * 16, b's' * SECRET_BYTES)}\n"))
    door = f"127.0.0.1:{first_port() + ADMISSION}"
    assert main(["join", door, "--as", NEW, "--account", ACCOUNT, *where(tmp_path / "two")]) == 1
    assert "does not answer" in capsys.readouterr().err
