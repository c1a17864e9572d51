"""The test CA's files, judged by OpenSSL (through pyOpenSSL) and by the layout grid software expects."""

from __future__ import annotations

import errno
import os
import shutil
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from OpenSSL import SSL, crypto

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.durable_files import write_file
from chelonia.hosting.net import certificates
from chelonia.hosting.net.certificates import CA_LIFETIME_S, CertificateAuthority, KeyKind, make_key, make_proxy
from chelonia.hosting.net.identity import LIMITED, PROXY_CERT_INFO, proxy_language, subject_dn
from chelonia.hosting.net.tls import ClientCertificate, TlsSettings, TlsStore, load_trust, parse_signing_policy
from tests.support.failing import fails
from tests.unit.hosting.grid import HOST, JANE, P256, Grid, ca_below, handshake, publish_to, real_now_ms


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_the_layout_is_that_of_etc_grid_security(grid: Grid) -> None:
    new, old = certificates.subject_hashes(grid.ca.certificate)
    assert new != old
    names = {path.name for path in grid.trust_dir.iterdir()}
    assert names == {f"{stem}.{end}" for stem in (new, old) for end in ("0", "r0", "signing_policy")}
    assert (mode(grid.host_files[0]), mode(grid.host_files[1])) == (0o444, 0o400)
    assert [path.name for path in grid.host_files] == ["hostcert.pem", "hostkey.pem"]
    assert mode(grid.ca.directory / "ca" / "cakey.pem") == 0o400
    assert mode(grid.ca.directory / "ca") == 0o700


def test_what_is_written_takes_the_place_of_no_pipe_or_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link"):
        before = path.lstat()
        with pytest.raises(CheloniaError, match="no ordinary file"):
            write_file(path, b"x", 0o400)
        after = path.lstat()  # not its atime: to follow a link is to read it
        assert (after.st_ino, after.st_mode, after.st_ctime_ns) == (before.st_ino, before.st_mode, before.st_ctime_ns)


def test_openssl_finds_the_ca_by_its_hash(grid: Grid) -> None:
    context = SSL.Context(SSL.TLS_METHOD)
    context.load_verify_locations(None, str(grid.trust_dir))
    store = context.get_cert_store()
    assert store is not None
    host = crypto.X509.from_cryptography(x509.load_pem_x509_certificate(grid.host_files[0].read_bytes()))
    crypto.X509StoreContext(store, host).verify_certificate()


def test_the_old_hash_is_the_one_openssl_knew(tmp_path: Path) -> None:
    # `openssl x509 -subject_hash` and `-subject_hash_old` of /O=Grid/CN=Tést
    ca = CertificateAuthority.create(tmp_path, r"/O=Grid/CN=T\xC3\xA9st", Grid(tmp_path / "grid").now, kind=P256)
    assert certificates.subject_hashes(ca.certificate) == ("e82dccf8", "022b5e39")


def test_the_signing_policy_names_the_ca_and_its_namespace(grid: Grid) -> None:
    text = next(grid.trust_dir.glob("*.signing_policy")).read_text()
    (policy,) = parse_signing_policy(text)
    assert (policy.ca, policy.patterns) == ("/O=Grid/CN=Test CA", ("/O=Grid/*",))


def test_two_cas_of_one_name_share_a_hash_in_peace(grid: Grid, tmp_path: Path) -> None:
    twin = CertificateAuthority.create(tmp_path / "twin", "/O=Grid/CN=Test CA", grid.now, kind=P256)
    publish_to(twin, grid.trust_dir)
    publish_to(twin, grid.trust_dir)
    stem = certificates.subject_hashes(twin.certificate)[0]
    assert {path.name for path in grid.trust_dir.glob(f"{stem}.*")} == {
        f"{stem}.{end}" for end in ("0", "1", "r0", "r1", "signing_policy")
    }


def test_a_ca_is_loaded_again_with_its_revocations(grid: Grid) -> None:
    users = [grid.user(f"/O=Grid/CN=user{number}").certificate for number in range(2)]
    grid.ca.revoke(users[0], grid.now)
    again = CertificateAuthority.load(grid.ca.directory)
    again.revoke(users[1], grid.now)
    again.revoke(users[1], grid.now)
    crl = x509.load_pem_x509_crl(next(grid.trust_dir.glob("*.r0")).read_bytes())
    assert {entry.serial_number for entry in crl} == {cert.serial_number for cert in users}
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 4
    assert again.kind is KeyKind.P256


def test_a_ca_is_never_overwritten(grid: Grid) -> None:
    with fails(Kind.BAD_CONFIG):
        CertificateAuthority.create(grid.ca.directory, "/O=Grid/CN=Other", grid.now, kind=P256)
    assert CertificateAuthority.load(grid.ca.directory).certificate == grid.ca.certificate


def test_a_ca_takes_no_crl_of_the_one_before_it_for_its_own(grid: Grid) -> None:
    """Its files may have been moved away by hand, and not all of them: everything would be refused."""
    shutil.rmtree(grid.trust_dir)
    for name in ("cacert.pem", "cakey.pem"):
        (grid.ca.directory / "ca" / name).unlink()
    made = CertificateAuthority.create(grid.ca.directory, str(grid.ca.issued.dn), grid.now)
    trust = load_trust(TlsSettings(ca_dir=made.trust_dir))
    assert trust.check((made.issue_user(JANE, grid.now).certificate, made.certificate), grid.now) > grid.now


def test_a_missing_ca_is_a_clear_error(tmp_path: Path) -> None:
    with fails(Kind.BAD_CONFIG):
        CertificateAuthority.load(tmp_path)


def test_a_ca_revokes_only_its_own(grid: Grid, tmp_path: Path) -> None:
    other = Grid(tmp_path / "other", "/O=Other/CN=Other CA")
    with pytest.raises(CheloniaError, match="another CA"):
        grid.ca.revoke(other.user().certificate, grid.now)


def test_a_ca_does_not_revoke_what_another_of_its_name_has_issued(grid: Grid, tmp_path: Path) -> None:
    """All clusters of `cheloniad init` have a CA of one name. The certificate would stay good, and be told revoked."""
    other = CertificateAuthority.create(tmp_path / "other", str(grid.ca.issued.dn), grid.now, kind=KeyKind.P256)
    cert = other.issue_user("/O=Grid/CN=Jane Doe", grid.now).certificate
    assert cert.issuer == grid.ca.certificate.subject
    with fails(Kind.BAD_REQUEST):
        grid.ca.revoke(cert, grid.now)


def test_of_two_revocations_at_once_none_is_lost(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    certs = [grid.user(f"/O=Grid/CN=User {n}").certificate for n in range(2)]
    both, read = threading.Barrier(2), CertificateAuthority._revoked

    def revoked(ca: CertificateAuthority) -> Any:
        found = read(ca)
        with suppress(threading.BrokenBarrierError):  # one waits for the other in vain
            both.wait(0.5)
        return found

    monkeypatch.setattr(CertificateAuthority, "_revoked", revoked)
    monkeypatch.setattr(os, "getpid", threading.get_ident)  # as of two processes
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda cert: grid.ca.revoke(cert, grid.now), certs))
    assert {cert.serial_number for cert in certs} == set(read(grid.ca))


def test_what_is_written_stays_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new name lasts when its directory is on the disk; a revocation that was told is none before that."""
    synced, sync = list[tuple[int, bool]](), os.fsync
    path = tmp_path / "file"
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append((os.fstat(fd).st_ino, path.exists())), sync(fd)))
    write_file(path, b"x", 0o400)
    assert synced == [(path.stat().st_ino, False), (path.parent.stat().st_ino, True)]


def test_a_full_disk_is_left_without_a_part_of_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, b"before", 0o400)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"x", 0o400)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"before")]


def test_a_ca_that_has_expired_is_renewed_and_what_it_issued_stays_good(tmp_path: Path) -> None:
    past = Ms(real_now_ms() - (CA_LIFETIME_S + 3600) * 1000)
    ca = CertificateAuthority.create(tmp_path, "/O=Grid/CN=Test CA", past, kind=P256)
    files = {path.name for path in ca.trust_dir.iterdir()}
    host = ca.issue_host(HOST, ["localhost"], past, lifetime_s=2 * CA_LIFETIME_S)
    host.write(tmp_path / "hostcert.pem", tmp_path / "hostkey.pem")
    settings = TlsSettings(cert=tmp_path / "hostcert.pem", key=tmp_path / "hostkey.pem", ca_dir=ca.trust_dir)

    def greet() -> None:
        store = TlsStore(settings, real_now_ms)
        _, server_side = handshake(store.server_context(ClientCertificate.REQUIRED), store.client_context())
        assert store.identify(server_side).dn == HOST

    with pytest.raises((ssl.SSLError, CheloniaError)):
        greet()
    renewed = ca.renew(real_now_ms())
    assert renewed.certificate.public_key() == ca.certificate.public_key()
    greet()
    assert {path.name for path in ca.trust_dir.iterdir()} == files, "it stands where the old one stood"
    assert CertificateAuthority.load(tmp_path).certificate == renewed.certificate
    below = ca_below(ca, tmp_path / "sub", "/O=Grid/CN=Sub CA", real_now_ms())
    with pytest.raises(CheloniaError, match="above it"):
        below.renew(real_now_ms())


def test_a_host_certificate_names_its_hosts(grid: Grid) -> None:
    cert = x509.load_pem_x509_certificate(grid.host_files[0].read_bytes())
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    with pytest.raises(CheloniaError):
        grid.ca.issue_host("/O=Grid/CN=x", [], grid.now)


def test_a_proxy_file_holds_leaf_key_and_chain_in_that_order(grid: Grid) -> None:
    path = grid.root / "x509up"
    grid.proxy(grid.user(), 2).write_proxy(path)
    kinds = [line for line in path.read_text().splitlines() if line.startswith("-----BEGIN")]
    cert, key = "-----BEGIN CERTIFICATE-----", "-----BEGIN PRIVATE KEY-----"
    assert kinds == [cert, key, cert, cert]
    assert mode(path) == 0o600
    chain = x509.load_pem_x509_certificates(path.read_bytes())
    assert subject_dn(chain[2]) == JANE
    assert subject_dn(chain[0]).startswith(subject_dn(chain[1]) + "/CN=")


def test_a_proxy_ends_no_later_than_its_user(grid: Grid) -> None:
    user = grid.ca.issue_user(JANE, grid.now, lifetime_s=60)
    proxy = make_proxy(user, grid.now, kind=P256)
    assert proxy.certificate.not_valid_after_utc == user.certificate.not_valid_after_utc


def test_proxies_say_what_they_are(grid: Grid) -> None:
    proxy = grid.proxy(grid.user(), limited=True).certificate
    assert proxy.extensions.get_extension_for_oid(PROXY_CERT_INFO).critical
    assert proxy_language(proxy) == LIMITED
    assert proxy_language(grid.user().certificate) is None


def test_rsa_keys_have_2048_bits() -> None:
    key = make_key(KeyKind.RSA)
    assert isinstance(key, rsa.RSAPrivateKey)
    assert key.key_size == 2048


def test_a_key_on_a_curve_that_nobody_knows_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("""-----BEGIN EC PRIVATE KEY-----
MD4CAQEEDsAblb32hFvv7PHhXUuboAcGBSuBBAAGoSADHgAEFz6EDP9YpvDLBfKS
N9QN6/2a0sfa3h0l6ngMkQ==
-----END EC PRIVATE KEY-----""")  # secp112r1, of `openssl ecparam`
    with pytest.raises(CheloniaError, match="not supported"):
        certificates.load_key(tmp_path / "key")
