"""A peer's experience: real handshakes, in memory and through asyncio, uvloop and aiohttp."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
import uvloop
from aiohttp import web
from cryptography import x509

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Ms
from chelonia.durable_files import write_file
from chelonia.hosting.net import certificates, tls
from chelonia.hosting.net.certificates import CertificateAuthority, Issued, make_proxy
from chelonia.hosting.net.identity import INDEPENDENT, NOBODY, _der
from chelonia.hosting.net.tls import (
    ClientCertificate,
    TlsSettings,
    TlsStore,
    handshake_error,
    load_trust,
    make_server_context,
)
from tests.unit.hosting.grid import (
    DAY_MS,
    JANE,
    OTHER_CA,
    P256,
    Grid,
    ca_below,
    handshake,
    publish_to,
    publish_unlimited,
)

REQUIRED, OPTIONAL = ClientCertificate.REQUIRED, ClientCertificate.OPTIONAL


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


def refusal(act: Callable[[], object]) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        act()
    return caught.value


def shake_as(grid: Grid, issued: Issued | None, demand: ClientCertificate = REQUIRED) -> ssl.SSLObject:
    return handshake(grid.server().server_context(demand), grid.client(issued).client_context())[1]


def unchecked_client(settings: TlsSettings, trust: TlsStore) -> ssl.SSLContext:
    """A foreign client: no checks but OpenSSL's, and it keeps sessions."""
    return tls.make_client_context(settings, trust.trust, lambda _: None)


# ------------------------------------------------------------------------------------------------------------- proxies


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("limited", [False, True])
def test_a_proxy_of_any_depth_stands_for_its_end_entity(grid: Grid, depth: int, limited: bool) -> None:
    store, side = grid.meet(grid.proxy(grid.user(), depth, limited=limited))
    identity = store.identify(side)
    assert (identity.dn, identity.limited) == (JANE, limited and depth > 0)
    assert identity.attributes == ()
    assert not identity.anonymous


@pytest.mark.parametrize("limited", [(True, False), (False, True)])
def test_a_proxy_is_limited_when_one_of_its_chain_is(grid: Grid, limited: tuple[bool, bool]) -> None:
    upper, lower = limited
    store, side = grid.meet(grid.proxy(grid.proxy(grid.user(), limited=upper), limited=lower))
    assert store.identify(side).limited


def test_both_ends_speak_http11_over_modern_tls(grid: Grid) -> None:
    _, side = grid.meet(grid.user())
    assert side.selected_alpn_protocol() == "http/1.1"
    assert side.version() == "TLSv1.3"


def test_a_proxy_whose_policy_is_unknown_is_refused(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "INHERIT_ALL", INDEPENDENT)
    store, side = grid.meet(make_proxy(grid.user(), grid.now, kind=P256))
    error = refusal(lambda: store.identify(side))
    assert error.kind is Kind.UNTRUSTED
    assert "1.3.6.1.5.5.7.21.2" in error.cause


def test_a_proxy_longer_than_its_issuer_allows_is_refused(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_may_follow(language: bytes) -> bytes:
        return _der(0x30, _der(0x02, b"\0") + _der(0x30, _der(0x06, language)))

    monkeypatch.setattr(certificates, "proxy_cert_info", none_may_follow)
    last = make_proxy(grid.user(), grid.now, kind=P256)
    with pytest.raises(ssl.SSLCertVerificationError, match="proxy path length"):
        shake_as(grid, grid.proxy(last))


@pytest.mark.parametrize("size", [117, 118, 250, 251, 60_000])
def test_a_limited_proxy_may_have_a_long_policy(grid: Grid, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """RFC 3820 sets no limit; the lengths around each step of DER."""

    def with_policy(language: bytes) -> bytes:
        return _element(0x30, _element(0x30, _element(0x06, language) + _element(0x04, bytes(size))))

    monkeypatch.setattr(certificates, "proxy_cert_info", with_policy)
    store, side = grid.meet(make_proxy(grid.user(), grid.now, limited=True, kind=P256))
    assert (store.identify(side).dn, store.identify(side).limited) == (JANE, True)


def _element(tag: int, content: bytes) -> bytes:
    """A DER element of any length."""
    size = len(content)
    told = size.to_bytes(-(-size.bit_length() // 8), "big")
    return bytes((tag, size) if size < 0x80 else (tag, 0x80 | len(told), *told)) + content


def test_an_expired_proxy_is_refused_in_the_handshake(grid: Grid) -> None:
    expired = make_proxy(grid.user(), grid.now, lifetime_s=-60, kind=P256)
    store = grid.client(grid.user())
    context = unchecked_client(store._settings, store)
    path = grid.root / "expired.pem"
    expired.write_proxy(path)
    context.load_cert_chain(path)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(grid.server().server_context(REQUIRED), context)
    assert handshake_error(caught.value).kind is Kind.EXPIRED


def test_our_own_expired_certificate_is_named_before_any_connection(grid: Grid) -> None:
    error = refusal(lambda: grid.client(make_proxy(grid.user(), grid.now, lifetime_s=-60, kind=P256)))
    assert error.kind is Kind.EXPIRED
    assert "renew" in error.cause


# --------------------------------------------------------------------------------------------- strangers, and nobody


def test_a_proxy_of_a_foreign_ca_is_refused(grid: Grid, tmp_path: Path) -> None:
    foreign = Grid(tmp_path / "foreign", "/O=Elsewhere/CN=Other CA")
    stranger = foreign.proxy(foreign.user("/O=Elsewhere/CN=Mallory"))
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake_as(grid, stranger)
    error = handshake_error(caught.value, "localhost")
    assert error.kind is Kind.UNTRUSTED
    assert "not in the trust directory" in error.cause


def test_who_showed_no_certificate_is_not_told_that_it_is_refused() -> None:
    alert = ssl.SSLError(1, "alert")
    alert.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    error = handshake_error(alert, "localhost")
    assert (error.kind, error.cause) == (Kind.UNTRUSTED, "the peer asks for a certificate, and none was shown")


def test_an_alert_that_comes_while_closing_is_not_laid_to_another_connection(grid: Grid, tmp_path: Path) -> None:
    """OpenSSL keeps errors per thread: left there, the next connection to be read would break by it."""
    _, innocent = grid.meet(grid.user())
    stranger = Grid(tmp_path / "foreign", "/O=Grid/CN=Foreign CA").user()
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    refused = grid.client(stranger).client_context().wrap_bio(down, up, server_hostname="localhost")
    refusing = grid.server().server_context(REQUIRED).wrap_bio(up, down, server_side=True)
    for side in (refused, refusing, refused, refusing):  # in TLS 1.3 a client is done before it is refused
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert down.pending, "the refusal is on its way"
    refused.unwrap()
    with pytest.raises(ssl.SSLWantReadError):
        innocent.read(1)


def test_a_foreign_ca_of_the_same_name_is_refused(grid: Grid, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_as(grid, Grid(tmp_path / "twin").user())


def test_a_self_signed_certificate_is_refused(grid: Grid, tmp_path: Path) -> None:
    alone = CertificateAuthority.create(tmp_path / "alone", JANE, grid.now, kind=P256)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake_as(grid, alone.issued)
    assert "self-signed" in handshake_error(caught.value).cause


def test_a_ca_certificate_is_nobodys_identity(grid: Grid) -> None:
    settings = TlsSettings(cert=grid.ca.directory / "ca/cacert.pem", key=grid.ca.directory / "ca/cakey.pem")
    store = grid.server()
    context = unchecked_client(settings, store)
    _, side = handshake(store.server_context(OPTIONAL), context)
    assert "CA certificate" in refusal(lambda: store.identify(side)).cause


def test_nobody_is_anonymous_where_a_certificate_is_optional(grid: Grid) -> None:
    store, side = grid.meet(None)
    assert store.identify(side).dn == ANONYMOUS
    assert store.identify(None).anonymous


def test_nobody_is_refused_where_a_certificate_is_required(grid: Grid) -> None:
    with pytest.raises(ssl.SSLError) as caught:
        shake_as(grid, None)
    assert caught.value.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"


# ---------------------------------------------------------------------------------------------------------------- CRLs


def test_a_revoked_user_is_refused_behind_his_proxy(grid: Grid) -> None:
    user = grid.user()
    grid.ca.revoke(user.certificate, grid.now)
    store, side = grid.meet(grid.proxy(user))
    error = refusal(lambda: store.identify(side))
    assert (error.kind, error.subject) == (Kind.UNTRUSTED, JANE)
    assert "revoked by CA /O=Grid/CN=Test CA" in error.cause


def test_others_of_that_ca_are_not_refused(grid: Grid) -> None:
    grid.ca.revoke(grid.user("/O=Grid/CN=Mallory").certificate, grid.now)
    store, side = grid.meet(grid.user())
    assert store.identify(side).dn == JANE


@pytest.mark.expect_log("event=ca-unlimited")
def test_a_revoked_intermediate_refuses_what_it_issued(grid: Grid) -> None:
    below = ca_below(grid.ca, grid.root / "below", "/O=Grid/OU=Below/CN=Sub CA", grid.now)
    user = below.issue_user("/O=Grid/OU=Below/CN=Joe", grid.now)
    store, side = grid.meet(grid.proxy(user))
    assert store.identify(side).dn == "/O=Grid/OU=Below/CN=Joe"
    grid.ca.revoke(below.certificate, grid.now)
    store.reload()
    error = refusal(lambda: store.identify(side))
    assert error.subject == "/O=Grid/OU=Below/CN=Sub CA"


def test_an_expired_crl_refuses_with_the_cure(grid: Grid) -> None:
    grid.ca.write_crl(Ms(grid.now - 2 * DAY_MS), lifetime_s=3600)
    store, side = meet_unchecked(grid)
    error = refusal(lambda: store.identify(side))
    assert error.kind is Kind.UNTRUSTED
    assert "has expired: run fetch-crl" in error.cause


def meet_unchecked(grid: Grid, user: Issued | None = None) -> tuple[TlsStore, ssl.SSLObject]:
    """As `Grid.meet`, with a client that does not check the server by our rules."""
    store = grid.server()
    client = unchecked_client(grid.settings(user or grid.user()), store)
    return store, handshake(store.server_context(OPTIONAL), client)[1]


def test_a_ca_without_a_crl_is_not_checked(grid: Grid) -> None:
    for path in grid.trust_dir.glob("*.r0"):
        path.unlink()
    store, side = grid.meet(grid.user())
    assert store.identify(side).dn == JANE


@pytest.mark.expect_log("event=ca-unusable")
def test_a_crl_that_cannot_be_read_refuses_its_ca(grid: Grid) -> None:
    for path in grid.trust_dir.glob("*.r0"):
        write_file(path, b"-----BEGIN X509 CRL-----\nrubbish\n-----END X509 CRL-----\n", 0o444)
    store, side = meet_unchecked(grid)
    cause = refusal(lambda: store.identify(side)).cause
    assert "cannot be read" in cause
    assert str(grid.trust_dir) not in cause


@pytest.mark.expect_log("event=ca-unlimited")
def test_a_second_ca_without_a_policy_is_warned_of(
    grid: Grid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert grid.server().trust.unlimited == ()
    publish_unlimited(tmp_path / "other", grid.trust_dir)
    assert grid.server().trust.unlimited == (OTHER_CA,)
    assert f'ca="{OTHER_CA}"' in caplog.text
    for path in (tmp_path / "other" / "certificates").glob("*.signing_policy"):
        write_file(grid.trust_dir / path.name, path.read_bytes(), 0o444)
    assert grid.server().trust.unlimited == ()


def test_tls_1_2_agrees_on_no_cbc(grid: Grid) -> None:
    store = grid.server()
    context = store._current(OPTIONAL)
    names = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"]
    assert names
    assert all("GCM" in name or "CHACHA20" in name for name in names), names
    old = ssl.create_default_context(cafile=None)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA")
    with pytest.raises(ssl.SSLError):
        handshake(store.server_context(OPTIONAL), old)


def test_a_crl_signed_by_another_refuses(grid: Grid, tmp_path: Path) -> None:
    twin = CertificateAuthority.create(tmp_path / "twin", "/O=Grid/CN=Test CA", grid.now, kind=P256)
    forged = (twin.directory / "ca" / "crl.pem").read_bytes()
    certificates.publish_crl(grid.trust_dir, grid.ca.certificate, forged)
    store, side = meet_unchecked(grid)
    assert "not signed by that CA" in refusal(lambda: store.identify(side)).cause


def test_crls_in_a_ca_file_count(grid: Grid) -> None:
    user = grid.user()
    grid.ca.revoke(user.certificate, grid.now)
    bundle = grid.root / "bundle.pem"
    folder = grid.ca.directory / "ca"
    bundle.write_bytes((folder / "cacert.pem").read_bytes() + (folder / "crl.pem").read_bytes())
    cert, key = grid.host_files
    store = TlsStore(TlsSettings(cert=cert, key=key, ca_file=bundle), grid.clock.now_ms)
    _, side = grid.meet(user, store)
    assert "revoked" in refusal(lambda: store.identify(side)).cause


def test_an_open_connection_is_refused_once_the_crl_has_expired(grid: Grid) -> None:
    store, side = grid.meet(grid.user())
    assert store.identify(side).dn == JANE
    grid.clock.ms += 31 * DAY_MS
    assert "has expired: run fetch-crl" in refusal(lambda: store.identify(side)).cause
    grid.ca.write_crl(grid.clock.now_ms())
    assert store.reload_if_changed()
    assert store.identify(side).dn == JANE


# ---------------------------------------------------------------------------------------------------- signing policies


def test_a_subject_outside_the_signing_policy_is_refused(grid: Grid) -> None:
    store, side = grid.meet(grid.proxy(grid.user("/O=Elsewhere/CN=Jane Doe")))
    error = refusal(lambda: store.identify(side))
    assert error.kind is Kind.UNTRUSTED
    assert 'allows only "/O=Grid/*"' in error.cause


def test_a_ca_without_a_signing_policy_is_not_limited(grid: Grid) -> None:
    for path in grid.trust_dir.glob("*.signing_policy"):
        path.unlink()
    store, side = grid.meet(grid.user("/O=Elsewhere/CN=Jane Doe"))
    assert store.identify(side).dn == "/O=Elsewhere/CN=Jane Doe"


@pytest.mark.expect_log("event=ca-unusable")
def test_a_signing_policy_that_cannot_be_read_refuses_its_ca(grid: Grid) -> None:
    for path in grid.trust_dir.glob("*.signing_policy"):
        write_file(path, b"allow everything please\n", 0o444)
    store, side = meet_unchecked(grid)
    assert "line 1 is not understood" in refusal(lambda: store.identify(side)).cause


def test_the_signing_policies_of_the_grid_are_read() -> None:
    text = """
    # a comment
    access_id_CA      X509         '/C=AT/O=AustrianGrid/OU=Certification/E=ca@example.org/CN=CA'
    pos_rights        globus        CA:sign
    cond_subjects     globus     '"/C=AT/O=AustrianGrid/*" "/DC=at/DC=grid/CN=J?ne"'
    access_id_CA      X509         '/CN=Second'
    pos_rights        globus        CA:sign
    cond_subjects     globus     "/O=Second/*"
    access_id_ANYBODY X509         '*'
    pos_rights        globus        CA:read
    """
    first, second = tls.parse_signing_policy(text)
    assert first.ca == "/C=AT/O=AustrianGrid/OU=Certification/emailAddress=ca@example.org/CN=CA"
    assert first.patterns == ("/C=AT/O=AustrianGrid/*", "/DC=at/DC=grid/CN=J?ne")
    assert second.patterns == ("/O=Second/*",)
    assert first.allows(Dn("/DC=at/DC=grid/CN=Jane"))
    assert not first.allows(Dn("/DC=at/DC=grid/CN=Jaane"))
    assert not second.allows(Dn("/O=Second"))


@pytest.mark.parametrize("line", ["neg_rights globus CA:sign", "cond_subjects", "access_id_CA X509"])
def test_a_signing_policy_we_do_not_understand_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        tls.parse_signing_policy(line)


# ---------------------------------------------------------------------------------------------------------- resumption


def resume(grid: Grid, store: TlsStore, between: Callable[[], None] = lambda: None) -> ssl.SSLObject:
    """Shake hands as Jane, look the identity up, run `between`, resume the session; return the listener's second
    side."""
    client = unchecked_client(grid.settings(grid.proxy(grid.user())), store)
    listener = store.server_context(REQUIRED)
    first, side = handshake(listener, client)
    assert store.identify(side).dn == JANE
    between()
    second, side = handshake(listener, client, session=first.session)
    assert second.session_reused
    return side


def test_a_resumed_session_keeps_its_identity(grid: Grid) -> None:
    store = grid.server()
    assert store.identify(resume(grid, store)).dn == JANE


def test_a_listener_sends_one_ticket(grid: Grid) -> None:
    """FFmpeg reads one before it closes; another would be unread, and the kernel resets such a connection."""
    assert make_server_context(grid.settings(), load_trust(grid.settings()), REQUIRED).num_tickets == 1


def test_a_resumed_session_nobody_remembers_is_told_to_reconnect(grid: Grid) -> None:
    store = grid.server()
    side = resume(grid, store, store._identities._cached.clear)
    error = refusal(lambda: store.identify(side))
    assert error.kind is Kind.UNTRUSTED
    assert "reconnect with a full handshake" in error.cause


def test_a_resumed_session_is_refused_once_its_user_is_revoked(grid: Grid) -> None:
    user = grid.user()
    store = grid.server()
    client = unchecked_client(grid.settings(grid.proxy(user)), store)
    listener = store.server_context(REQUIRED)
    _, open_side = handshake(listener, client)
    assert store.identify(open_side).dn == JANE
    grid.ca.revoke(user.certificate, grid.now)
    store.trust = tls.load_trust(store._settings)  # new CRL, old tickets: the worst case
    store._identities.judge_again()
    first, _ = handshake(listener, client)
    _, side = handshake(listener, client, session=first.session)
    assert side.session_reused
    assert refusal(lambda: store.identify(side)).kind is Kind.UNTRUSTED
    assert refusal(lambda: store.identify(open_side)).cause.startswith("the certificate was revoked")


def test_a_resumed_session_is_refused_once_its_proxy_has_expired(grid: Grid) -> None:
    store = grid.server()
    side = resume(grid, store)
    grid.clock.ms += DAY_MS
    assert refusal(lambda: store.identify(side)).kind is Kind.EXPIRED


def test_tickets_from_before_a_reload_do_not_resume(grid: Grid) -> None:
    store = grid.server()
    client = unchecked_client(grid.settings(grid.user()), store)
    listener = store.server_context(REQUIRED)
    first, _ = handshake(listener, client)
    store.reload()
    _, side = handshake(listener, client, session=first.session)
    assert not side.session_reused
    assert store.identify(side).dn == JANE


# -------------------------------------------------------------------------------------------------------------- reload


def test_reload_takes_up_a_new_ca_and_drops_an_old_one(grid: Grid, tmp_path: Path) -> None:
    store = grid.server()
    listener = store.server_context(REQUIRED)
    other = Grid(tmp_path / "other", "/O=Other/CN=Other CA")
    joe = unchecked_client(other.settings(other.user("/O=Other/CN=Joe")), store)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(listener, joe)
    assert not store.reload_if_changed()
    publish_to(other.ca, grid.trust_dir)
    assert store.reload_if_changed()
    _, side = handshake(listener, joe)
    assert store.identify(side).dn == "/O=Other/CN=Joe"
    for stem in certificates.subject_hashes(other.ca.certificate):
        (grid.trust_dir / f"{stem}.0").unlink()
    store.reload()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(listener, joe)
    assert "trust anchor" in refusal(lambda: store.identify(side)).cause


def test_a_renewed_ca_is_the_one_it_was_to_open_connections(grid: Grid) -> None:
    store = grid.server()
    _, side = handshake(store.server_context(REQUIRED), grid.client(grid.user()).client_context())
    grid.ca.renew(grid.clock.now_ms())
    store.reload()
    assert store.identify(side).dn == JANE


def test_reload_takes_up_a_new_host_certificate(grid: Grid) -> None:
    store = grid.server()
    listener = store.server_context(OPTIONAL)
    renewed = grid.ca.issue_host("/O=Grid/OU=Hosts/CN=renewed", ["localhost"], grid.now)
    renewed.write(*grid.host_files)
    store.reload()
    anybody = grid.client(None)
    near, _ = handshake(listener, anybody.client_context())
    assert anybody.identify(near).dn == "/O=Grid/OU=Hosts/CN=renewed"
    assert store.own_identity is not None
    assert store.own_identity.dn == "/O=Grid/OU=Hosts/CN=renewed"


def test_a_reload_that_fails_changes_nothing(grid: Grid) -> None:
    store = grid.server()
    listener = store.server_context(REQUIRED)
    grid.host_files[1].chmod(0o644)
    error = refusal(store.reload)
    assert error.kind is Kind.BAD_CONFIG
    assert f"chmod 0400 {grid.host_files[1]}" in error.cause
    handshake(listener, grid.client(grid.user()).client_context())


# ------------------------------------------------------------------------------------------------- the client's checks


def test_a_server_of_another_name_is_refused(grid: Grid) -> None:
    listener = grid.server().server_context(OPTIONAL)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname mismatch"):
        handshake(listener, grid.client(None).client_context(), host="storage.example.org")
    handshake(listener, grid.client(None).client_context(), host="127.0.0.1")


def test_a_revoked_server_is_refused_inside_the_handshake(grid: Grid) -> None:
    store = grid.server()
    context = grid.client(None).client_context()
    host = x509.load_pem_x509_certificate(grid.host_files[0].read_bytes())
    grid.ca.revoke(host, grid.now)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(store.server_context(OPTIONAL), grid.client(None).client_context())
    assert handshake_error(caught.value).cause.startswith("the certificate was revoked")
    handshake(store.server_context(OPTIONAL), context)  # a client that has not reloaded yet


# ----------------------------------------------------------------------------------------------------- settings, modes


@pytest.mark.parametrize("mode", [0o440, 0o644, 0o700])
def test_a_key_that_others_may_read_is_refused_with_the_cure(grid: Grid, mode: int) -> None:
    grid.host_files[1].chmod(mode)
    error = refusal(grid.server)
    assert error.kind is Kind.BAD_CONFIG
    assert f"{mode:04o}" in error.cause
    assert "chmod 0400" in error.cause


@pytest.mark.parametrize("mode", [0o444, 0o400])
def test_files_of_certificate_and_key_that_were_swapped_are_told_as_such(grid: Grid, mode: int) -> None:
    """A certificate may be world-readable; that is not its fault in the place of a key."""
    cert, key = grid.host_files
    cert.chmod(mode)
    error = refusal(lambda: TlsStore(TlsSettings(cert=key, key=cert, ca_dir=grid.trust_dir), grid.clock.now_ms))
    assert error.kind is Kind.BAD_CONFIG
    assert "it holds a certificate, not a key" in error.cause
    assert "chmod" not in error.cause


def test_a_key_of_another_certificate_is_refused(grid: Grid) -> None:
    other = grid.root / "other"
    grid.user().write(other / "cert.pem", other / "key.pem")
    settings = TlsSettings(cert=grid.host_files[0], key=other / "key.pem", ca_dir=grid.trust_dir)
    assert "does not belong" in refusal(lambda: TlsStore(settings, grid.clock.now_ms)).cause


def test_a_trust_directory_without_a_ca_is_refused(grid: Grid, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for where in (empty, tmp_path / "missing"):
        error = refusal(lambda where=where: TlsStore(grid.settings(trust_dir=where), grid.clock.now_ms))  # type: ignore[misc]
        assert (error.kind, error.subject) == (Kind.BAD_CONFIG, str(where))


@pytest.mark.expect_log("event=ca-skipped")
def test_one_broken_ca_file_does_not_stop_the_others(grid: Grid) -> None:
    (grid.trust_dir / "00000000.0").write_bytes(b"rubbish")
    store, side = grid.meet(grid.user())
    assert store.identify(side).dn == JANE


def test_a_ca_file_removed_while_the_directory_is_read_is_no_complaint(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = os.listdir(grid.trust_dir)
    monkeypatch.setattr(os, "listdir", lambda path: [*there, "00000000.0"])
    store, side = grid.meet(grid.user())
    assert store.identify(side).dn == JANE


@pytest.mark.expect_log("event=ca-skipped")
def test_a_link_to_a_ca_file_that_is_missing_is_told(grid: Grid, caplog: pytest.LogCaptureFixture) -> None:
    (grid.trust_dir / "00000000.0").symlink_to(grid.root / "missing")
    grid.meet(grid.user())
    assert "event=ca-skipped" in caplog.text


def test_days_left_count_down(grid: Grid) -> None:
    store = grid.server()
    before = store.days_left()
    assert set(before) == {"certificate", "ca", "crl"}
    assert 394 < before["certificate"] < 396
    assert 29 < before["crl"] < 31
    grid.clock.ms += 40 * DAY_MS
    assert store.days_left()["crl"] < 0


# ------------------------------------------------------------------------------------------------------- through loops


async def through_aiohttp(grid: Grid, tmp_path: Path) -> None:
    """A listener and clients over loopback: identity per request, reload while connections live."""
    store = grid.server()

    async def whoami(request: web.Request) -> web.Response:
        assert request.transport is not None
        try:
            return web.Response(text=store.identify(request.transport.get_extra_info("ssl_object")).dn)
        except CheloniaError as error:
            return web.Response(status=error.meaning.http, text=error.cause)

    app = web.Application()
    app.router.add_get("/", whoami)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=store.server_context(OPTIONAL))
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        await visit(grid, store, f"https://localhost:{port}/", tmp_path)
    finally:
        await runner.cleanup()


async def visit(grid: Grid, store: TlsStore, url: str, tmp_path: Path) -> None:
    user = grid.user()

    async def ask(issued: Issued | None) -> str:
        context = grid.client(issued).client_context()
        async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
            return await answer.text()

    assert await ask(grid.proxy(user, 2)) == JANE
    assert await ask(None) == ANONYMOUS

    context = grid.client(grid.proxy(user)).client_context()
    async with aiohttp.ClientSession() as session:
        async with session.get(url, ssl=context) as answer:
            assert await answer.text() == JANE
        grid.ca.revoke(user.certificate, grid.now)
        store.reload()
        async with session.get(url, ssl=context) as answer:  # the same connection, kept alive
            assert answer.status == 403
            assert "revoked" in await answer.text()

    other = Grid(tmp_path / "other", "/O=Other/CN=Other CA")
    publish_to(other.ca, grid.trust_dir)
    store.reload()
    assert await ask(other.user("/O=Other/CN=Joe")) == "/O=Other/CN=Joe"


def test_identity_and_reload_on_asyncio(grid: Grid, tmp_path: Path) -> None:
    asyncio.run(through_aiohttp(grid, tmp_path))


def test_identity_and_reload_on_uvloop(grid: Grid, tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(through_aiohttp(grid, tmp_path))


def test_an_anonymous_context_shows_no_certificate_and_checks_the_server(grid: Grid) -> None:
    server, own = grid.server(), grid.server()
    context = own.anonymous_context()
    assert server.identify(handshake(server.server_context(OPTIONAL), context)[1]) == NOBODY
    own.reload()
    assert server.identify(handshake(server.server_context(OPTIONAL), context)[1]) == NOBODY
    grid.ca.revoke(x509.load_pem_x509_certificate(grid.host_files[0].read_bytes()), grid.now)
    own.reload()
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        handshake(server.server_context(OPTIONAL), context)


def test_blocking_sockets_trust_nobody(grid: Grid) -> None:
    """They would skip the inspection of the peer."""
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener.load_cert_chain(*grid.host_files)
    near, far = socket.socketpair()

    def serve() -> None:
        with suppress(OSError):
            listener.wrap_socket(far, server_side=True).close()

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        with pytest.raises(ssl.SSLCertVerificationError):
            grid.client(grid.user()).client_context().wrap_socket(near, server_hostname="localhost")
        served.result(10)
