"""`cheloniad init` and `join`: the files they write, with owners, and refusals before anything is written."""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509

from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.layout import StoreState
from chelonia.core.errors import Kind
from chelonia.core.ids import Dn
from chelonia.durable_files import write_file
from chelonia.hosting.cheloniad import main
from chelonia.hosting.config import PeerEntry, load_config, parse_config, render_config
from chelonia.hosting.net.certificates import CertificateAuthority, KeyKind, key_pem, make_key
from chelonia.hosting.setup import host_files
from chelonia.hosting.setup.dev import dn_of
from chelonia.hosting.setup.first_config import (
    LISTENING,
    ClusterFacts,
    HostFacts,
    HostPaths,
    check_host,
    core_config,
    hosts_of,
    shepherd_config,
    url,
)
from chelonia_clients.settings import Wish, settle
from tests.support.failing import fails
from tests.unit.hosting.grid import closed_pem, publish_to, real_now_ms

ACCOUNT = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
GROUP = {"one.example.org": 1, "two.example.org": 2, "three.example.org": 3}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


def first_port() -> int:
    """A port below those of the system, other for each process of tests that run at the same time."""
    for number in range(os.getpid(), os.getpid() + 640):
        first = 21_000 + number % 640 * 17
        with socket.socket() as probe:
            try:
                for offset in LISTENING:
                    with socket.socket() as probe:
                        probe.bind(("0.0.0.0", first + offset))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def places(root: Path) -> HostPaths:
    return HostPaths(root / "etc", root / "grid", root / "data")


def where(root: Path) -> list[str]:
    at = places(root)
    return ["--conf", str(at.conf), "--grid", str(at.grid), "--data", str(at.data)]


def init(root: Path, *words: str, host: str = "localhost") -> int:
    return main(["init", host, *where(root), "--account", ACCOUNT, "--port", str(first_port()), *words])


def join(root: Path, *words: str, door: str = "localhost:1", host: str = "localhost") -> int:
    return main(["join", door, "--as", host, "--account", ACCOUNT, *where(root), *words])


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """All files below, with mode and contents."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): (path.stat().st_mode, path.read_bytes()) for path in files}


# --- what is written -----------------------------------------------------------------------------------------------


def test_a_host_is_set_up_whole_and_a_second_time_nothing_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ("localhost", "two.example.org", "two.example.org")
    assert init(tmp_path, "--with", *others, "--administrator", "Anna Admin", "--domain", "oslo/a") == 0
    said, at = capsys.readouterr().out, places(tmp_path)
    assert "systemctl enable --now chelonia@core chelonia@shepherd" in said
    assert re.findall(r"cheloniad admit (\S+)", said) == ["two.example.org"]
    for config in (at.core, at.shepherd):
        assert main(["check-config", "--config", str(config)]) == 0
    core, shepherd = load_config(at.core), load_config(at.shepherd)
    assert core.trust.administrators == ("/O=Grid/O=Chelonia/CN=Anna Admin",)
    assert core.ahash is not None
    assert core.ahash.replicas[0].dn == dn_of(at.cert, at.key) == "/O=Grid/O=Chelonia/CN=host/localhost"
    assert shepherd.shepherd is not None
    assert hosts_of(shepherd.shepherd.librarians) == ("localhost", "two.example.org")
    assert shepherd.shepherd.tuning == {"domain": "oslo/a"}
    before = tree(tmp_path)
    assert init(tmp_path) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert tree(tmp_path) == before


def test_a_host_may_be_named_by_its_address(tmp_path: Path) -> None:
    assert init(tmp_path, host="127.0.0.1") == 0
    core = load_config(places(tmp_path).core)
    assert core.ahash is not None
    assert core.ahash.id.startswith("https://127.0.0.1:")


def test_secrets_are_closed_to_others_and_configurations_to_their_daemon(tmp_path: Path) -> None:
    assert init(tmp_path) == 0
    at = places(tmp_path)
    modes = {at.key: 0o400, at.secret: 0o400, at.core: 0o640, at.conf: 0o750, at.grid / "ca": 0o700, at.cert: 0o444}
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in modes} == modes
    if os.getuid() == 0:
        uid = pwd.getpwnam(ACCOUNT).pw_uid
        owned = [at.key, at.secret, at.ahash, *at.ahash.rglob("*")]
        assert {path.stat().st_uid for path in owned} == {uid}
        assert {path.stat().st_uid for path in (at.core, at.shepherd, at.conf, at.grid / "ca" / "cakey.pem")} == {0}


def test_only_the_ca_of_the_cluster_and_the_administrators_vouch_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another CA that is trusted later, for users, can name nobody an administrator or a service."""
    at, globus = places(tmp_path), tmp_path / "home" / ".globus"
    own = "/O=Grid/O=Chelonia/CN=Chelonia CA"
    assert init(tmp_path) == 0
    assert [load_config(path).trust.issuers for path in (at.core, at.shepherd)] == [(own,)] * 2
    for path in (at.core, at.shepherd):
        path.unlink()
    capsys.readouterr()
    assert init(tmp_path, "--administrator", "/O=Grid/O=Chelonia/CN=Anna Admin") == 0
    assert load_config(at.core).trust.issuers == (own,)
    assert f"/O=Grid/O=Chelonia/CN=Anna Admin needs a certificate of {own}" in capsys.readouterr().out
    for path in (at.core, at.shepherd, globus / "usercert.pem", globus / "userkey.pem"):
        path.unlink()
    site = CertificateAuthority.create(tmp_path / "site", "/DC=org/CN=Site CA", real_now_ms(), kind=KeyKind.P256)
    site.issue_user("/DC=org/CN=Anna Admin", real_now_ms()).write(globus / "usercert.pem", globus / "userkey.pem")
    for words in ((), ("--administrator", "/DC=org/CN=Anna Admin")):
        assert init(tmp_path, *words) == 0
        assert load_config(at.core).trust.issuers == (own, "/DC=org/CN=Site CA")
        for path in (at.core, at.shepherd):
            path.unlink()
    capsys.readouterr()
    assert init(tmp_path, "--administrator", "/DC=org/CN=Bo Admin") == 0
    assert load_config(at.core).trust.issuers == (), "nobody knows which CA that is"
    assert "[trust] issuers" in capsys.readouterr().out


def test_an_administrator_of_another_ca_below_the_clusters_own_organization_is_not_locked_out(tmp_path: Path) -> None:
    at, globus = places(tmp_path), tmp_path / "home" / ".globus"
    site = CertificateAuthority.create(tmp_path / "site", "/DC=org/CN=Site CA", real_now_ms(), kind=KeyKind.P256)
    site.issue_user("/DC=org/CN=Anna Admin", real_now_ms()).write(globus / "usercert.pem", globus / "userkey.pem")
    assert init(tmp_path, "--organization", "/DC=org", "--administrator", "/DC=org/CN=Anna Admin") == 0
    assert load_config(at.core).trust.issuers == ("/DC=org/CN=Chelonia CA", "/DC=org/CN=Site CA")


def test_the_administrator_can_begin_at_once(tmp_path: Path) -> None:
    assert init(tmp_path, "--with", "two.example.org") == 0
    home = tmp_path / "home"
    found = settle(Wish(), {}, home)
    assert [hosts_of([each])[0] for each in found.bartender_urls()] == ["localhost", "two.example.org"]
    assert len(found.ahash_urls()) == len(found.librarian_urls()) == 2
    core = load_config(places(tmp_path).core)
    assert dn_of(home / ".globus" / "usercert.pem", home / ".globus" / "userkey.pem") in core.trust.administrators


def test_a_home_that_is_not_there_yet_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "not" / "yet"
    monkeypatch.setenv("HOME", str(home))
    assert init(tmp_path) == 0
    assert {path.name for path in (home / ".globus").iterdir()} == {"usercert.pem", "userkey.pem"}


def test_an_interrupted_init_goes_on(tmp_path: Path) -> None:
    """The files made so far stay, the store too; the configuration of the core comes last. test_cli_init_killed.py
    kills it anywhere."""
    at = places(tmp_path)
    assert init(tmp_path) == 0
    kept = {path: path.read_bytes() for path in (at.cert, at.key, at.secret, at.grid / "ca" / "cakey.pem", at.core)}
    at.core.unlink()
    assert init(tmp_path) == 0
    assert {path: path.read_bytes() for path in kept} == kept, "the cluster is the one that was founded"


def test_a_store_in_use_is_not_taken_for_one_of_an_interrupted_init(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = places(tmp_path)
    assert init(tmp_path) == 0
    at.core.unlink()
    (at.ahash / "replica").write_text("of a group")
    assert init(tmp_path) == 1
    assert "move it away, or put the configuration back" in capsys.readouterr().err
    (at.ahash / "replica").unlink()
    store = BdbStore(at.ahash, BdbSettings(), pytest.fail)
    store.commit({layout.META_STATE: layout.encode_state(StoreState(1, 0))}, ())
    store.close()
    before = tree(at.ahash)
    assert init(tmp_path) == 1
    assert tree(at.ahash) == before


def test_keys_that_wait_for_their_certificates_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They may be for a CA that has not answered yet, or of an `init` that was killed: nobody can make them again."""
    at, user = places(tmp_path), tmp_path / "home" / ".globus" / "userkey.pem"
    keys = {path: key_pem(make_key(KeyKind.RSA)) for path in (at.key, user, at.grid / "ca" / "cakey.pem")}
    for path, pem in keys.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, pem, 0o400)
    assert init(tmp_path) == 0
    assert {path: path.read_bytes() for path in keys} == keys
    for path in (user.with_name("usercert.pem"), at.core):
        path.unlink()
    write_file(user, closed_pem(make_key(KeyKind.P256), b"a word"), 0o400)
    assert init(tmp_path) == 2
    assert "move it away" in capsys.readouterr().err


def test_a_shepherd_that_is_configured_already_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path) == 0
    at = places(tmp_path)
    at.core.unlink()
    text = at.shepherd.read_text() + '\n[log]\nlevel = "DEBUG"\n'
    at.shepherd.write_text(text)
    assert init(tmp_path) == 1
    assert f"{at.shepherd}: exists" in capsys.readouterr().err
    assert at.shepherd.read_text() == text
    assert not at.core.exists()


def test_a_site_with_certificates_of_its_own_keeps_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = places(tmp_path)
    ca = CertificateAuthority.create(tmp_path / "site", "/DC=org/CN=Site CA", real_now_ms(), kind=KeyKind.P256)
    ca.issue_host("/DC=org/CN=localhost", ["localhost"], real_now_ms()).write(at.cert, at.key)
    assert init(tmp_path) == 1
    assert "--site-certificate" in capsys.readouterr().err
    assert init(tmp_path, "--site-certificate") == 2
    assert str(at.ca_dir) in capsys.readouterr().err
    publish_to(ca, at.ca_dir)
    assert init(tmp_path, "--site-certificate") == 2
    assert "--administrator" in capsys.readouterr().err
    assert init(tmp_path, "--site-certificate", "--administrator", "/DC=org/CN=Anna Admin") == 0
    assert not (at.grid / "ca").exists()
    assert load_config(at.core).trust.services[0].dn == "/DC=org/CN=localhost"
    assert load_config(at.core).trust.issuers == (), "hosts of other sites may have other CAs"


def test_a_sites_certificate_may_be_written_otherwise_than_the_name_is_typed(tmp_path: Path) -> None:
    at = places(tmp_path)
    ca = CertificateAuthority.create(at.grid, "/DC=org/CN=Site CA", real_now_ms(), kind=KeyKind.P256)
    ca.issue_host("/DC=org/CN=localhost", ["LocalHost"], real_now_ms()).write(at.cert, at.key)
    assert init(tmp_path, "--site-certificate", "--administrator", "/DC=org/CN=Anna Admin") == 0


def test_the_client_is_told_where_the_cas_are(tmp_path: Path) -> None:
    assert init(tmp_path) == 0
    path = tmp_path / "home" / ".config" / "chelonia" / "client.toml"
    said = tomllib.loads(path.read_text())
    assert said["ca_dir"] == str(places(tmp_path).ca_dir)


def test_settings_of_a_client_that_lead_elsewhere_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They may be of another cluster, or of an `init` that was killed and is repeated with another port."""
    path = tmp_path / "home" / ".config" / "chelonia" / "client.toml"
    path.parent.mkdir(parents=True)
    write_file(path, b'bartender = ["https://elsewhere:1/Bartender"]\n', 0o644)
    assert init(tmp_path) == 0
    told, core = capsys.readouterr().out, load_config(places(tmp_path).core)
    assert core.bartender is not None
    assert f"{path} was there, and stays as it is" in told
    assert f'bartender = ["{core.bartender.id}"]' in told
    assert "elsewhere" in path.read_text()


def test_nothing_of_the_ca_ends_before_the_certificates_and_all_is_renewed_as_the_page_says(tmp_path: Path) -> None:
    assert init(tmp_path) == 0
    at = places(tmp_path)
    crl = at.grid / "ca" / "crl.pem"

    def days() -> int:
        due = x509.load_pem_x509_crl(crl.read_bytes()).next_update_utc
        assert due is not None
        return round((due.timestamp() * 1000 - real_now_ms()) / 86_400_000)

    assert days() == 395
    for words in (["revoke", str(at.cert)], ["renew"], ["crl"]):
        assert main(["ca", *words, "--dir", str(at.grid)]) == 0
        assert days() == 395, f"{words[0]}: signed again for as long as before"
    new = (tmp_path / "new-cert.pem", tmp_path / "new-key.pem")
    words = ["--dir", str(at.grid), "localhost", "--cert", str(new[0]), "--key", str(new[1])]
    assert main(["ca", "host", *words]) == 0
    assert dn_of(*new) == dn_of(at.cert, at.key)
    assert main(["ca", "crl", "--dir", str(at.grid), "--days", "400"]) == 0
    assert days() == 400


@pytest.mark.parametrize("name", list(GROUP))
def test_first_configurations_are_read_back_as_they_were_meant(name: str) -> None:
    replicas = tuple(PeerEntry(n, host, 60_011, f"/O=Grid/CN=host/{host}") for host, n in GROUP.items())
    cas = (Dn("/O=Grid/CN=CA"), Dn("/O=Grid/CN=CA 2"))
    cluster = ClusterFacts("8e1f7a52", 60_000, (Dn("/O=Grid/CN=Anna Admin"),), tuple(GROUP), replicas, issuers=cas)
    host = HostFacts(name, Dn(f"/O=Grid/CN=host/{name}"), GROUP[name])
    for make in (core_config, shepherd_config):
        config = make(
            host, cluster, HostPaths(Path("/etc/chelonia"), Path("/etc/grid-security"), Path("/var/lib/chelonia"))
        )
        assert parse_config(tomllib.loads(render_config(config, brief=True))) == config
        assert config.trust.issuers == cas


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["One.example.org", "one_two", "-one", "a" * 64, "https://one", "one:60000", ""])
def test_a_host_has_a_name_that_dns_knows(name: str) -> None:
    with fails(Kind.BAD_REQUEST, match="as DNS knows it"):
        check_host(name)


@pytest.mark.parametrize(
    ("words", "code", "cures"),
    [
        (["--account", "nobody-here"], 2, ["systemd-sysusers", "--account"]),
        (["--account", "root"], 2, ["do not run as root"]),
        (["--port", "65530"], 2, ["--port"]),
        (["--round-trip-ms", "20"], 2, ["--round-trip-ms is from 100 to 1000"]),
        (["--administrator", "/CN"], 2, ["a DN looks like"]),
        (["--organization", "Example"], 2, ["a DN looks like"]),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_cure(
    words: Sequence[str], code: int, cures: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path, *words) == code
    told = capsys.readouterr().err
    assert all(cure in told for cure in cures), told
    assert not places(tmp_path).core.exists()


def test_a_name_without_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path, host="nobody.invalid") == 2
    assert "/etc/hosts" in capsys.readouterr().err


def test_a_name_that_is_too_long_for_a_certificate_is_refused_and_the_cure_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "check_resolves", lambda _name: None)
    name, at = "a-rather-long-name-of-a-host." * 2 + "example.org", places(tmp_path)
    assert init(tmp_path, host=name) == 2
    told = capsys.readouterr().err
    assert "it is too long for a certificate's subject" in told
    assert "cheloniad ca host --subject" in told
    assert main(["ca", "host", "--dir", str(at.grid), "--subject", "/O=Grid/O=Chelonia/CN=one", name]) == 0
    assert init(tmp_path, host=name) == 0


def test_a_taken_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = first_port()
    with socket.create_server(("0.0.0.0", first + 3)):
        assert main(["init", "localhost", *where(tmp_path), "--account", ACCOUNT, "--port", str(first)]) == 1
    assert f"port {first + 3} is taken" in capsys.readouterr().err
    assert tree(tmp_path) == {}


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files.os, "access", lambda path, _mode: Path(path) != tmp_path)
    assert init(tmp_path) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path}: bad-config: cannot be written: run this command as root" in told
    assert "--conf" in told
    (tmp_path / "etc").write_text("a file")
    assert init(tmp_path) == 2
    assert "it is no directory" in capsys.readouterr().err


def test_another_hosts_configuration_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path) == 0
    before = tree(tmp_path)
    assert init(tmp_path, host="two.example.org") == 1
    assert "nothing is overwritten" in capsys.readouterr().err
    assert join(tmp_path, door="localhost:20005", host="two.example.org") == 1
    assert tree(tmp_path) == before


def test_a_host_that_is_a_cluster_of_its_own_has_not_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path) == 0
    assert join(tmp_path, door="localhost:20005") == 1
    assert "a cluster of its own" in capsys.readouterr().err


def test_a_ca_of_another_organization_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = places(tmp_path)
    CertificateAuthority.create(at.grid, "/O=Grid/O=Other/CN=Chelonia CA", real_now_ms(), kind=KeyKind.P256)
    assert init(tmp_path, "--organization", "/DC=org/O=Example") == 1
    assert "/O=Grid/O=Other/CN=Chelonia CA, not one of /DC=org/O=Example" in capsys.readouterr().err
    assert init(tmp_path, "--organization", "/O=Grid/O=Other") == 0


def test_a_certificate_of_another_name_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`init` was killed, and is repeated with the intended name."""
    at = places(tmp_path)
    ca = CertificateAuthority.create(at.grid, "/O=Grid/O=Chelonia/CN=Chelonia CA", real_now_ms(), kind=KeyKind.P256)
    ca.issue_host("/O=Grid/O=Chelonia/CN=host/lokalhost", ["lokalhost"], real_now_ms()).write(at.cert, at.key)
    assert init(tmp_path) == 1
    told = capsys.readouterr().err
    assert "it names lokalhost, not localhost" in told
    assert "move it away" in told
    at.cert.unlink()
    assert init(tmp_path) == 0


def test_a_sites_certificate_of_a_ca_that_is_not_here_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, words = places(tmp_path), ("--site-certificate", "--administrator", "/DC=org/CN=Anna Admin")
    own, other = (
        CertificateAuthority.create(tmp_path / name, f"/DC=org/CN={name}", real_now_ms(), kind=KeyKind.P256)
        for name in ("own", "other")
    )
    own.issue_host("/DC=org/CN=localhost", ["localhost"], real_now_ms()).write(at.cert, at.key)
    publish_to(other, at.ca_dir)
    assert init(tmp_path, *words) == 1
    told = capsys.readouterr().err
    assert "no other host would take it" in told
    assert str(at.ca_dir) in told
    assert not at.ahash.exists()
    publish_to(own, at.ca_dir)
    assert init(tmp_path, *words) == 0


def test_another_persons_certificate_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca = CertificateAuthority.create(tmp_path / "site", "/DC=org/CN=Site CA", real_now_ms(), kind=KeyKind.P256)
    globus = tmp_path / "home" / ".globus"
    ca.issue_user("/DC=org/CN=Jane", real_now_ms()).write(globus / "usercert.pem", globus / "userkey.pem")
    assert init(tmp_path, "--administrator", "Anna") == 1
    assert "/DC=org/CN=Jane" in capsys.readouterr().err
    assert init(tmp_path) == 0
    assert "it is not accepted yet" in capsys.readouterr().out
    assert load_config(places(tmp_path).core).trust.administrators == ("/DC=org/CN=Jane",)


@pytest.mark.parametrize(
    ("door", "words", "cure"),
    [
        ("one.example.org", ["--token", "x"], "HOST:PORT"),
        ("one.example.org:3", ["--token", "x"], "HOST:PORT"),
        ("localhost:20005", ["--token", "chelonia1-short"], "all of them"),
        ("localhost:20005", ["--site-certificate", "--token", "chelonia1-" + "a" * 52], "hostkey.pem"),
    ],
)
def test_a_join_that_cannot_go_well_writes_nothing(
    door: str, words: Sequence[str], cure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert join(tmp_path, *words, door=door) != 0
    assert cure in capsys.readouterr().err
    assert tree(tmp_path) == {}


def test_admit_needs_a_host_that_was_set_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admit", "two.example.org", *where(tmp_path)]) == 2
    assert "`init` or `join` has set up" in capsys.readouterr().err


def test_admit_needs_an_administrator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init(tmp_path) == 0
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    assert main(["admit", "two.example.org", *where(tmp_path)]) == 2
    assert "no usable credential" in capsys.readouterr().err
    at = places(tmp_path)
    ca = CertificateAuthority.load(at.grid)
    jane = ca.issue_user("/O=Grid/O=Chelonia/CN=Jane", real_now_ms())
    globus = tmp_path / "other" / ".globus"
    jane.write(globus / "usercert.pem", globus / "userkey.pem")
    assert main(["admit", "two.example.org", *where(tmp_path)]) == 1
    assert "administrators here are: /O=Grid/O=Chelonia/CN=Administrator" in capsys.readouterr().err


def test_addresses_follow_from_names() -> None:
    assert url("one", 60_000, "Bartender") == "https://one:60000/Bartender"
    assert url("one", 60_000, "AHash") == "https://one:60001/AHash"
    assert hosts_of(["https://one:60001/AHash", "two:60011", "one:60011"]) == ("one", "two")
