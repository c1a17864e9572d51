"""The command line: exit codes, output, test certificates, and the files that `dev` prepares."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ServiceId
from chelonia.core.rights.policy import Action, decide
from chelonia.core.values import replace
from chelonia.hosting.cheloniad import _allow_many_files, main, note_trouble, settle
from chelonia.hosting.config import load_config, trusted
from chelonia.hosting.doors.listening import ListeningSockets
from chelonia.hosting.net.certificates import CertificateAuthority
from chelonia.hosting.net.identity import identity_of_chain
from chelonia.hosting.net.tls import ClientCertificate, TlsSettings, TlsStore, load_own_chain
from chelonia.hosting.setup.dev import DevCluster, DevOptions, dn_of, load_issued
from chelonia.hosting.setup.host_files import give_back
from chelonia.shepherd.store.store_state import locked, read_identity, write_identity
from tests.support.failing import fails
from tests.unit.hosting.grid import OTHER_CA, handshake, publish_unlimited, real_now_ms

CONF = Path(__file__).parents[3] / "conf"


# --- configurations ------------------------------------------------------------------------------------------------


def with_files(root: Path) -> str:
    """The manual's Shepherd with certificates that are there."""
    assert main(["ca", "init", "--dir", str(root), "--key", "p-256"]) == 0
    assert main(["ca", "host", "--dir", str(root), "localhost"]) == 0
    text = (CONF / "shepherd.toml").read_text().replace("/etc/grid-security", str(root))
    text = text.replace("/var/lib/chelonia", str(root))
    text = text.replace("/DC=org/O=Example/CN=Example Test CA", str(CertificateAuthority.load(root).issued.dn))
    return re.sub(r"[a-z0-9]+\.example\.org", "localhost", text)


def test_a_good_configuration_is_fine_and_printed_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text(with_files(tmp_path / "grid-security"))
    assert main(["check-config", "--config", str(good)]) == 0
    capsys.readouterr()
    assert main(["print-config", "--config", str(good)]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert main(["check-config", "--config", str(printed)]) == 0


@pytest.mark.parametrize("verb", ["check-config", "print-config", "run"])
def test_a_bad_configuration_is_exit_code_2_with_the_reason(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[nod]\n")
    assert main([verb, "--config", str(bad)]) == 2
    said = capsys.readouterr().err
    assert "nod" in said
    assert "did you mean 'node'?" in said
    assert "Traceback" not in said
    assert main([verb, "--config", str(tmp_path / "missing.toml")]) == 2
    assert "missing.toml: bad-config: No such file or directory\n" in capsys.readouterr().err


def test_all_that_is_wrong_is_said_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[node]\nnam = "a"\n[[listen]]\nport = "x"\nserves = ["ahash"]\n[tls]\ncertt = "c"\n')
    assert main(["check-config", "--config", str(bad)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    for line, key in zip(said, ("node.nam:", "node.name:", "listen[0].port:", "tls.certt:"), strict=True):
        assert key in line
    bad.write_text(
        'listen = [{port = 70000, serves = ["fly"]}]\n[node]\nname = "a"\n[bartender]\nid = "b"\ntoken_key_file = "t"\n'
    )
    assert main(["check-config", "--config", str(bad)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [key in line for line, key in zip(said, ("port", "fly", "bartender.librarians"), strict=True)] == [True] * 3


def test_files_that_a_configuration_names_are_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root, conf = tmp_path / "grid-security", tmp_path / "node.toml"
    conf.write_text(with_files(root))
    (root / "hostcert.pem").unlink()
    (root / "hostkey.pem").chmod(0o644)
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 2
    cert, key = capsys.readouterr().err.splitlines()
    assert f"tls.cert: bad-config: {root}/hostcert.pem: No such file" in cert
    assert "chmod" in key
    assert "tls.key" in key


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("port = 60003", "port = 60004"), "listen[1].port: bad-config: listen[0] and listen[1] have the same port"),
        (("https://localhost:60002/Librarian", "http://localhost:60002/Librarian"), "is no https:// URL"),
        (("https://localhost:60002/Librarian", "https://fd00::4:60002/Librarian"), "is no https:// URL"),
        (("administrators = [", 'administrators = ["CN=Dev Admin", '), "'CN=Dev Admin' is no DN"),
        (("/CN=Chelonia Test CA", "/CN=Other CA"), "hostcert.pem is of /O=Grid/O=Chelonia Test/CN=Chelonia Test CA"),
        (
            ('data_url = "https', 'data_url = "http'),
            "shepherd.data_url: bad-config: 'http://localhost:60004' is no https",
        ),
    ],
)
def test_what_cannot_work_is_found_before_it_runs(
    line: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    conf, text = tmp_path / "node.toml", with_files(tmp_path / "grid-security")
    assert line[0] in text
    conf.write_text(text.replace(*line, 1))
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 2
    assert said in capsys.readouterr().err


def test_a_data_directory_that_cannot_be_written_is_found_before_it_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conf, root = tmp_path / "node.toml", tmp_path / "grid-security"
    conf.write_text(with_files(root))
    monkeypatch.setattr("chelonia.hosting.config_looks.os.access", lambda path, _: path != root)
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 2
    assert f"shepherd.data_dir: bad-config: {root} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["audit_file", "access_file"])
def test_a_log_that_cannot_be_written_is_found_before_it_runs(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conf, text = tmp_path / "node.toml", with_files(tmp_path / "grid-security")
    conf.write_text(text.replace(f'{key} = ""', f'{key} = "{tmp_path}/logs/chelonia.log"'))
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 2
    assert f"log.{key}: bad-config: {tmp_path}/logs: No such file or directory" in capsys.readouterr().err
    (tmp_path / "logs").mkdir()
    assert main(["check-config", "--config", str(conf)]) == 0
    capsys.readouterr()
    monkeypatch.setattr("chelonia.hosting.config_looks.os.access", lambda path, _: path != tmp_path / "logs")
    assert main(["check-config", "--config", str(conf)]) == 2
    assert f"log.{key}: bad-config: {tmp_path}/logs cannot be written" in capsys.readouterr().err


@pytest.mark.capability("root")
def test_root_runs_no_node_of_another_account(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    conf, root = tmp_path / "node.toml", tmp_path / "grid-security"
    conf.write_text(with_files(root))
    section = load_config(conf).shepherd
    assert section is not None
    store = Path(section.data_dir)
    store.mkdir(parents=True)
    (store / "lock").touch()
    os.chown(store / "lock", 12_345, 12_346)
    capsys.readouterr()
    assert main(["run", "--config", str(conf)]) == 2
    assert "setpriv --reuid 12345 --regid 12346" in capsys.readouterr().err


def test_a_certificate_of_another_subject_than_the_replicas_is_found_before_it_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    conf, root = tmp_path / "core.toml", tmp_path / "grid-security"
    with_files(root)
    cluster = "8e1f7a52-0b7c-4a6e-9b0e-5d5d0c9a2a11"
    conf.write_text(
        f'[node]\nname = "core"\n[[listen]]\nport = 60001\nserves = ["ahash"]\n'
        f'[tls]\ncert = "{root}/hostcert.pem"\nkey = "{root}/hostkey.pem"\nca_dir = "{root}/certificates"\n'
        f'[ahash]\nid = "https://localhost:60001/AHash"\ndata_dir = "{tmp_path}/ahash"\nreplica_id = 1\n'
        'replicas = [{id = 1, host = "localhost", port = 60011, dn = "/O=X/CN=host/localhost"}]\n'
        f'[ahash.tuning]\ncluster = "{cluster}"\n'
    )
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "replica 1 is to be /O=X/CN=host/localhost" in said
    assert "the same subject" in said


def test_what_may_pass_is_said_and_is_no_reason_not_to_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The unit checks before each start: a name server that is away, or a retired host, must not stop others."""
    conf, root = tmp_path / "node.toml", tmp_path / "grid-security"
    text = with_files(root).replace("https://localhost:60002/", "https://localhst.invalid:60002/", 1)
    conf.write_text(text.replace('data_url = "https://localhost', 'data_url = "https://127.0.0.1'))
    ca = CertificateAuthority.load(root)
    ca.write_crl(Ms(real_now_ms() - 2 * 86_400_000), lifetime_s=86_400)
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 0
    said = capsys.readouterr()
    crl, other, name = said.err.splitlines()
    assert "hostcert.pem names localhost, not 127.0.0.1: nobody connects there" in other
    assert "warning: " in crl
    assert "has expired" in crl
    assert "cheloniad ca crl" in crl
    assert "localhst.invalid has no address" in name
    assert said.out == f"{conf}: a node can start with it; see the warnings\n"


def test_a_second_ca_that_may_issue_every_name_is_warned_of_before_it_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    conf, root = tmp_path / "node.toml", tmp_path / "grid-security"
    conf.write_text(with_files(root))
    publish_unlimited(tmp_path / "other", root / "certificates")
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 0
    said = capsys.readouterr()
    (warning,) = said.err.splitlines()
    assert "warning: " in warning
    assert f"{OTHER_CA}: it has no signing policy" in warning
    assert "see the warnings" in said.out


def test_a_dn_that_no_certificate_can_have_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As some programs show one, or a person types it: its owner would be a stranger."""
    conf, root = tmp_path / "node.toml", tmp_path / "grid-security"
    more = '"/DC=org/CN=Bo Müller/Email=bo@example.org", "/DC=org/nick=bo"'
    conf.write_text(with_files(root).replace("administrators = [", f"administrators = [{more}, "))
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 0
    other, unknown = capsys.readouterr().err.splitlines()
    assert r"is compared as /DC=org/CN=Bo M\xC3\xBCller/emailAddress=bo@example.org" in other
    assert "unknown attribute type nick" in unknown


def test_what_root_has_left_in_a_data_directory_is_said_with_its_cure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(options: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/var/lib/chelonia/core/ahash/lock")

    monkeypatch.setattr("chelonia.hosting.cheloniad._run", run)
    assert main(["run", "--config", "core.toml"]) == 1
    said = capsys.readouterr().err
    assert "/var/lib/chelonia/core/ahash/lock: Permission denied" in said
    assert "chown" in said


@pytest.mark.expect_log("may open 256 files at once")
def test_a_node_that_may_open_few_files_says_so_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.hosting.cheloniad.resource.getrlimit", lambda _: (256, 256))
    _allow_many_files()


def test_a_port_that_is_roots_is_said_with_its_cure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    async def listen(config: object) -> int:
        await ListeningSockets(asyncio.Protocol, None, 1000).start("127.0.0.1", 443)
        raise AssertionError("it listens")

    monkeypatch.setattr("chelonia.hosting.cheloniad._run", lambda options: asyncio.run(listen(options)))
    monkeypatch.setattr("chelonia.hosting.doors.listening.socket.socket.bind", refuse)
    assert main(["run", "--config", "core.toml"]) == 1
    said = capsys.readouterr().err
    assert "('127.0.0.1', 443): permission denied" in said
    assert "ip_unprivileged_port_start" in said
    assert "chown" not in said


def test_a_key_of_another_certificate_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root, conf = tmp_path / "grid-security", tmp_path / "node.toml"
    conf.write_text(with_files(root))
    before = (root / "hostcert.pem").read_bytes()
    assert main(["ca", "host", "--dir", str(tmp_path / "other"), "localhost"]) == 2  # no CA there: nothing is made
    assert main(["ca", "init", "--dir", str(tmp_path / "other"), "--key", "p-256"]) == 0
    assert main(["ca", "host", "--dir", str(tmp_path / "other"), "localhost"]) == 0
    (root / "hostcert.pem").write_bytes((tmp_path / "other" / "hostcert.pem").read_bytes())
    assert before != (root / "hostcert.pem").read_bytes()
    capsys.readouterr()
    assert main(["check-config", "--config", str(conf)]) == 2
    assert "the key does not belong to" in capsys.readouterr().err


@pytest.mark.parametrize("hidden", ["berkeleydb", "asn1crypto berkeleydb jwt prometheus_client"])
def test_without_the_servers_libraries_there_is_a_sentence(hidden: str) -> None:
    """Only the client may be installed, or a library of the server's programs may be gone."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({hidden!r}.split()));"
    hide += "from chelonia.hosting.command import main; sys.exit(main())"
    ended = subprocess.run([sys.executable, "-c", hide, "--help"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pip install '.[server]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("hours", ["0", "-1", "many"])
def test_a_proxy_that_was_never_valid_is_wrong_usage(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["ca", "proxy", "--cert", "c", "--key", "k", "--out", "o", "--hours", hours])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"argument --hours: {hours} is not a whole number from 1" in said
    assert "usage: cheloniad ca proxy" in said


@pytest.mark.parametrize("words", [["crl"], ["user", "Jane Doe"], ["host", "localhost"]])
def test_a_certificate_ends_within_the_calendar(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["ca", *words, "--dir", "d", "--days", "9999999"])
    assert caught.value.code == 2
    assert "9999999 is not a whole number from 1 to 36500" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["fly"], ["run"], ["dev", "--dir", "x", "--shepherds", "many"], ["ca"]])
def test_wrong_usage_is_exit_code_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["dev", "--help"], ["ca", "--help"], ["ca", "host", "--help"]]
)
def test_help_is_exit_code_0(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 0
    assert "cheloniad" in capsys.readouterr().out


# --- certificates --------------------------------------------------------------------------------------------------


def test_the_certificates_of_a_test_ca_work_together_until_they_are_revoked(tmp_path: Path) -> None:
    ca, proxy = tmp_path / "grid-security", tmp_path / "proxy.pem"
    cert, key = tmp_path / "user.pem", tmp_path / "user.key"
    assert main(["ca", "init", "--dir", str(ca), "--key", "p-256"]) == 0
    assert main(["ca", "host", "--dir", str(ca), "localhost", "127.0.0.1"]) == 0
    assert main(["ca", "user", "--dir", str(ca), "Jane Doe", "--cert", str(cert), "--key", str(key)]) == 0
    assert main(["ca", "proxy", "--cert", str(cert), "--key", str(key), "--out", str(proxy)]) == 0
    host = TlsSettings(ca / "hostcert.pem", ca / "hostkey.pem", ca_dir=ca / "certificates")
    server, client = (
        TlsStore(host, real_now_ms),
        TlsStore(TlsSettings(proxy=proxy, ca_dir=ca / "certificates"), real_now_ms),
    )
    listener = server.server_context(ClientCertificate.REQUIRED)
    _, met = handshake(listener, client.client_context())
    assert server.identify(met).dn.endswith("/CN=Jane Doe")
    assert main(["ca", "revoke", "--dir", str(ca), str(cert)]) == 0
    server.reload()
    with fails(Kind.UNTRUSTED):
        server.identify(met)
    assert main(["ca", "crl", "--dir", str(ca)]) == 0


def test_a_subject_that_the_signing_policy_forbids_is_not_certified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No host would accept it, and its owner would find out host by host."""
    ca, cert = tmp_path / "grid", tmp_path / "cert.pem"
    at = ("--dir", str(ca), "--cert", str(cert), "--key", str(tmp_path / "key.pem"))
    assert main(["ca", "crl", "--dir", str(ca)]) == 2
    assert "there is no CA" in capsys.readouterr().err
    assert main(["ca", "init", "--dir", str(ca), "--key", "p-256", "--subject", "/DC=org/O=Example/CN=CA"]) == 0
    assert main(["ca", "user", *at, "/DC=org/O=Other/CN=Jane Doe"]) == 2
    assert main(["ca", "host", *at, "localhost", "--subject", "/CN=host/localhost"]) == 2
    assert 'allows only "/DC=org/O=Example/*"' in capsys.readouterr().err
    assert not cert.exists()
    assert main(["ca", "user", *at, "/DC=org/O=Example/CN=Jane Doe"]) == 0
    assert main(["ca", "revoke", "--dir", str(ca), str(cert)]) == 0
    assert "revoked /DC=org/O=Example/CN=Jane Doe;" in capsys.readouterr().out
    assert main(["ca", "init", "--dir", str(tmp_path / "other"), "--key", "p-256"]) == 0
    assert main(["ca", "revoke", "--dir", str(tmp_path / "other"), str(cert)]) == 2
    assert "another CA, /DC=org/O=Example/CN=CA:" in capsys.readouterr().err


def test_a_certificate_takes_the_place_of_its_own_subject_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca, cert, key = tmp_path / "grid", tmp_path / "grid" / "hostcert.pem", tmp_path / "grid" / "hostkey.pem"
    assert main(["ca", "init", "--dir", str(ca), "--key", "p-256"]) == 0
    assert main(["ca", "host", "--dir", str(ca), "one.example.org"]) == 0
    first = cert.read_bytes(), key.read_bytes()
    assert main(["ca", "host", "--dir", str(ca), "two.example.org"]) != 0
    assert "CN=host/one.example.org already" in capsys.readouterr().err
    assert (cert.read_bytes(), key.read_bytes()) == first
    assert main(["ca", "host", "--dir", str(ca), "one.example.org"]) == 0
    assert cert.read_bytes() != first[0]
    other = tmp_path / "node.toml"
    other.write_text("[node]\n")
    assert main(["ca", "host", "--dir", str(ca), "one.example.org", "--cert", str(other)]) != 0
    assert other.read_text() == "[node]\n"


@pytest.mark.parametrize("name", ["https://one.example.org", "one.example.org:60000", "one.example.org/", "", "a b"])
def test_a_certificate_is_for_a_host_and_no_url(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ca", "init", "--dir", str(tmp_path), "--key", "p-256"]) == 0
    assert main(["ca", "host", "--dir", str(tmp_path), "localhost", "::1", name]) == 2
    assert "name the host alone" in capsys.readouterr().err


def test_a_key_is_replaced_only_with_its_own_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca, cert, key = tmp_path / "grid", tmp_path / "grid" / "hostcert.pem", tmp_path / "grid" / "hostkey.pem"
    assert main(["ca", "init", "--dir", str(ca), "--key", "p-256"]) == 0
    assert main(["ca", "host", "--dir", str(ca), "one.example.org"]) == 0
    two = ["ca", "host", "--dir", str(ca), "two.example.org", "--cert", str(tmp_path / "two.pem")]
    first = cert.read_bytes(), key.read_bytes()
    assert main(two) != 0, "the key's default place is one's"
    assert main([*two, "--key", str(tmp_path / "two.key")]) == 0
    assert main([*two, "--key", str(key)]) != 0, "renewed, with one's key"
    assert "there is a key already" in capsys.readouterr().err
    assert (cert.read_bytes(), key.read_bytes()) == first
    os.mkfifo(tmp_path / "pipe")
    assert main(["ca", "host", "--dir", str(ca), "one.example.org", "--cert", str(tmp_path / "pipe")]) != 0
    assert (cert.read_bytes(), key.read_bytes()) == first


def test_what_cannot_be_certified_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ca", "host", "--dir", str(tmp_path / "none"), "localhost"]) == 2
    assert main(["ca", "init", "--dir", str(tmp_path), "--key", "p-256"]) == 0
    assert main(["ca", "init", "--dir", str(tmp_path), "--key", "p-256"]) == 2
    assert "there is a CA in this directory already" in capsys.readouterr().err


# --- dev -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dev")
    DevCluster(DevOptions(root, 2)).prepare()
    return root


def test_every_configuration_of_a_dev_cluster_is_good(prepared: Path) -> None:
    names = sorted(path.stem for path in (prepared / "conf").glob("*.toml"))
    assert names == ["core", "shepherd1", "shepherd2"]
    core = load_config(prepared / "conf" / "core.toml")
    assert core.ahash
    assert core.librarian
    assert core.bartender
    assert core.bartender.tuning["durable_copies"] == 2
    assert load_config(prepared / "conf" / "shepherd1.toml").shepherd


def test_everyone_may_read_and_add_under_the_root_of_a_dev_cluster(prepared: Path) -> None:
    core = load_config(prepared / "conf" / "core.toml")
    assert core.librarian
    tuning = core.librarian.tuning
    assert tuning["root_policy"] == tuning["root_default_policy"]
    for action, allowed in ((Action.READ, True), (Action.ADD_ENTRY, True), (Action.DELETE, False)):
        decision = decide(action, "/CN=anybody", (), owner=tuning["root_owner"], policy=tuning["root_policy"])
        assert decision.allowed is allowed


def test_each_service_of_a_dev_cluster_has_an_identity_of_its_own(prepared: Path) -> None:
    certs = prepared / "certs"
    named = ("core", "shepherd1", "shepherd2", "service", "user", "user2", "admin")
    dns = [dn_of(certs / f"{name}-cert.pem", certs / f"{name}-key.pem") for name in named]
    assert len(set(dns)) == len(named)
    roles = {record.dn: record.role.value for record in trusted(load_config(prepared / "conf" / "shepherd1.toml"))}
    assert [roles.get(dn) for dn in dns[1:]] == ["shepherd", "shepherd", "librarian", None, None, "administrator"]
    proxy = identity_of_chain(load_own_chain(TlsSettings(proxy=certs / "user-proxy.pem"), Ms(real_now_ms())))
    assert proxy.dn == dns[4]


def test_a_second_start_keeps_certificates_ports_and_secrets(prepared: Path) -> None:
    kept = [path for pattern in ("certs/*-cert.pem", "conf/*", "data/*.key") for path in sorted(prepared.glob(pattern))]
    before = [path.read_bytes() for path in kept]
    DevCluster(DevOptions(prepared, 2)).prepare()
    assert [path.read_bytes() for path in kept] == before
    with pytest.raises(CheloniaError, match="ports"):
        DevCluster(DevOptions(prepared, 2, port_base=1)).prepare()


@pytest.mark.parametrize("base", [-1, 65_530, 70_000])
def test_ports_that_there_are_not_are_refused_and_not_kept(base: int, tmp_path: Path) -> None:
    with fails(Kind.BAD_REQUEST, match="--port-base is from 1 to"):
        DevCluster(DevOptions(tmp_path, 2, port_base=base)).prepare()
    assert not (tmp_path / "conf" / "ports.json").exists()


async def test_a_port_that_another_process_has_is_named(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.hosting.setup.dev.PORT_RETRY_S", 0)
    cluster = DevCluster(DevOptions(prepared, 2))
    port = cluster.prepare()[1].port
    with socket.create_server(("127.0.0.1", port)), fails(Kind.UNAVAILABLE) as caught:
        await cluster.run(lambda config: 0)
    assert f"port {port} is taken" in caught.value.cause


def test_cluster_json_says_where_everything_is(prepared: Path) -> None:
    cluster = DevCluster(DevOptions(prepared, 2))
    for place in cluster.prepare():
        cluster._child(place, lambda config: 0)
    cluster._write_cluster()
    assert not (prepared / "cluster.json").exists(), "before all serve there is nothing to be used"
    cluster._serves = True
    cluster._write_cluster()
    told = json.loads((prepared / "cluster.json").read_text())
    assert [len(told[name]) for name in ("ahash", "librarian", "bartender", "shepherds")] == [1, 1, 1, 2]
    for name in ("ahash", "librarian", "bartender", "shepherds"):
        assert all(set(entry) == {"id", "url", "pid", "data_dir"} for entry in told[name])
    for name in ("user", "user2", "admin", "service"):
        load_issued(Path(told[f"{name}_cert"]), Path(told[f"{name}_key"]))
    assert list(Path(told["ca_dir"]).glob("*.0"))
    assert x509.load_pem_x509_certificates(Path(told["user_proxy"]).read_bytes())
    assert not (prepared / "cluster.tmp").exists()


@pytest.mark.expect_log("ERROR asyncio Fatal error on SSL protocol")
async def test_a_connection_broken_by_its_peer_is_not_an_error_of_the_node(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    loop = asyncio.get_running_loop()
    note_trouble(loop, {"message": "Fatal error on SSL protocol", "exception": ConnectionResetError()})
    closed = RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
    note_trouble(loop, {"message": "Fatal error on SSL protocol", "exception": closed})
    unsent = aiohttp.ClientConnectionResetError("Cannot write to closing transport")
    note_trouble(loop, {"message": "Task exception was never retrieved", "exception": unsent})
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "INFO"]
    note_trouble(loop, {"message": "Fatal error on SSL protocol", "exception": ValueError()})
    assert caplog.records[-1].levelname == "ERROR"


# --- stores ----------------------------------------------------------------------------------------------------------


def test_an_accepted_store_is_new_when_empty_and_keeps_its_id_when_it_holds_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "s.toml"
    config.write_text((CONF / "shepherd.toml").read_text())
    section = load_config(config).shepherd
    assert section is not None
    root = tmp_path / "data"
    config.write_text((CONF / "shepherd.toml").read_text().replace(section.data_dir, str(root)))
    assert main(["accept-store", "--config", str(config)]) == 0
    assert "0 committed replicas" in capsys.readouterr().out
    first = read_identity(root)
    assert first is not None
    assert (first.service, first.cluster, first.replaces) == (section.id, "", True)
    assert main(["accept-store", "--config", str(config)]) == 0
    second = read_identity(root)
    assert second is not None
    assert second.store != first.store
    write_identity(root, replace(second, service=ServiceId("https://old/Shepherd"), cluster="c", replaces=False))
    (root / "replicas" / "aa").mkdir(exist_ok=True)
    (root / "replicas" / "aa" / "x.record").touch()
    (root / "notes").touch()
    assert main(["accept-store", "--config", str(config)]) == 0
    assert read_identity(root) == second
    assert not (root / "notes").exists(), "they are of what was there before"
    with locked(root):
        assert main(["accept-store", "--config", str(config)]) == 2
    assert "another process uses this directory" in capsys.readouterr().err


# --- dev with replicas -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("replicated")
    DevCluster(DevOptions(root, 1, replicas=3)).prepare()
    return root


def test_a_replicated_core_is_a_node_for_each_replica_and_two_fronts(replicated: Path) -> None:
    configs = {path.stem: load_config(path) for path in sorted((replicated / "conf").glob("*.toml"))}
    assert list(configs) == ["core1", "core2", "core3", "shepherd1"]
    cores = [configs[f"core{n}"] for n in (1, 2, 3)]
    assert [core.ahash.replica_id for core in cores if core.ahash] == [1, 2, 3]
    assert len({core.ahash.replicas for core in cores if core.ahash}) == 1
    assert [core.librarian is not None for core in cores] == [True, True, False]
    assert [core.bartender is not None for core in cores] == [True, True, False]
    shepherd = configs["shepherd1"].shepherd
    assert shepherd is not None
    assert shepherd.librarians == tuple(core.librarian.id for core in cores if core.librarian)


def test_a_group_is_founded_once_and_a_lost_disk_founds_no_other(replicated: Path) -> None:
    first = replicated / "data" / "ahash1"
    assert (first / "db").is_dir()
    assert not (replicated / "data" / "ahash2").exists()
    shutil.rmtree(first)
    DevCluster(DevOptions(replicated, 1, replicas=3)).prepare()
    assert not first.exists()


def test_a_cluster_keeps_its_number_of_replicas(replicated: Path) -> None:
    with pytest.raises(CheloniaError, match="--replicas 3"):
        DevCluster(DevOptions(replicated, 1)).prepare()


def test_a_backup_is_put_in_the_place_of_a_store_and_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    DevCluster(DevOptions(tmp_path, 0, replicas=3)).prepare()
    conf, data, backup = tmp_path / "conf", tmp_path / "data" / "ahash1", tmp_path / "backup"
    command = ["restore-ahash", "--config", str(conf / "core1.toml"), "--from", str(backup)]
    assert main(command) == 2
    assert "it is on the host of the A-Hash that made it" in capsys.readouterr().err
    shutil.copytree(data, backup)
    assert main(command) == 2
    assert "it is no backup" in capsys.readouterr().err
    (backup / "restored").touch()
    os.utime(backup / "restored", (1, 1))
    assert main(command) == 1
    assert "it is not empty" in capsys.readouterr().err
    data.rename(tmp_path / "away")
    assert main([word.replace("core1", "core2") for word in command]) == 2
    assert "replica 1 begins the group" in capsys.readouterr().err
    given: list[tuple[Path, ...]] = []
    monkeypatch.setattr("chelonia.hosting.setup.host_files.give_back", lambda *paths: given.append(paths))
    synced: list[bool] = []
    monkeypatch.setattr(os, "sync", lambda: synced.append((data.with_name("ahash1.partial") / "db").is_dir()))
    assert main(command) == 0
    assert synced == [True], "after a power cut the name leads to the whole of it"
    assert "a new generation of a group of 127.0.0.1, 127.0.0.1, 127.0.0.1" in capsys.readouterr().out
    assert given == [(data.with_name("ahash1.partial"), data)]
    assert (data / "restored").stat().st_mtime > 1, "it was marked now: the time is its generation"
    assert (data / "db").is_dir()


@pytest.mark.capability("root")
def test_what_root_makes_in_a_daemons_directory_is_the_daemons(tmp_path: Path) -> None:
    above, store, of_root = tmp_path / "daemon", tmp_path / "daemon" / "store", tmp_path / "root's"
    (store / "db").mkdir(parents=True)
    (store / "db" / "file").touch()
    of_root.mkdir()
    (of_root / "file").touch()
    (store / "link").symlink_to(of_root)
    os.chown(above, 4711, 4712)
    give_back(store, store)  # root has made it, too
    made = (store, store / "db", store / "db" / "file")
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(4711, 4712)}
    os.chown(above, 0, 0)
    (partial := above / "store.partial").mkdir()
    give_back(partial, store)
    assert partial.stat().st_uid == 4711, "what is above a disk is root's"
    os.chown(above, 4711, 4712)
    (above / "linked").symlink_to(of_root)
    give_back(above / "linked", above / "linked")
    assert {path.stat().st_uid for path in (of_root, of_root / "file")} == {0}, "the daemon may have linked anything"


def test_only_the_first_replica_founds_and_only_in_an_empty_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DevCluster(DevOptions(tmp_path, 0, replicas=3)).prepare()
    conf = tmp_path / "conf"
    assert main(["found-ahash", "--config", str(conf / "core2.toml")]) == 2
    assert "replica 1 begins the group" in capsys.readouterr().err
    assert main(["found-ahash", "--config", str(conf / "core1.toml")]) == 1
    assert "it is not empty" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "data" / "ahash1")
    assert main(["found-ahash", "--config", str(conf / "core1.toml")]) == 0
    assert (tmp_path / "data" / "ahash1" / "db").is_dir()


def test_what_a_start_has_made_is_not_looked_at_again() -> None:
    gc.disable()
    try:
        settle()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
        gc.enable()


def test_a_node_that_runs_carries_nothing_of_what_sets_hosts_up() -> None:
    """It would hold that code all its life, and never use it."""
    run = "import sys; from chelonia.hosting.cheloniad import main; main(['run', '--config', '/none'])"
    told = f"{run}; print(*(name for name in sys.modules if name.startswith('chelonia.hosting.setup')))"
    ended = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert (ended.stdout, "/none" in ended.stderr) == ("\n", True)


@pytest.mark.capability("root")
def test_a_renewed_key_is_still_that_of_the_account_that_reads_it(tmp_path: Path) -> None:
    """The first host renews its certificate in place, and its daemons are not root."""
    grid = str(tmp_path / "grid")
    assert main(["ca", "init", "--dir", grid, "--key", "p-256"]) == 0
    renew = ["ca", "host", "--dir", grid, "one.example.org"]
    assert main(renew) == 0
    cert, key = tmp_path / "grid" / "hostcert.pem", tmp_path / "grid" / "hostkey.pem"
    os.chown(key, 12345, 12346)
    before = key.read_bytes()
    assert main(renew) == 0
    assert key.read_bytes() != before
    assert (key.stat().st_uid, key.stat().st_gid, stat.S_IMODE(key.stat().st_mode)) == (12345, 12346, 0o400)
    assert cert.stat().st_uid == 0
