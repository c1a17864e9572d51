"""The cluster's address and the user's identity: precedence of the sources, and refusals."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net.credential_files import CredentialFiles
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.net.rpc_client import Link
from chelonia.hosting.net.tls import TlsSettings
from chelonia_clients import connect
from chelonia_clients.client import Client
from chelonia_clients.settings import Settings, Wish, settle
from tests.support.failing import fails
from tests.unit.clients.faking import Command

CONF = (
    'bartender="https://conf:1/B https://conf:2/B"\nproxypath=/conf/proxy\n[common]\ncacertificatesdirectory=/conf/ca\n'
)
TOML = 'bartender = ["https://toml:1/B"]\nreplicas = 5\nca_dir = "/toml/ca"\nproxy = "/toml/proxy"\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".arc").mkdir()
    (tmp_path / ".arc" / "client.conf").write_text(CONF)
    (tmp_path / ".config" / "chelonia").mkdir(parents=True)
    (tmp_path / ".config" / "chelonia" / "client.toml").write_text(TOML)
    said = {
        "bartender": [{"url": "https://dev:1/B"}],
        "librarian": [{"url": "https://dev:2/L"}],
        "ca_dir": "/dev/ca",
        "user_proxy": "/dev/proxy",
        "admin_cert": "/dev/admin-cert",
        "admin_key": "/dev/admin-key",
    }
    (tmp_path / "cluster.json").write_text(json.dumps(said))
    return tmp_path


def test_bartenders_by_precedence(home: Path) -> None:
    env = {"ARC_BARTENDER_URL": "https://arc/B", "CHELONIA_BARTENDER_URL": "https://own/B"}
    assert settle(Wish(("https://b/B",)), env, home).bartenders == ("https://b/B",)
    assert settle(Wish(), {**env, "CHELONIA_CLUSTER": str(home)}, home).bartenders == ("https://dev:1/B",)
    assert settle(Wish(), env, home).bartenders == ("https://arc/B",)
    assert settle(Wish(), {"CHELONIA_BARTENDER_URL": "https://own/B"}, home).bartenders == ("https://own/B",)
    conf = settle(Wish(), {}, home)
    assert conf.bartenders == ("https://conf:1/B", "https://conf:2/B")
    assert conf.origins["bartender"].endswith("client.conf")
    (home / ".arc" / "client.conf").unlink()
    assert settle(Wish(), {}, home).bartenders == ("https://toml:1/B",)
    assert settle(Wish(), {}, None).bartenders == ()


def test_replicas_by_precedence(home: Path) -> None:
    assert settle(Wish(), {"ARC_NEEDED_REPLICAS": "2"}, home).replicas == 2
    assert settle(Wish(), {}, home).replicas == 5
    assert settle(Wish(), {}, None).replicas == 3
    with fails(Kind.BAD_CONFIG, match="the environment"):
        settle(Wish(), {"ARC_NEEDED_REPLICAS": "many"}, home)


def test_credentials_of_files_are_used_only_when_the_environment_names_none(home: Path) -> None:
    assert settle(Wish(), {}, home).files == CredentialFiles(proxy=Path("/conf/proxy"), ca_dir=Path("/conf/ca"))
    named = settle(Wish(), {"X509_USER_PROXY": "/mine"}, home)
    assert named.files == CredentialFiles(
        ca_dir=Path("/conf/ca")
    )  # found, and explained, by the search in the environment
    assert settle(Wish(), {"X509_CERT_DIR": "/env/ca"}, home).files.ca_dir == Path("/env/ca")
    own = CredentialFiles(cert=Path("/c"), key=Path("/k"))
    assert settle(Wish(files=own), {"X509_USER_PROXY": "/mine"}, home).files.cert == Path("/c")


def test_a_cluster_file_settles_url_cas_and_credential_together(home: Path) -> None:
    env = {"X509_USER_PROXY": "/grid", "X509_CERT_DIR": "/grid/ca", "CHELONIA_CLUSTER": str(home / "cluster.json")}
    user = settle(Wish(), env, home)
    assert user.files == CredentialFiles(proxy=Path("/dev/proxy"), ca_dir=Path("/dev/ca"))
    assert user.librarians == ("https://dev:2/L",)
    admin = settle(Wish(cluster_user="admin"), env, home)
    assert (admin.files.cert, admin.files.key) == (Path("/dev/admin-cert"), Path("/dev/admin-key"))
    assert settle(Wish(cluster_user="anonymous"), env, home).anonymous
    assert settle(Wish(anonymous=True), env, home).files == CredentialFiles(ca_dir=Path("/dev/ca"))


@pytest.mark.parametrize(
    ("wish", "env"),
    [
        (Wish(cluster=Path("/nonexistent/cluster.json")), {}),
        (Wish(configuration=Path("/nonexistent/client.conf")), {}),
        (Wish(), {"CHELONIA_CLUSTER": "/nonexistent"}),
    ],
)
def test_files_that_were_named_must_be_there(wish: Wish, env: dict[str, str], home: Path) -> None:
    with fails(Kind.BAD_CONFIG) as caught:
        settle(wish, env, home)
    assert "nonexistent" in caught.value.subject


@pytest.mark.parametrize("text", ['unknown = "x"', "bartender = [", 'replicas = "three"'])
def test_a_configuration_that_makes_no_sense_is_refused_by_name(text: str, home: Path) -> None:
    path = home / ".config" / "chelonia" / "client.toml"
    path.write_text(text)
    with pytest.raises(CheloniaError) as caught:
        settle(Wish(), {}, home)
    assert "client.toml" in str(caught.value)


def test_only_https_is_spoken() -> None:
    settings = Settings(("http://localhost:60000/Bartender",), (), CredentialFiles(), False, 3, {"bartender": "-b"})
    with pytest.raises(CheloniaError, match="https://"):
        settings.bartender_urls()


def test_clusters_have_names_which_setup_writes(
    chelonia: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert chelonia("setup", "one", "--bartender", "https://one:1/Bartender").code == 0
    assert chelonia("setup", "two", "--bartender", "https://two:1/Bartender", "--replicas", "5").code == 0
    assert chelonia("setup").lines == ["* one  https://one:1/Bartender", "  two  https://two:1/Bartender"]

    def used(cluster: str = "") -> tuple[tuple[str, ...], int]:
        found = settle(Wish(cluster=Path(cluster) if cluster else None), {}, tmp_path)
        return found.bartenders, found.replicas

    assert used() == (("https://one:1/Bartender",), 3)
    assert used("two") == (("https://two:1/Bartender",), 5)
    with pytest.raises(CheloniaError, match="there is no cluster 'three'; known: one, two"):
        used("three")
    assert chelonia("setup", "two", "--default").code == 0
    assert used() == (("https://two:1/Bartender",), 5)
    assert chelonia("setup", "four").code == 2
    assert "is no number of replicas" in chelonia("setup", "two", "--replicas", "many").err
    refused = chelonia("setup", "four", "--bartender", "four.example.org:1")
    assert (refused.code, "'four.example.org:1' (--bartender) is no https:// URL" in refused.err) == (2, True)
    refused = chelonia("setup", "four", "--bartender", "https://fd00::4:1/Bartender")
    assert (refused.code, "https://[2001:db8::1]:60000" in refused.err) == (2, True)
    assert chelonia("setup", "a/b", "--bartender", "https://x:1/B").code == 2


def test_a_path_that_setup_writes_down_may_have_any_letters(
    chelonia: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    cas = tmp_path / "\N{SNAIL} certificates"
    assert chelonia("setup", "one", "--bartender", "https://one:1/Bartender", "--ca-dir", str(cas)).code == 0
    assert settle(Wish(), {}, tmp_path).files.ca_dir == cas


def test_clusters_that_were_written_down_are_still_there_when_the_disk_is_full(
    chelonia: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / ".config").symlink_to("dotfiles")
    assert chelonia("setup", "one", "--bartender", "https://one:1/Bartender").code == 0
    kept = tmp_path / "dotfiles" / "chelonia" / "client.toml"
    before, (soft, hard) = kept.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), hard))
    try:
        assert chelonia("setup", "another", "--bartender", "https://another:1/Bartender").code == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept.read_bytes() == before
    kept.rename(tmp_path / "own.toml")
    kept.symlink_to(tmp_path / "own.toml")
    (tmp_path / "own.toml").chmod(0o600)
    assert chelonia("setup", "two", "--bartender", "https://two:1/Bartender").code == 0
    assert kept.is_symlink()
    assert (tmp_path / "own.toml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("open_", "strong"), [(connect.open_client, True), (None, False)])
async def test_a_command_reads_what_others_have_written_and_a_program_what_it_has_seen(
    monkeypatch: pytest.MonkeyPatch, open_: Callable[[Settings], Client] | None, strong: bool
) -> None:
    """A command starts without a position, so all its reads are of the newest state."""
    links = list[Link]()

    def noting(bind: Callable[[Link, tuple[str, ...]], Any]) -> Callable[[Link, tuple[str, ...]], Any]:
        def bound(link: Link, urls: tuple[str, ...]) -> Any:
            links.append(link)
            return bind(link, urls)

        return bound

    monkeypatch.setattr(connect, "find", lambda *_: connect.ConnectionPlan(TlsSettings(), None))
    monkeypatch.setattr(connect, "open_http", lambda _: HttpClient(lambda: None))
    for name in ("remote_bartender", "remote_files"):
        monkeypatch.setattr(connect, name, noting(getattr(connect, name)))
    wish = Wish(bartenders=("https://b:1/Bartender",))
    client = open_(connect.settle_here(wish, {})) if open_ is not None else connect.from_environment(wish, {})
    assert [link.strong for link in links] == [strong] * 2
    await client.http.close()
