"""`cheloniad init`: makes a cluster of one host; `cheloniad admit` and `join` make it one of three.

Each step is done only where it was not done before, so that an `init` that was killed, wherever, can be repeated. It
certifies a key without a certificate, and takes a store that was founded and never used. It writes the core's
configuration last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.durable_files import write_file
from chelonia.hosting.config import PeerEntry
from chelonia.hosting.net.certificates import (
    CERTIFICATE_LIFETIME_S,
    CertificateAuthority,
    KeyKind,
    chain_pem,
    key_at,
)
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.credentials import explain_file
from chelonia.hosting.net.identity import Identity, identity_of_chain, is_for, name_from_dn, names_of, render_dn
from chelonia.hosting.net.tls import TlsSettings, load_trust
from chelonia.hosting.setup import host_files
from chelonia.hosting.setup.cli_ca import base_of, host_subject
from chelonia.hosting.setup.dev import dn_of
from chelonia.hosting.setup.first_config import (
    PORT_FIRST,
    REPLICA,
    ClusterFacts,
    HostFacts,
    HostPaths,
    check_host,
    url,
)

SECRET_BYTES: Final = 32
CA_KEY: Final = KeyKind.P256


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's subcommands."""
    parser = verbs.add_parser(
        "init",
        help="set up the first host of a cluster: CA, certificates, configurations, A-Hash",
        description="Makes what the first host needs, and prints the next commands. Further hosts: `cheloniad admit` "
        "here, `cheloniad join` there. Run as root; the daemons run as ACCOUNT.",
    )
    parser.add_argument("host", metavar="HOST", help="this host's name as others reach it: one.example.org")
    parser.add_argument("--with", nargs="+", default=[], metavar="HOST", dest="others", help="hosts that will join")
    parser.add_argument(
        "--administrator", default="", metavar="WHO",
        help="who administers and owns the root: a person's name, who gets a certificate in ~/.globus, or the DN of "
        "one who has a certificate (default: the DN of ~/.globus/usercert.pem, else `Administrator`)",
    )  # fmt: skip
    parser.add_argument(
        "--organization", default="", metavar="DN",
        help="what the subjects of all certificates begin with (default /O=Grid/O=Chelonia)",
    )  # fmt: skip
    parser.add_argument(
        "--site-certificate", action="store_true",
        help="make no CA: use the host certificate and the CAs in the grid layout that are there",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=PORT_FIRST, help=f"first of 12 ports (default {PORT_FIRST})")
    least, most = bounds.ROUND_TRIP_MS, bounds.ROUND_TRIP_MS_MAX
    parser.add_argument(
        "--round-trip-ms", type=int, default=least, metavar="MS",
        help=f"the longest way between two hosts with metadata, there and back, from {least} (default) to {most}",
    )  # fmt: skip
    add_places(parser)
    parser.set_defaults(act=_init)


def add_places(parser: argparse.ArgumentParser, *, new: bool = True) -> None:
    """Add the options for the places of a host's files; `new`: of a host that is being set up."""
    if new:
        parser.add_argument("--domain", default="", metavar="SITE/RACK", help="failure domain of this host's Shepherd")
        parser.add_argument("--account", default="chelonia", help="whom the daemons run as (default chelonia)")
    for name, path, holds in (
        ("--conf", "/etc/chelonia", "configurations"),
        ("--grid", "/etc/grid-security", "host certificate and key, `certificates` with the CAs, `ca` with a CA's key"),
        ("--data", "/var/lib/chelonia", "data of the nodes"),
    ):
        parser.add_argument(name, type=Path, default=Path(path), metavar="DIR", help=f"{holds} (default {path})")


def places_of(options: argparse.Namespace) -> HostPaths:
    """Return the places of this host's files."""
    return HostPaths(*(path.absolute() for path in (options.conf, options.grid, options.data)))


def _init(options: argparse.Namespace) -> int:
    places, name = places_of(options), check_host(options.host)
    hosts = tuple(dict.fromkeys((name, *map(check_host, options.others))))
    if message := host_files.set_up_before(places, name, "init"):
        print(message)
        return 0
    _check_range("--port", options.port, 1, 65_535 - REPLICA)
    _check_range("--round-trip-ms", options.round_trip_ms, bounds.ROUND_TRIP_MS, bounds.ROUND_TRIP_MS_MAX)
    owner = host_files.account(options.account)
    host_files.check_writable(places)
    host_files.check_resolves(name)
    host_files.check_ports(options.port)
    dn = _site_certificate(places) if options.site_certificate else _own_certificates(places, name, options)
    _check_certificate(places, name)
    host_files.give(places.key, owner)
    administrator = _administrator(options, places)
    host_files.write_secret(places, owner, SystemIds().token(SECRET_BYTES).hex())
    host_files.make_data(places, owner)
    replicas = (PeerEntry(1, name, options.port + REPLICA, dn),)
    founded = host_files.founded_before(places, owner)
    cluster_id = founded or SystemIds().uuid()
    facts = (cluster_id, options.port, (administrator,), hosts, replicas, options.round_trip_ms)
    cluster = ClusterFacts(*facts, _issuers(options, places, administrator))
    host = HostFacts(name, dn, 1, options.domain)
    host_files.check_free_of_shepherd(host, cluster, places, "init")
    if not founded:
        host_files.found(places, cluster_id, owner)
        print(f"A-Hash        founded in {places.ahash}, cluster {cluster_id}")
    _write_client_settings(hosts, options.port, places.ca_dir)
    host_files.write_configs(host, cluster, places, owner, "init")
    _print_next_steps(hosts)
    return 0


def _check_range(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise CheloniaError(Kind.BAD_REQUEST, "init", str(value), f"{option} is from {least} to {most}")


def _own_certificates(places: HostPaths, name: str, options: argparse.Namespace) -> Dn:
    """Make a CA and this host's certificate, where they are missing. Raises: EXISTS for another CA's certificate."""
    if places.cert.exists() and not CertificateAuthority.is_in(places.grid):
        cause = "there is a host certificate of another CA: use it with --site-certificate, or move it away"
        raise CheloniaError(Kind.EXISTS, "init", str(places.cert), cause)
    now = SystemClock().now_ms()
    ca = _authority(places, options.organization, now)
    if not places.cert.exists():
        issued = ca.issue_host(host_subject(ca, name), [name], now, key=key_at(places.key, CA_KEY))
        write_file(places.cert, chain_pem(issued.chain), 0o444)
    dn = dn_of(places.cert, places.key)
    print(f"certificate   {dn}")
    return dn


def _authority(places: HostPaths, organization: str, now: Ms) -> CertificateAuthority:
    """Return the present CA, completed, or a new one. Raises: EXISTS when it is of another organization."""
    # Nobody signs its CRL every month here: it lasts as long as the certificates that have to be renewed anyway.
    lifetime = CERTIFICATE_LIFETIME_S
    base = render_dn_of(organization or "/O=Grid/O=Chelonia")
    if CertificateAuthority.is_in(places.grid):
        ca = CertificateAuthority.load(places.grid)
        if organization and base != base_of(ca):
            cause = f"there is the CA {ca.issued.dn}, not one of {base}: leave --organization, or move the CA away"
            raise CheloniaError(Kind.EXISTS, "init", str(places.grid), cause)
        ca.finish(now, lifetime)
    else:
        subject = f"{base}/CN=Chelonia CA"
        ca = CertificateAuthority.create(places.grid, subject, now, kind=CA_KEY, crl_lifetime_s=lifetime)
        print(f"CA            {ca.issued.dn}; its key is in {places.grid / 'ca'}: keep a copy of it elsewhere")
    host_files.readers([places.grid, places.ca_dir, *places.ca_dir.iterdir()])
    return ca


def _check_certificate(places: HostPaths, name: str) -> None:
    """Raises: EXISTS when it is another host's, as after an `init` with another name; UNTRUSTED."""
    cert = x509.load_pem_x509_certificates(places.cert.read_bytes())[0]
    if not is_for(cert, name):
        named = ", ".join(names_of(cert)) or "nobody"
        cause = f"it names {named}, not {name}: move it away, or name the host that it is for"
        raise CheloniaError(Kind.EXISTS, "init", str(places.cert), cause)
    if reasons := _refused(places.cert, places):
        cause = f"no other host would take it ({reasons}): put what its CA publishes into {places.ca_dir}"
        raise CheloniaError(Kind.UNTRUSTED, "init", str(places.cert), cause)


def _refused(cert: Path, places: HostPaths) -> str:
    """Return why the CAs here do not vouch for a certificate; empty when they do."""
    trust = load_trust(TlsSettings(ca_dir=places.ca_dir))
    return "; ".join(explain_file(cert, trust, SystemClock().now_ms()))


def _site_certificate(places: HostPaths) -> Dn:
    """Return the subject of the present host certificate. Raises: BAD_CONFIG."""
    for path in (places.cert, places.key, places.ca_dir):
        if not path.exists():
            cause = "it is not there: put the site's files where grid software keeps them, or leave --site-certificate"
            raise CheloniaError(Kind.BAD_CONFIG, "site certificate", str(path), cause)
    dn = dn_of(places.cert, places.key)
    print(f"certificate   {dn}")
    return dn


def _administrator(options: argparse.Namespace, places: HostPaths) -> Dn:
    """Return the administrator's DN; make a certificate for a name. Raises: BAD_REQUEST, EXISTS, BAD_CONFIG."""
    wanted, folder = options.administrator, Path.home() / ".globus"
    cert, key = folder / "usercert.pem", folder / "userkey.pem"
    if wanted.startswith("/"):
        return render_dn_of(wanted)
    if cert.exists():
        dn = dn_of(cert, key)
        if wanted and not dn.endswith(f"/CN={wanted}"):
            cause = f"it is the certificate of {dn}: name that DN with --administrator, or move it away"
            raise CheloniaError(Kind.EXISTS, "init", str(cert), cause)
        print(f"administrator {dn}; {cert} was there")
        if reasons := _refused(cert, places):
            print(f"              it is not accepted yet ({reasons}): put what its CA publishes into {places.ca_dir}")
        return dn
    if options.site_certificate:
        cause = "who administers? Give the DN of somebody who has a certificate: --administrator /DC=org/.../CN=Name"
        raise CheloniaError(Kind.BAD_REQUEST, "init", cause=cause)
    ca, now = CertificateAuthority.load(places.grid), SystemClock().now_ms()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # HOME itself may be missing, as a service account's
    issued = ca.issue_user(f"{base_of(ca)}/CN={wanted or 'Administrator'}", now, key=key_at(key, ca.kind))
    write_file(cert, chain_pem(issued.chain), 0o444)
    print(f"administrator {issued.dn}; {cert} and userkey.pem were made")
    return issued.dn


def _issuers(options: argparse.Namespace, places: HostPaths, administrator: Dn) -> tuple[Dn, ...]:
    """Return the only CAs whose certificates may act as hosts and administrators.

    Empty, with a message, while they are not known: hosts of other sites may have other CAs. So may an administrator
    without a certificate here, whom our CA may not certify. Of one whom it may, it is taken to be the CA.
    """
    found = [_identity(places.cert).issuer]
    elsewhere = options.site_certificate
    if not elsewhere:
        ca = CertificateAuthority.load(places.grid).issued.dn
        found.append(ca)
        if issuer := _issuer_at_home(administrator):
            found.append(issuer)
        elif load_trust(TlsSettings(ca_dir=places.ca_dir)).beyond(ca, administrator):
            elsewhere = True
        else:
            print(f"issuers       {administrator} needs a certificate of {ca};")
            print(
                "              if it has one of another CA, name that one too in [trust] issuers of both configurations"
            )
    if not elsewhere:
        return tuple(dict.fromkeys(found))
    print("issuers       any CA here may vouch for administrators and hosts, until [trust] issuers in both")
    print(f"              configurations names theirs; this host's is {found[0]}")
    return ()


def _issuer_at_home(dn: Dn) -> Dn:
    """Return the CA of the certificate in `~/.globus`, "" unless it is of this DN."""
    try:
        identity = _identity(Path.home() / ".globus" / "usercert.pem")
    except (OSError, ValueError, CheloniaError):
        return Dn("")
    return identity.issuer if identity.dn == dn else Dn("")


def _identity(cert: Path) -> Identity:
    return identity_of_chain(tuple(x509.load_pem_x509_certificates(cert.read_bytes())))


def _write_client_settings(hosts: Sequence[str], port: int, ca_dir: Path) -> None:
    """Let `chelonia` find the cluster, unless it has settings already."""
    path = Path.home() / ".config" / "chelonia" / "client.toml"
    lines = [f"ca_dir = {json.dumps(str(ca_dir), ensure_ascii=False)}\n"]
    for key, service in (("bartender", "Bartender"), ("librarian", "Librarian"), ("ahash", "AHash")):
        listed = ", ".join(f'"{url(host, port, service)}"' for host in hosts)
        lines.append(f"{key} = [{listed}]\n")
    text = "".join(lines)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode(), 0o644)
    elif path.read_bytes() != text.encode():
        print(f"client        {path} was there, and stays as it is; for this cluster it needs\n\n{text}")
        return
    print(f"client        {path} has the cluster's addresses for `chelonia`")


def _print_next_steps(hosts: Sequence[str]) -> None:
    name, *others = hosts
    print(f"\n{name} is set up. Next, on this host:\n")
    print(f"    {host_files.START}")
    print("    chelonia admin status")
    for other in others or ["NAME-OF-ANOTHER-HOST"]:
        print(f"    cheloniad admit {other}")


def render_dn_of(text: str) -> Dn:
    """Return a DN, as a person typed it, in the one form that is compared. Raises: BAD_REQUEST."""
    return render_dn(name_from_dn(text))
