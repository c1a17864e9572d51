"""`cheloniad ca`: test certificates in the `/etc/grid-security` layout, for those who have no CA at hand."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.hosting.net.certificates import CertificateAuthority, KeyKind, load_key, make_proxy
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.identity import subject_dn
from chelonia.hosting.net.tls import TlsSettings, load_trust
from chelonia.hosting.setup.dev import load_issued

HOUR_S = 3600
DAY_S = 24 * HOUR_S
DAYS_MAX = 36_500
"""Longest validity, a century: the calendar of certificates ends in 9999."""
_HOST = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9_.-]*|[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")
"""A DNS name, or an address."""
HOST_NAME_MAX = 64 - len("host/")
"""Longest host name: a common name has 64 characters (X.520, `ub-common-name`)."""


def add_to(verbs: Any) -> None:
    """Add the `ca` command to a parser's subcommands."""
    ca = verbs.add_parser(
        "ca",
        help="make test certificates",
        description="A small CA for tests: DIR/certificates is what X509_CERT_DIR names, DIR/ca is the CA's own.",
    )
    acts = ca.add_subparsers(required=True, metavar="ACTION")

    init = _action(acts, "init", _init, "make a CA in DIR")
    init.add_argument("--subject", default="/O=Grid/O=Chelonia Test/CN=Chelonia Test CA", help="its DN in slash form")
    init.add_argument("--key", choices=[kind.value for kind in KeyKind], default=KeyKind.RSA.value, help="key type")

    host = _action(acts, "host", _host, "make a host certificate: DIR/hostcert.pem and hostkey.pem, or --cert/--key")
    host.add_argument("names", nargs="+", metavar="NAME", help="host names and addresses; the first is in the DN")
    host.add_argument("--subject", default="", help="DN (default: the CA's, with CN=host/NAME)")
    _output(host)

    user = _action(acts, "user", _user, "make a user certificate")
    user.add_argument("name", metavar="NAME", help="the person's name, or a whole DN in slash form")
    _output(user)

    proxy = acts.add_parser("proxy", help="make an RFC 3820 proxy of a certificate")
    proxy.add_argument("--cert", required=True, type=Path)
    proxy.add_argument("--key", required=True, type=Path)
    proxy.add_argument("--out", required=True, type=Path, help="one file: proxy, key, chain")
    proxy.add_argument("--hours", type=whole_number(1, 24 * DAYS_MAX), default=12, help="validity, from 1 (default 12)")
    proxy.add_argument("--limited", action="store_true")
    proxy.set_defaults(act=_proxy)

    revoke = _action(acts, "revoke", _revoke, "put a certificate on the CRL")
    revoke.add_argument("cert", type=Path, metavar="CERT")

    _action(acts, "renew", _renew, "sign the CA's own certificate anew, with its key: what it has issued stays good")
    crl = _action(acts, "crl", _crl, "sign the CRL again")
    least = "until the next one is due, from 1 (default: as many as the one before had; the first has 30)"
    crl.add_argument("--days", type=whole_number(1, DAYS_MAX), help=least)


def _action(acts: Any, name: str, act: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = acts.add_parser(name, help=text, description=text)
    parser.add_argument("--dir", required=True, type=Path, help="the CA's directory")
    parser.set_defaults(act=act)
    return parser


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of an option that is a whole number, both ends included."""
    wanted = f"a whole number from {least}" + (f" to {most}" if most is not None else "")

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= (most or int(text))):
            raise argparse.ArgumentTypeError(f"{text} is not {wanted}")
        return int(text)

    return read


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cert", type=Path, help="where the certificate goes")
    parser.add_argument("--key", type=Path, help="where the key goes")
    parser.add_argument("--days", type=whole_number(1, DAYS_MAX), default=395, help="validity, from 1 (default 395)")


def _init(options: argparse.Namespace) -> int:
    ca = CertificateAuthority.create(options.dir, options.subject, SystemClock().now_ms(), kind=KeyKind(options.key))
    print(f"CA {ca.issued.dn}: X509_CERT_DIR={ca.trust_dir}")
    return 0


def _host(options: argparse.Namespace) -> int:
    for name in options.names:
        if not _HOST.fullmatch(name):
            cause = (
                "name the host alone, as one.example.org or 192.0.2.1: no https:// before it, no port or path after it"
            )
            raise CheloniaError(Kind.BAD_REQUEST, "certify host", name[:80], cause)
    ca = CertificateAuthority.load(options.dir)
    subject = options.subject or host_subject(ca, options.names[0])
    issued = ca.issue_host(subject, options.names, SystemClock().now_ms(), lifetime_s=options.days * DAY_S)
    _write(ca, issued, options, options.dir / "hostcert.pem", options.dir / "hostkey.pem")
    return 0


def _user(options: argparse.Namespace) -> int:
    ca = CertificateAuthority.load(options.dir)
    subject = options.name if options.name.startswith("/") else f"{base_of(ca)}/CN={options.name}"
    issued = ca.issue_user(subject, SystemClock().now_ms(), lifetime_s=options.days * DAY_S)
    _write(ca, issued, options, options.dir / "usercert.pem", options.dir / "userkey.pem")
    return 0


def _proxy(options: argparse.Namespace) -> int:
    issuer = load_issued(options.cert, options.key)
    lifetime = options.hours * HOUR_S
    proxy = make_proxy(issuer, SystemClock().now_ms(), lifetime_s=lifetime, limited=options.limited)
    proxy.write_proxy(options.out)
    print(f"proxy {proxy.dn}: X509_USER_PROXY={options.out}")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    ca = CertificateAuthority.load(options.dir)
    try:
        cert = x509.load_pem_x509_certificate(options.cert.read_bytes())
    except ValueError as error:
        raise CheloniaError(Kind.BAD_REQUEST, "revoke", str(options.cert), "it is no certificate") from error
    ca.revoke(cert, SystemClock().now_ms())
    print(
        f"revoked {subject_dn(cert)}; copy {ca.trust_dir} to all hosts, and sign the CRL again (`ca crl`) "
        f"before {ca.crl_due.date()}: then everything is refused"
    )
    return 0


def _crl(options: argparse.Namespace) -> int:
    ca = CertificateAuthority.load(options.dir)
    ca.write_crl(SystemClock().now_ms(), lifetime_s=options.days and options.days * DAY_S)
    print(f"CRL signed again in {ca.trust_dir}, good until {ca.crl_due.date()}")
    return 0


def _renew(options: argparse.Namespace) -> int:
    ca = CertificateAuthority.load(options.dir).renew(SystemClock().now_ms())
    until = ca.certificate.not_valid_after_utc.date()
    print(
        f"CA {ca.issued.dn} is good until {until}, its CRL until {ca.crl_due.date()}; copy {ca.trust_dir} to all hosts "
        "and clients"
    )
    return 0


def base_of(ca: CertificateAuthority) -> str:
    """Return the CA's DN without its last part: its signing policy lets it sign below that."""
    return str(ca.issued.dn).rpartition("/")[0]


def host_subject(ca: CertificateAuthority, name: str) -> Dn:
    """Return the subject of a host's certificate. Raises: BAD_REQUEST for a name that is too long."""
    if len(name) > HOST_NAME_MAX:
        cause = (
            f"it is too long for a certificate's subject, which has {HOST_NAME_MAX} characters for it: name the host "
            "shorter, or, where it is not to join, make its certificate with a subject of its own (`cheloniad ca host "
            "--subject`)"
        )
        raise CheloniaError(Kind.BAD_REQUEST, "certify host", name, cause)
    return Dn(f"{base_of(ca)}/CN=host/{name}")


def _write(ca: CertificateAuthority, issued: Any, options: argparse.Namespace, cert: Path, key: Path) -> None:
    cert, key = options.cert or cert, options.key or key
    if ca.trust_dir.is_dir() and (
        reason := load_trust(TlsSettings(ca_dir=ca.trust_dir)).beyond(ca.issued.dn, issued.dn)
    ):
        raise CheloniaError(Kind.BAD_REQUEST, "certify", issued.dn, f"nobody would accept it: {reason}")
    _check_renewal(issued.dn, cert, key)
    issued.write(cert, key, _owner(key))
    print(f"{issued.dn}: {cert} {key}")


def _check_renewal(subject: Dn, cert: Path, key: Path) -> None:
    """Raises: EXISTS where `cert` is there and no certificate of this subject, or `key` and not that certificate's: a
    key would be gone for good. `write_file` refuses any place that is no ordinary file."""
    elsewhere = "give this one another place (--cert, --key), or move that one away"
    if cert.is_file():
        try:
            found = f"the certificate of {subject_dn(x509.load_pem_x509_certificate(cert.read_bytes()))}"
        except ValueError:
            found = "no certificate"
        if found != f"the certificate of {subject}":
            raise CheloniaError(Kind.EXISTS, "certify", str(cert), f"there is {found} already: {elsewhere}")
    if key.is_file() and not (cert.is_file() and _fit(cert, key)):
        cause = f"there is a key already that is not this certificate's: {elsewhere}"
        raise CheloniaError(Kind.EXISTS, "certify", str(key), cause)


def _owner(key: Path) -> tuple[int, int] | None:
    """Return the owner that a renewed key keeps: the account of the daemons, who read it. None: there is no choice."""
    if os.geteuid() or not key.exists():
        return None
    kept = key.stat()
    return kept.st_uid, kept.st_gid


def _fit(cert: Path, key: Path) -> bool:
    """Return whether a certificate, which may have expired, is of a key."""
    try:
        own = load_key(key).public_key()
    except CheloniaError:
        return False
    return x509.load_pem_x509_certificate(cert.read_bytes()).public_key() == own
