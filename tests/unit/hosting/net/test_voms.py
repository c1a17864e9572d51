"""VOMS attributes: those of a good attribute certificate count for as long as it does; bad ones are logged and
ignored."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from chelonia.core.ids import Ms
from chelonia.core.values import replace
from chelonia.hosting.net import voms
from chelonia.hosting.net.certificates import CertificateAuthority, Issued, KeyKind, make_key
from chelonia.hosting.net.identity import Attested, Chain
from chelonia.hosting.net.tls import TlsStore
from chelonia.hosting.net.voms import Voms, read_lsc
from tests.support.voms import HOUR_S, Ac, carrying
from tests.unit.hosting.grid import Grid

SIGNER = "/O=Grid/CN=voms.example"
GROUPS = ("/atlas", "/atlas/prod/Role=boss")


class Scene:
    """A grid with a VOMS server that is named in a vomsdir."""

    def __init__(self, root: Path) -> None:
        self.grid = Grid(root)
        self.user = self.grid.user()
        self.signer = self.grid.ca.issue_host(SIGNER, ["voms.example"], self.grid.now)
        self.dir = root / "vomsdir"
        (self.dir / "atlas").mkdir(parents=True)
        self.lsc = self.dir / "atlas" / "voms.example.lsc"
        self.lsc.write_text(f"{SIGNER}\n/O=Grid/CN=Test CA\n")
        self.trust = self.grid.server().trust
        self.voms = Voms(self.dir, lambda: self.trust, lambda: ("se.example",))

    def ac(self, **more: Any) -> Ac:
        return replace(Ac(self.user.certificate, self.signer, self.grid.now), **more)

    def chain(self, proxy: Issued) -> Chain:
        return (*proxy.chain, self.grid.ca.certificate)

    def says(self, *acs: Ac, raw: bytes = b"", at_ms: int = 0) -> Attested:
        proxy = carrying(self.user, self.grid.now, *(ac.encode() for ac in acs), raw=raw)
        return self.voms.verify(self.chain(proxy), at_ms or self.grid.now)  # type: ignore[arg-type]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_groups_and_roles_of_a_good_one_count_until_it_ends(scene: Scene) -> None:
    told = scene.says(scene.ac())
    assert (told.attributes, told.reasons) == (GROUPS, ())
    assert told.until_ms == (scene.grid.now // 1000 + HOUR_S) * 1000
    assert scene.says(scene.ac(targets=("se.example", "other.example"))).attributes == GROUPS
    assert scene.says(scene.ac(digest="sha512")).attributes == GROUPS
    cms = scene.ac(fqans=("/cms",), authority="cms://voms.example:1")
    both = scene.says(scene.ac(), cms)
    assert both.attributes == GROUPS, "one that does not count spoils no other"
    assert "names /O=Grid/CN=voms.example" in both.reasons[0]


def test_a_chain_without_any_says_nothing(scene: Scene) -> None:
    assert scene.voms.verify(scene.chain(scene.grid.proxy(scene.user)), scene.grid.now) == Attested()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spoil": True}, "its signature is wrong"),
        ({"serial": 5}, "its holder is another certificate"),
        ({"begin_s": 10}, "not now"),
        ({"end_s": -10}, "not now"),
        ({"digest": "sha1"}, "signed with sha1"),
        ({"targets": ("other.example",)}, "meant for other.example"),
        ({"critical": "1.2.3.4"}, "critical extension 1.2.3.4"),
        ({"carried": ()}, "does not carry its signer's certificate"),
        ({"authority": "../cms://x:1"}, "does not say of which organisation"),
        ({"authority": ".://x:1"}, "does not say of which organisation"),
        ({"authority": "cms://x:1"}, "is not of the organisation cms"),
        ({"fqans": ("/atlasx",)}, "is not of the organisation atlas"),
        ({"fqans": ("/atlas\n",)}, "is not of the organisation atlas"),
        ({"fqans": ("/atlas",) * 257}, "more than 256 groups"),
        ({"more": {"attributes": []}}, "no list of groups"),
    ],
)
def test_what_does_not_hold_is_told_and_counts_for_nothing(scene: Scene, change: dict[str, Any], reason: str) -> None:
    told = scene.says(scene.ac(**change))
    assert told.attributes == ()
    assert reason in told.reasons[0]


def test_the_holder_of_another_is_nobody(scene: Scene) -> None:
    stolen = scene.ac(holder=scene.grid.user("/O=Grid/CN=Eve").certificate)
    assert "its holder is another" in scene.says(stolen).reasons[0]


@pytest.mark.parametrize(
    "raw", [b"\x30\x00", b"\x00", b"", b"\x30\x82\xff\xff", b"\x30\x04\x30\x02\x30\x00", b"\x30\x80"]
)
def test_bytes_that_are_none_count_for_nothing(scene: Scene, raw: bytes) -> None:
    assert scene.says(raw=raw or b"\x05\x00").attributes == ()


def lines(*texts: str) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.lsc.write_text("\n".join(texts))

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda scene: scene.lsc.unlink(),
        lines(SIGNER),
        lines("/O=Grid/CN=Test CA", SIGNER),
        lines(SIGNER + "x", "/O=Grid/CN=Test CA"),
        lines(SIGNER, "/O=Grid/CN=Another CA"),
        lines("no DN", SIGNER, "/O=Grid/CN=Test CA"),
    ],
)
def test_a_signer_that_no_lsc_file_names_is_nobody(scene: Scene, change: Callable[[Scene], object]) -> None:
    change(scene)
    assert "no .lsc file in" in scene.says(scene.ac()).reasons[0]


def test_lsc_files_have_several_chains_and_comments(scene: Scene) -> None:
    scene.lsc.write_text(f"# a remark\n/CN=old\n/CN=CA\n------ NEXT CHAIN ------\n{SIGNER}\n/O=Grid/CN=Test CA\n")
    assert read_lsc(scene.lsc) == [["/CN=old", "/CN=CA"], [SIGNER, "/O=Grid/CN=Test CA"]]
    assert scene.says(scene.ac()).attributes == GROUPS


def test_a_signer_of_a_ca_that_is_not_trusted_is_nobody(scene: Scene, tmp_path: Path) -> None:
    evil = CertificateAuthority.create(tmp_path / "evil", "/O=Grid/CN=Test CA", scene.grid.now, kind=KeyKind.P256)
    signer = evil.issue_host(SIGNER, ["voms.example"], scene.grid.now, key=scene.signer.key)
    carried = (signer.certificate, evil.certificate)
    told = scene.says(scene.ac(signer=signer, carried=carried))
    assert told.attributes == ()
    assert "is not trusted here" in told.reasons[0] or "trust anchor" in told.reasons[0]


def test_a_revoked_signer_is_nobody(scene: Scene) -> None:
    scene.grid.ca.revoke(scene.signer.certificate, scene.grid.now)
    scene.trust = scene.grid.server().trust
    told = scene.says(scene.ac())
    assert told.attributes == ()
    assert "revoked" in told.reasons[0]


def test_groups_count_no_longer_than_the_crl_that_their_signer_was_checked_against(scene: Scene) -> None:
    scene.grid.ca.write_crl(scene.grid.now, lifetime_s=600)
    scene.trust = scene.grid.server().trust
    assert scene.says(scene.ac()).until_ms == (scene.grid.now // 1000 + 600) * 1000


def test_a_signer_that_is_over_is_a_ca_or_is_another_than_the_ac_says_is_nobody(scene: Scene) -> None:
    grid, ca = scene.grid, scene.grid.ca.issued
    over = grid.ca.issue_host(SIGNER, ["voms.example"], Ms(grid.now - 9 * 86_400_000), lifetime_s=86_400)
    assert "expired" in scene.says(scene.ac(signer=over)).reasons[0]
    other = grid.ca.issue_host("/O=Grid/CN=other.example", ["other.example"], grid.now)
    assert "its issuer is not whose" in scene.says(scene.ac(issuer=other.certificate)).reasons[0]
    scene.lsc.write_text(f"{ca.dn}\n{ca.dn}\n")
    assert scene.says(scene.ac(signer=ca)).reasons[0] == "its signer is no host or service"


def test_a_user_signs_no_groups_for_himself(scene: Scene) -> None:
    own = scene.ac(signer=scene.user, carried=(scene.user.certificate,))
    assert "no .lsc file" in scene.says(own).reasons[0]


def test_an_identity_has_them_while_they_last(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    grid = scene.grid
    caplog.set_level(logging.INFO)
    store = TlsStore(grid.settings(), grid.clock.now_ms, scene.voms.verify)
    good, spoilt = scene.ac().encode(), scene.ac(spoil=True).encode()
    _, side = grid.meet(carrying(scene.user, grid.now, good, spoilt), store)
    assert [store.identify(side).attributes for _ in range(3)] == [GROUPS] * 3
    notes = [line for line in caplog.messages if "voms-ignored" in line]
    assert len(notes) == 1
    assert "its signature is wrong" in notes[0]
    scene.lsc.unlink()
    store.reload()
    assert store.identify(side).attributes == ()
    scene.lsc.write_text(f"{SIGNER}\n/O=Grid/CN=Test CA\n")
    store.reload()
    assert store.identify(side).attributes == GROUPS
    grid.clock.ms += HOUR_S * 1000
    assert store.identify(side).attributes == ()
    assert store.identify(side).dn == scene.user.dn, "he stays who he is"


@pytest.mark.capability("command:voms-proxy-fake")
def test_the_real_thing_is_read(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """voms-proxy-fake signs with SHA-1, which is refused; all else in its output is accepted."""
    grid = scene.grid
    signer = grid.ca.issue_host(SIGNER, ["voms.example"], grid.now, key=make_key(KeyKind.RSA))
    scene.user.write(tmp_path / "u.pem", tmp_path / "u.key")
    signer.write(tmp_path / "v.pem", tmp_path / "v.key")
    command = [
        "voms-proxy-fake", "-cert", "u.pem", "-key", "u.key", "-certdir", str(grid.trust_dir), "-hostcert", "v.pem",
        "-hostkey", "v.key", "-voms", "atlas", "-fqan", "/atlas/Role=NULL/Capability=NULL", "-fqan",
        "/atlas/prod/Role=boss/Capability=NULL", "-uri", "voms.example:15000", "-out", "p.pem", "-rfc", "-newformat",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    chain = (*x509.load_pem_x509_certificates((tmp_path / "p.pem").read_bytes()), grid.ca.certificate)
    assert "signed with sha1" in scene.voms.verify(chain, grid.now + 60_000).reasons[0]
    monkeypatch.setitem(voms.HASHES, "sha1", hashes.SHA1())
    told = scene.voms.verify(chain, grid.now + 60_000)  # type: ignore[arg-type]
    assert (told.attributes, told.reasons) == (GROUPS, ())
