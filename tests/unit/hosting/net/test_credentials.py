"""Places of credentials and CAs, their order, and the error where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import write_file
from chelonia.hosting.net.certificates import Issued, make_proxy
from chelonia.hosting.net.credential_files import CredentialFiles
from chelonia.hosting.net.credentials import (
    CredentialSurroundings,
    explain_chain,
    explain_file,
    find_cas,
    find_credential,
)
from chelonia.hosting.net.tls import ClientCertificate, TlsSettings, TlsStore, load_trust
from tests.support.failing import fails
from tests.unit.hosting.grid import JANE, P256, Grid, closed_pem, handshake

NOTHING = CredentialFiles()


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


class Home:
    """A user's home and the places around it, all empty at first."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.home = grid.root / "home"
        self.environ: dict[str, str] = {}
        self.uid = grid.root.stat().st_uid

    @property
    def around(self) -> CredentialSurroundings:
        return CredentialSurroundings(self.environ, self.home, self.uid, self.grid.root / "tmp", self.grid.trust_dir)

    def proxy(self, name: str, lifetime_s: int = 3600) -> Path:
        path = self.grid.root / "tmp" / name
        make_proxy(self.grid.user(f"/O=Grid/CN={name}"), self.grid.now, lifetime_s=lifetime_s, kind=P256).write_proxy(
            path
        )
        return path

    def pair(self, folder: Path, name: str, password: bytes | None = None) -> Issued:
        issued = self.grid.user(f"/O=Grid/CN={name}")
        issued.write(folder / "usercert.pem", folder / "userkey.pem")
        if password:
            write_file(folder / "userkey.pem", closed_pem(issued.key, password), 0o400)
        return issued


@pytest.fixture
def home(grid: Grid) -> Home:
    return Home(grid)


def test_places_are_tried_in_the_order_of_the_ecosystem(grid: Grid, home: Home) -> None:
    files = grid.root / "files"
    home.pair(home.home / ".globus", "globus")
    assert found(home) == "/O=Grid/CN=globus"
    home.pair(files / "arc", "arc")
    home.environ |= {
        "ARC_CERT_FILE": str(files / "arc/usercert.pem"),
        "ARC_KEY_FILE": str(files / "arc/userkey.pem"),
    }
    assert found(home) == "/O=Grid/CN=arc"
    home.pair(files / "user", "user")
    home.environ |= {
        "X509_USER_CERT": str(files / "user/usercert.pem"),
        "X509_USER_KEY": str(files / "user/userkey.pem"),
    }
    assert found(home) == "/O=Grid/CN=user"
    home.proxy(f"x509up_u{home.uid}")
    assert found(home) == f"/O=Grid/CN=x509up_u{home.uid}"
    home.environ["ARC_PROXY_FILE"] = str(home.proxy("arcproxy"))
    assert found(home) == "/O=Grid/CN=arcproxy"
    home.environ["X509_USER_PROXY"] = str(home.proxy("userproxy"))
    assert found(home) == "/O=Grid/CN=userproxy"
    explicit = CredentialFiles(proxy=home.proxy("named"))
    assert find_credential(explicit, home.around, grid.now).dn == "/O=Grid/CN=named"


def found(home: Home) -> str:
    return find_credential(NOTHING, home.around, home.grid.now).dn


def test_what_was_passed_over_is_told(grid: Grid, home: Home) -> None:
    home.environ["X509_USER_PROXY"] = str(home.proxy("old", lifetime_s=-60))
    home.pair(home.home / ".globus", "globus")
    credential = find_credential(NOTHING, home.around, grid.now)
    assert credential.dn == "/O=Grid/CN=globus"
    assert credential.origin == "default certificate"
    assert "expired" in str(credential.passed_over[0])
    assert "X509_USER_PROXY" in str(credential.passed_over[0])


def test_the_error_names_each_file_and_its_fault(grid: Grid, home: Home) -> None:
    home.environ["X509_USER_PROXY"] = str(home.proxy("open"))
    Path(home.environ["X509_USER_PROXY"]).chmod(0o644)
    home.environ["X509_USER_CERT"] = str(grid.root / "nowhere.pem")
    home.pair(home.home / ".globus", "globus")
    home.pair(grid.root / "other", "other")
    (grid.root / "other/userkey.pem").replace(home.home / ".globus/userkey.pem")
    with fails(Kind.BAD_CONFIG) as caught:
        find_credential(NOTHING, home.around, grid.now)
    text = caught.value.cause
    assert "open (X509_USER_PROXY): the key's mode is 0644" in text
    assert f"x509up_u{home.uid} (default proxy): No such file" in text
    assert "nowhere.pem (X509_USER_CERT): No such file" in text
    assert "userkey.pem (default certificate): the key does not belong to" in text
    assert text.endswith("; make a proxy (arcproxy, voms-proxy-init), or export X509_USER_CERT and X509_USER_KEY")
    assert "token" not in text
    home.environ["BEARER_TOKEN"] = "secret"
    with pytest.raises(CheloniaError, match="a bearer token is good at URLs alone"):
        find_credential(NOTHING, home.around, grid.now)


def test_only_expired_credentials_are_an_expiry(grid: Grid, home: Home) -> None:
    home.environ["X509_USER_PROXY"] = str(home.proxy("old", lifetime_s=-60))
    with fails(Kind.EXPIRED) as caught:
        find_credential(NOTHING, home.around, grid.now)
    assert f"{home.environ['X509_USER_PROXY']} (X509_USER_PROXY): the certificate expired at" in caught.value.cause
    assert "(/O=Grid/CN=old" in caught.value.cause


def test_a_named_file_is_final(grid: Grid, home: Home) -> None:
    home.pair(home.home / ".globus", "globus")
    with pytest.raises(CheloniaError, match="named explicitly"):
        find_credential(CredentialFiles(proxy=grid.root / "missing"), home.around, grid.now)


def test_a_file_of_another_user_is_refused(grid: Grid, home: Home) -> None:
    home.uid = 12345
    path = home.proxy("x509up_u12345")
    try:
        import os

        os.chown(path, 54321, -1)
    except PermissionError:
        pytest.skip("only root can give files away")
    with pytest.raises(CheloniaError, match="belongs to user 54321"):
        find_credential(NOTHING, home.around, grid.now)


def test_an_encrypted_key_asks_for_its_password(grid: Grid, home: Home) -> None:
    home.pair(home.home / ".globus", "globus", b"secret")
    answers = [b"wrong", b"secret"]
    credential = find_credential(NOTHING, home.around, grid.now, lambda path: answers.pop(0))
    assert credential.password == b"secret"
    assert "secret" not in repr(credential)
    settings = credential.settings(find_cas(NOTHING, home.around))
    store = grid.server()
    context = TlsStore(settings, grid.clock.now_ms).client_context()
    _, side = handshake(store.server_context(ClientCertificate.REQUIRED), context)
    assert store.identify(side).dn == "/O=Grid/CN=globus"


@pytest.mark.parametrize("answer", [None, b"wrong"])
def test_an_encrypted_key_without_its_password_is_passed_over(grid: Grid, home: Home, answer: bytes | None) -> None:
    home.pair(home.home / ".globus", "globus", b"secret")
    with pytest.raises(CheloniaError, match="password"):
        find_credential(NOTHING, home.around, grid.now, lambda path: answer)
    with pytest.raises(CheloniaError, match="encrypted"):
        find_credential(NOTHING, home.around, grid.now)


def test_cas_are_found_in_order(grid: Grid, home: Home) -> None:
    assert find_cas(NOTHING, home.around) == TlsSettings(ca_dir=grid.trust_dir)
    (home.home / ".globus/certificates").mkdir(parents=True)
    assert find_cas(NOTHING, home.around).ca_dir == home.home / ".globus/certificates"
    file = grid.root / "ca.pem"
    file.touch()
    home.environ["ARC_CA_FILE"] = str(file)
    assert find_cas(NOTHING, home.around) == TlsSettings(ca_file=file)
    home.environ["ARC_CA_DIR"] = str(grid.root)
    assert find_cas(NOTHING, home.around).ca_dir == grid.root
    home.environ["X509_CERT_DIR"] = str(grid.root / "home")
    assert find_cas(NOTHING, home.around).ca_dir == grid.root / "home"
    assert find_cas(CredentialFiles(ca_file=file), home.around) == TlsSettings(ca_file=file)


def test_no_cas_at_all_names_the_places(grid: Grid) -> None:
    around = CredentialSurroundings({"X509_CERT_DIR": "/nowhere"}, None, 0, system_ca_dir=grid.root / "none")
    with pytest.raises(CheloniaError, match=r"/nowhere \(X509_CERT_DIR\): no such directory"):
        find_cas(NOTHING, around)


# ------------------------------------------------------------------------------------------------------- explain_chain


def test_a_good_chain_needs_no_explanation(grid: Grid) -> None:
    trust = load_trust(grid.settings())
    assert explain_chain(grid.proxy(grid.user(), 3).chain, trust, grid.now) == ()
    assert explain_file(grid.host_files[0], trust, grid.now) == ()


def test_each_refusal_is_explained(grid: Grid, tmp_path: Path) -> None:
    user = grid.user()
    trust = load_trust(grid.settings())
    expired = make_proxy(user, grid.now, lifetime_s=-60, kind=P256)
    foreign = Grid(tmp_path / "foreign", "/O=Elsewhere/CN=CA").user()
    outside = grid.user("/O=Elsewhere/CN=Jane")
    assert "expired" in explain_chain(expired.chain, trust, grid.now)[0]
    assert "unable to get" in explain_chain(foreign.chain, trust, grid.now)[0]
    assert "signing policy" in explain_chain(outside.chain, trust, grid.now)[0]
    grid.ca.revoke(user.certificate, grid.now)
    (reason,) = explain_chain(grid.proxy(user).chain, load_trust(grid.settings()), grid.now)
    assert reason.startswith(f"{JANE}: the certificate was revoked")
    assert explain_chain((), trust, grid.now) == ("there is no certificate",)
    assert "cannot read" in explain_file(tmp_path / "missing.pem", trust, grid.now)[0]
