"""`cheloniad admit` on a host of the cluster and `cheloniad join` on a new one: adds a host to a cluster.

`admit` alone, which root runs, reads the key of the CA; no daemon has it. The key of a new host never leaves it.
A `join` that was killed, wherever, can be repeated: each step is done only where it was not done before. `admit` knows
whether a present certificate came from an earlier one.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.ports.ahash import AHash, AHashStatus, GroupChange, GroupStep
from chelonia.core.ports.librarian import Librarian, ServiceRecord
from chelonia.durable_files import write_file
from chelonia.hosting.ahash_replica import settings_of
from chelonia.hosting.config import AHashSection, NodeConfig, PeerEntry, load_config, read_secret
from chelonia.hosting.net.certificates import (
    CertificateAuthority,
    Issued,
    KeyKind,
    PrivateKey,
    chain_pem,
    key_at,
    key_pem,
    make_key,
    publish_whole,
)
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.credential_files import CredentialFiles
from chelonia.hosting.net.credentials import CredentialSurroundings, explain_chain, find_credential
from chelonia.hosting.net.identity import has_issued, identity_of_chain, name_from_dn, subject_dn
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_ahash, remote_librarian
from chelonia.hosting.net.tls import TlsSettings, TlsStore, load_trust
from chelonia.hosting.setup import admission, host_files
from chelonia.hosting.setup.admission import AdmissionRequest, AdmissionToken, Expected, Offer
from chelonia.hosting.setup.admission_door import Door, Knock
from chelonia.hosting.setup.cli_ca import host_subject, whole_number
from chelonia.hosting.setup.cli_init import add_places, places_of
from chelonia.hosting.setup.dev import load_issued
from chelonia.hosting.setup.first_config import (
    ADMISSION,
    REPLICA,
    HostFacts,
    HostPaths,
    check_host,
    hosts_of,
    url,
)

MINUTES: Final = 60
"""Default lifetime of a token."""
MINUTES_MAX: Final = 24 * 60
CAS_MAX: Final = 5
"""CAs named to a person; a program gets all."""
NEW_KEY: Final = KeyKind.P256
SERVICES: Final = {
    Role.AHASH: "AHash", Role.LIBRARIAN: "Librarian", Role.BARTENDER: "Bartender", Role.SHEPHERD: "Shepherd",
}  # fmt: skip
"""Services of a host, as addresses name them."""


def add_to(verbs: Any) -> None:
    """Add both verbs to the parser's subcommands."""
    admit = verbs.add_parser(
        "admit",
        help="let another host join the cluster",
        description="Prints a one-time token for HOST and waits until `cheloniad join` there has used it; shows the "
        "request, and signs and admits when it is approved. Run on a host of the cluster, as an administrator (root).",
    )
    admit.add_argument("host", metavar="HOST", help="the new host's name as others reach it")
    admit.add_argument("--yes", action="store_true", help="approve without asking whoever has the token")
    admit.add_argument(
        "--json", action="store_true",
        help="for programs: a line of JSON for each step; `y` on standard input approves, anything else refuses",
    )  # fmt: skip
    admit.add_argument(
        "--minutes", type=whole_number(1, MINUTES_MAX), default=MINUTES, help=f"how long to wait (default {MINUTES})"
    )
    admit.add_argument("--listen", default="0.0.0.0", metavar="ADDRESS", help="where to wait (default: everywhere)")
    add_places(admit, new=False)
    admit.set_defaults(act=_admit)

    join = verbs.add_parser(
        "join",
        help="set up this host as one more of a cluster",
        description="Makes a key, has it certified by the host that runs `cheloniad admit`, and writes the "
        "configurations. Run as root; the daemons run as ACCOUNT.",
    )
    join.add_argument("door", metavar="HOST:PORT", help="the address that `cheloniad admit` printed")
    join.add_argument("--as", required=True, metavar="HOST", dest="host", help="this host's name, as admitted")
    join.add_argument("--token", default="", help="the token that `admit` printed (default: `join` asks for it)")
    join.add_argument(
        "--site-certificate", action="store_true", help="use the host certificate and the CAs that are there"
    )
    add_places(join)
    join.set_defaults(act=_join)


# --- admit -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Home:
    """The host on which `admit` runs: its files, its core with its A-Hash, its CA (None: the site has its own)."""

    places: HostPaths
    core: NodeConfig
    ahash: AHashSection
    ca: CertificateAuthority | None

    @property
    def port(self) -> int:
        """The cluster's first port."""
        own = next(each for each in self.ahash.replicas if each.id == self.ahash.replica_id)
        return own.port - REPLICA

    @property
    def other_cas(self) -> tuple[Dn, ...]:
        """CAs trusted here beside the one that certifies newcomers."""
        if self.ca is None:
            return ()
        return tuple(dn for dn, key in _trusted(self.core) if (dn, key) != _own(self.ca))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that this one knows, itself first."""
        addresses = [self.ahash.id]
        if self.places.shepherd.exists():
            shepherd = load_config(self.places.shepherd).shepherd
            addresses += shepherd.librarians if shepherd is not None else ()
        return hosts_of(addresses)


def _admit(options: argparse.Namespace) -> int:
    return asyncio.run(_admitting(options, check_host(options.host)))


async def _admitting(options: argparse.Namespace, name: str) -> int:
    home = _home(places_of(options))
    settings = _administrator(home)
    host_files.check_resolves(name)
    link = open_link(TlsStore(settings, SystemClock().now_ms))
    async with link.client:
        assert home.core.librarian is not None, "a core has a Librarian"
        ports = _HomePorts(
            remote_ahash(link, (home.ahash.id,), RetryLimits()),
            remote_librarian(link, (home.core.librarian.id,), RetryLimits()),
        )
        reporter = _Reporter(json=options.json)
        desk = _Desk(home, ports, name, reporter, approve_all=options.yes)
        await desk.look()
        door = Door(desk.secret, desk.decide)
        token = AdmissionToken(door.pin, desk.secret)
        port = home.port + ADMISSION
        opened = functools.partial(_report_token, reporter, home, name, token, options.minutes)
        await door.run(options.listen, port, options.minutes * 60, opened)
        status = await ports.ahash.status(Call(request_id="admit").strongly())
    named = host_files.name_replicas(home.places.core, _replicas(status))
    _report_admitted(reporter, home, name, _to_name(home, name, status, named=named))
    return 0


def _replicas(status: AHashStatus) -> tuple[PeerEntry, ...]:
    """Return the members of the A-Hash's group, as a configuration names them."""
    found = []
    for view in status.replicas:
        host, _, port = view.address.rpartition(":")
        found.append(PeerEntry(view.replica, host, int(port), view.dn))
    return tuple(found)


def _to_name(home: _Home, name: str, status: AHashStatus, *, named: bool) -> tuple[str, ...]:
    """Return the hosts whose configuration does not name the newcomer's replica. `named`: that of this host does."""
    own = {home.hosts[0]} if named else set()
    return tuple(each for each in hosts_of(view.address for view in status.replicas) if each not in {name, *own})


@dataclass(frozen=True, slots=True)
class _Reporter:
    """Prints for a person, or for a program."""

    json: bool

    def report(self, text: str, event: str, **facts: object) -> None:
        """Print the text, or the event with its facts in one line."""
        print(json.dumps({"event": event, **facts}) if self.json else text, flush=True)


def _home(places: HostPaths) -> _Home:
    """Return the set-up of this host. Raises: BAD_CONFIG with the cure."""
    if not places.core.exists():
        cause = "there is no such configuration: `cheloniad admit` runs on a host that `init` or `join` has set up"
        raise CheloniaError(Kind.BAD_CONFIG, "admit", str(places.core), cause)
    core = load_config(places.core)
    if core.ahash is None or not core.ahash.replica_id:
        cause = "it hosts no replica of an A-Hash: run `cheloniad admit` on a host that does"
        raise CheloniaError(Kind.BAD_CONFIG, "admit", str(places.core), cause)
    if core.librarian is None or core.bartender is None:
        cause = "it hosts no Librarian, or no Bartender: run `cheloniad admit` on a host that does"
        raise CheloniaError(Kind.BAD_CONFIG, "admit", str(places.core), cause)
    _secret(core)
    return _Home(places, core, core.ahash, _own_ca(places, core) if (places.grid / "ca").exists() else None)


def _secret(core: NodeConfig) -> str:
    """Return the secret of the Bartenders. Raises: BAD_CONFIG when no message can carry it."""
    assert core.bartender is not None, "a core has a Bartender"
    path = Path(core.bartender.token_key_file)
    try:
        return read_secret(path).decode()
    except UnicodeDecodeError as error:
        cause = "it is no text (UTF-8), which `cheloniad admit` could hand on: set the new host up by hand"
        raise CheloniaError(Kind.BAD_CONFIG, "admit", str(path), cause) from error


def _own_ca(places: HostPaths, core: NodeConfig) -> CertificateAuthority:
    """Return the CA whose key is here. Raises: BAD_CONFIG when the hosts trust another in its place: they would refuse
    its certificates, and a newcomer would trust no other CA."""
    ca = CertificateAuthority.load(places.grid)
    if _own(ca) not in _trusted(core):
        cause = (
            f"this CA, {_own(ca)[0]}, is not trusted here any more (it is not in {core.tls.ca_dir}): move it away "
            "and put the directory `ca` of the CA that has taken its place there"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "admit", str(places.grid / "ca"), cause)
    _check_issuer(core, _own(ca)[0])
    return ca


def _check_issuer(core: NodeConfig, ca: Dn) -> None:
    """Raises: BAD_CONFIG when the nodes refuse hosts of a CA that they trust for users."""
    if core.trust.issuers and ca not in core.trust.issuers:
        cause = (
            f"[trust] issuers does not name {ca}: all nodes would refuse its hosts; name it on each, and restart that"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "admit", cause=cause)


def _own(ca: CertificateAuthority) -> tuple[Dn, CertificatePublicKeyTypes]:
    """Return a CA's name and key, which identify it: its certificate may have been renewed."""
    return subject_dn(ca.certificate), ca.certificate.public_key()


def _trusted(core: NodeConfig) -> list[tuple[Dn, CertificatePublicKeyTypes]]:
    trust = load_trust(TlsSettings(ca_dir=Path(core.tls.ca_dir)))
    return [(subject_dn(each), each.public_key()) for each in trust.cas]


def _administrator(home: _Home) -> TlsSettings:
    """Return the credential of the person who runs this. Raises: BAD_CONFIG naming the places tried, DENIED."""
    around = CredentialSurroundings(os.environ, Path.home(), os.getuid())
    credential = find_credential(CredentialFiles(), around, SystemClock().now_ms())
    if credential.dn not in home.core.trust.administrators:
        names = ", ".join(home.core.trust.administrators)
        cause = f"you are {credential.dn}; administrators here are: {names}. Set X509_USER_CERT and X509_USER_KEY"
        raise CheloniaError(Kind.DENIED, "admit", cause=cause)
    return credential.settings(TlsSettings(ca_dir=Path(home.core.tls.ca_dir)))


def _report_token(reporter: _Reporter, home: _Home, name: str, token: AdmissionToken, minutes: int) -> None:
    site, lines = "", []
    if home.ca is None:
        site = " --site-certificate"
        lines = [
            f"There is no CA in {home.places.grid}: {name} has to have a host certificate of the site already.",
            "If `cheloniad init` made a CA on another host, run `cheloniad admit` there.\n",
        ]
    command = f"cheloniad join {home.hosts[0]}:{home.port + ADMISSION} --as {name} --token {token}{site}"
    lines += [
        f"On {name}, as root, within {minutes} minutes:\n\n    {command}\n",
        "The token is a secret, for this host and this once. Waiting ...",
    ]
    reporter.report("\n".join(lines), "waiting", host=name, token=str(token), command=command, minutes=minutes)


def _report_admitted(reporter: _Reporter, home: _Home, name: str, to_name: Sequence[str] = ()) -> None:
    lines = [f"{name} has its certificate and configuration. It starts with: {host_files.START}"]
    librarian = url(name, home.port, "Librarian") if name not in home.hosts else ""
    if librarian:
        lines.append(
            "The Shepherds of the earlier hosts report to it by themselves. So that they also find it when they start "
            f"while the others are gone, add {librarian} to `librarians` in their {home.places.shepherd}."
        )
    if to_name:
        lines.append(
            f"So that the newcomer can fill their replicas should these lose their disks, have `replicas` in "
            f"{home.places.core} of {', '.join(to_name)} say what it says on {name}."
        )
    others = home.other_cas
    if others:
        lines.append(
            f"It trusts one CA, {_own(home.ca)[0] if home.ca else ''}; this host trusts {len(others)} more: "
            f"{', '.join(others[:CAS_MAX])}{', ...' if len(others) > CAS_MAX else ''}. Where hosts or users "
            f"have certificates of those, copy their files from {home.core.tls.ca_dir} to {name} before it starts."
        )
    left = {"librarian_to_add": librarian, "cas_to_add": list(others), "replicas_to_name": list(to_name)}
    reporter.report("\n".join(lines), "admitted", host=name, **left)


@dataclass(frozen=True, slots=True)
class _HomePorts:
    """The services of the home host, called as the administrator."""

    ahash: AHash
    librarian: Librarian


class _Desk:
    """Decides about one host, by `admission`, the administrator and the A-Hash."""

    def __init__(self, home: _Home, ports: _HomePorts, name: str, reporter: _Reporter, *, approve_all: bool) -> None:
        self._home, self._ahash, self._librarian = home, ports.ahash, ports.librarian
        self._name, self._reporter, self._approve_all = name, reporter, approve_all
        self.secret = SystemIds().token(admission.SECRET_BYTES)

    async def look(self, dn: Dn | None = None) -> Expected:
        """Ask the A-Hash for its members. `dn`: the newcomer's, "" while it may have any; None: before any request.

        Raises: EXISTS, or what the A-Hash raises.
        """
        status = await self._ahash.status(Call(request_id="admit").strongly())
        home = self._home
        address = f"{self._name}:{home.port + REPLICA}"
        if dn is None:
            dn = Dn("") if admission.may_be_his(status.replicas, address) else self._subject()
        taken = [Dn(each) for each in home.core.trust.administrators]
        expected = Expected(self._name, dn, self.secret, address, status.replicas, taken)
        admission.check_free(expected)
        return expected

    async def decide(self, request: AdmissionRequest, origin: str) -> Offer:
        """Admit, or raise, as `admission_door.Decide`."""
        now = SystemClock().now_ms()
        csr = admission.judge(request, await self.look(Dn("")), now)
        chain: tuple[x509.Certificate, ...] = ()
        if self._home.ca is None or request.certificate:
            chain = self._certified(request, csr)
            _check_issuer(self._home.core, identity_of_chain(chain).issuer)
        expected = await self.look(subject_dn(chain[0]) if chain else self._subject())
        await self._approved(expected.dn, admission.fingerprint(csr), origin)
        if self._home.ca is not None and not chain:
            public = csr.public_key()
            chain = self._home.ca.certify(expected.dn, [self._name], now, public)  # type: ignore[arg-type]
        return self._offer(expected.dn, chain, await self._member(expected))

    def _subject(self) -> Dn:
        """Return the subject that our CA gives a newcomer; "" where the site has its own."""
        return host_subject(self._home.ca, self._name) if self._home.ca is not None else Dn("")

    def _certified(
        self, request: AdmissionRequest, csr: x509.CertificateSigningRequest
    ) -> tuple[x509.Certificate, ...]:
        """Return the newcomer's certificate: the site's, or one of our CA, from a `join` that was killed.

        Raises: UNTRUSTED, BAD_REQUEST.
        """
        ca = self._home.ca
        if not request.certificate:
            cause = "this cluster has no CA, its hosts have the site's certificates: join with --site-certificate"
            raise CheloniaError(Kind.BAD_REQUEST, "join", self._name, cause)
        chain = admission.own_certificate(request, csr)
        if ca is not None and not has_issued(ca.certificate, chain[0]):
            cause = (
                "this cluster has a CA of its own, and the certificate is not of it: move hostcert.pem and hostkey.pem "
                "away, and join without --site-certificate"
            )
            raise CheloniaError(Kind.BAD_REQUEST, "join", self._name, cause)
        now = SystemClock().now_ms()
        reasons = explain_chain(chain, load_trust(TlsSettings(ca_dir=Path(self._home.core.tls.ca_dir))), now)
        if reasons:
            cause = f"its certificate is not accepted here: {'; '.join(reasons)}"
            raise CheloniaError(Kind.UNTRUSTED, "join", self._name, cause)
        return chain

    async def _approved(self, dn: Dn, fingerprint: str, origin: str) -> None:
        """Ask the administrator to approve, unless all are approved. Raises: DENIED."""
        text = f"\n{self._name} asks to join, from {origin}\n  identity        {dn}\n  key fingerprint {fingerprint}"
        self._reporter.report(text, "asks", host=self._name, origin=origin, dn=dn, fingerprint=fingerprint)
        if self._approve_all:
            return
        if not self._reporter.json:
            print("Approve if the new host shows the same fingerprint [y/N]: ", end="", flush=True)
        answer = await _line_of_person()
        if answer.strip().lower() not in ("y", "yes"):
            raise CheloniaError(Kind.DENIED, "admit", self._name, "the administrator said no")

    async def _member(self, expected: Expected) -> AHashStatus:
        """Register its services as approved, and make it a member of the A-Hash's group, unless it is one.

        Raises: what Librarian and A-Hash raise.
        """
        # Registered before it starts: an unknown Shepherd would wait for another word of the administrator.
        call = Call(request_id="admit")
        for role, service in SERVICES.items():
            own_id = ServiceId(url(self._name, self._home.port, service))
            await self._librarian.approve(call, ServiceRecord(role, expected.dn, own_id, True))
        if not admission.replica_of(expected.members, expected.dn):
            await self._ahash.regroup(call, GroupChange(GroupStep.ADD, dn=expected.dn, address=expected.address))
        return await self._ahash.status(call.strongly())

    def _offer(self, dn: Dn, chain: tuple[x509.Certificate, ...], status: AHashStatus) -> Offer:
        home, ca = self._home, self._home.ca
        return Offer(
            dn=dn,
            cluster=status.position.cluster,
            port=home.port,
            replica=admission.replica_of(status.replicas, dn),
            replicas=_replicas(status),
            hosts=tuple(dict.fromkeys((*home.hosts, *hosts_of(view.address for view in status.replicas), self._name))),
            administrators=tuple(map(Dn, home.core.trust.administrators)),
            bartender_secret=_secret(home.core),
            certificate=chain_pem(chain).decode() if ca is not None else "",
            ca=chain_pem([ca.certificate]).decode() if ca is not None else "",
            crl=(home.places.grid / "ca" / "crl.pem").read_text() if ca is not None else "",
            round_trip_ms=settings_of(home.ahash).round_trip_ms,
            issuers=tuple(map(Dn, home.core.trust.issuers)),
        )


async def _line_of_person() -> str:
    """Read a line from standard input, without a thread that would outlive the wait."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(sys.stdin, readable.set)
    except PermissionError:  # a file: it never makes one wait
        return sys.stdin.readline()
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()


# --- join ------------------------------------------------------------------------------------------------------------


def _join(options: argparse.Namespace) -> int:
    places, name = places_of(options), check_host(options.host)
    host, port = _address(options.door)
    if message := host_files.set_up_before(places, name, "join"):
        print(message)
        return 0
    owner = host_files.account(options.account)
    host_files.check_writable(places)
    host_files.check_resolves(name)
    host_files.check_ports(port - ADMISSION)
    host_files.check_free_of_data(places)
    token = admission.parse_token(options.token or _read_token())
    issued = _key(places, site=options.site_certificate)
    knock = Knock(host, port, token)
    try:
        request = _request(name, token, issued)
        offer = knock.ask(request, MINUTES_MAX * 60, lambda: _print_waiting(request))
        _settle(offer, issued, HostFacts(name, offer.dn, offer.replica, options.domain), places, owner)
        knock.received()
    finally:
        knock.close()
    print(f"{name} is set up as replica {offer.replica} of cluster {offer.cluster}. Next, on this host:\n")
    print(f"    {host_files.START}")
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and ADMISSION < int(port) < 65_536):
        cause = "where `cheloniad admit` waits is HOST:PORT; it prints the whole command"
        raise CheloniaError(Kind.BAD_REQUEST, "join", text[:80], cause)
    return host.strip("[]"), int(port)


def _read_token() -> str:
    if sys.stdin.isatty():
        print("Token: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()


def _key(places: HostPaths, *, site: bool) -> Issued:
    """Return the host's key, with its certificate if there is one. Raises: BAD_CONFIG."""
    if site or places.cert.exists():
        return load_issued(places.cert, places.key)
    return Issued((), key_at(places.key, NEW_KEY) if places.key.exists() else make_key(NEW_KEY))


def _request(name: str, token: AdmissionToken, issued: Issued) -> AdmissionRequest:
    csr = x509.CertificateSigningRequestBuilder().subject_name(name_from_dn(f"/CN={name}"))
    pem = csr.sign(issued.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    certificate = chain_pem(issued.chain).decode()
    return AdmissionRequest(admission.VERSION, token.secret.hex(), name, pem, certificate, SystemClock().now_ms())


def _print_waiting(request: AdmissionRequest) -> None:
    csr = x509.load_pem_x509_csr(request.csr.encode())
    print(f"key fingerprint {admission.fingerprint(csr)}\nWaiting for the administrator to approve ...", flush=True)


def _settle(offer: Offer, issued: Issued, host: HostFacts, places: HostPaths, owner: host_files.Account) -> None:
    """Write all of the offer, the core's configuration last. Raises: BAD_REQUEST, EXISTS when it does not fit."""
    host_files.check_secret(places, offer.bartender_secret)
    if offer.certificate:
        _write_certificates(offer, issued.key, places)
    host_files.give(places.key, owner)
    host_files.write_secret(places, owner, offer.bartender_secret)
    host_files.make_data(places, owner)
    host_files.write_configs(host, offer, places, owner, "join")


def _write_certificates(offer: Offer, key: PrivateKey, places: HostPaths) -> None:
    chain = tuple(x509.load_pem_x509_certificates(offer.certificate.encode()))
    ca = x509.load_pem_x509_certificate(offer.ca.encode())
    if chain[0].public_key() != key.public_key() or subject_dn(chain[0]) != offer.dn:
        cause = "the certificate that came back is not for this host's key: install the same release on both"
        raise CheloniaError(Kind.BAD_REQUEST, "join", offer.dn, cause)
    publish_whole(places.ca_dir, ca, offer.crl.encode())
    host_files.readers([places.grid, places.ca_dir])
    if not places.key.exists():
        write_file(places.key, key_pem(key), 0o400)
    if not places.cert.exists():
        write_file(places.cert, chain_pem(chain), 0o444)
