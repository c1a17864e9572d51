"""The first configurations of a host that `cheloniad init` or `cheloniad join` sets up. It never touches a file.

A host runs two nodes under one certificate: `core` (A-Hash replica, Librarian, Bartender) and `shepherd`. All hosts of
a cluster have the same ports, so the addresses of all services follow from the hosts' names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.hosting.config import (
    AHashSection,
    BartenderSection,
    LibrarianSection,
    ListenSection,
    NodeConfig,
    NodeSection,
    PeerEntry,
    ShepherdSection,
    TlsSection,
    TrustedService,
    TrustSection,
)

PORT_FIRST: Final = 60_000
"""The default first port of a cluster, from which the others are counted."""
BARTENDER, CORE, CONTROL, DATA, ADMISSION, FILES, S3, REPLICA = 0, 1, 3, 4, 5, 6, 7, 11
"""Offsets from the first port: users, A-Hash with Librarian, the Shepherd's two, `cheloniad admit`, files as URLs, S3,
the A-Hash's replicas."""
LISTENING: Final = (BARTENDER, CORE, FILES, S3, CONTROL, DATA, REPLICA)
"""Ports on which the nodes of a host listen."""
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Places of a host's files: configurations, certificates in the grid layout, data."""

    conf: Path
    grid: Path
    data: Path

    @property
    def core(self) -> Path:
        return self.conf / "core.toml"

    @property
    def shepherd(self) -> Path:
        return self.conf / "shepherd.toml"

    @property
    def secret(self) -> Path:
        """The secret that all Bartenders share."""
        return self.conf / "bartender.key"

    @property
    def cert(self) -> Path:
        return self.grid / "hostcert.pem"

    @property
    def key(self) -> Path:
        return self.grid / "hostkey.pem"

    @property
    def ca_dir(self) -> Path:
        return self.grid / "certificates"

    @property
    def ahash(self) -> Path:
        return self.data / "core" / "ahash"

    @property
    def backups(self) -> Path:
        return self.data / "core" / "backups"


class ClusterFacts(msgspec.Struct, frozen=True):
    """Facts common to all hosts of a cluster. `hosts`: their names, those to come included. `replicas`: the A-Hash's;
    `round_trip_ms`: longest between them. `issuers`: the CAs of hosts and administrators, empty: any."""

    cluster: str
    port: int
    administrators: tuple[Dn, ...]
    hosts: tuple[str, ...]
    replicas: tuple[PeerEntry, ...]
    round_trip_ms: int = bounds.ROUND_TRIP_MS
    issuers: tuple[Dn, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host: its DNS name, its certificate's subject, its replica's number, its failure domain ("": none)."""

    name: str
    dn: Dn
    replica: int
    domain: str = ""


def check_host(name: str) -> str:
    """Return a host's name, if URLs can have it. Raises: BAD_REQUEST."""
    if len(name) > 253 or not _NAME.fullmatch(name):
        cause = "a host is named as DNS knows it, in lower case: one.example.org"
        raise CheloniaError(Kind.BAD_REQUEST, "host", name[:80], cause)
    return name


def url(host: str, port: int, service: str) -> str:
    """Return the address of a service; `port`: the cluster's first."""
    offset = {"Bartender": BARTENDER, "Shepherd": CONTROL}.get(service, CORE)
    return f"https://{host}:{port + offset}/{service}"


def hosts_of(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts in URLs or `host:port` addresses, each once, in order."""
    found = [urlsplit(each if "://" in each else f"//{each}").hostname or "" for each in addresses]
    return tuple(dict.fromkeys(name for name in found if name))


def core_config(host: HostFacts, cluster: ClusterFacts, places: HostPaths) -> NodeConfig:
    """Return a node of A-Hash replica, Librarian and Bartender. It approves the host's own services."""
    first = cluster.port
    far = {"round_trip_ms": cluster.round_trip_ms} if cluster.round_trip_ms != bounds.ROUND_TRIP_MS else {}
    return NodeConfig(
        node=NodeSection(name="core"),
        listen=(
            ListenSection(first + CORE, ("ahash", "librarian", "metrics")),
            ListenSection(first + BARTENDER, ("bartender",), client_certificate="optional"),
            ListenSection(first + FILES, ("files",), client_certificate="optional"),
            ListenSection(first + S3, ("s3",), client_certificate="optional"),
        ),
        tls=_tls(places),
        trust=_trust(host, cluster, "AHash", "Librarian", "Bartender", "Shepherd"),
        ahash=AHashSection(
            id=url(host.name, first, "AHash"),
            data_dir=str(places.ahash),
            backup_dir=str(places.backups),
            replica_id=host.replica,
            replicas=cluster.replicas,
            tuning={"cluster": cluster.cluster, **far},
        ),
        librarian=LibrarianSection(
            url(host.name, first, "Librarian"), record_key_file=str(places.data / "core" / "record.key")
        ),
        bartender=BartenderSection(url(host.name, first, "Bartender"), str(places.secret)),
    )


def shepherd_config(host: HostFacts, cluster: ClusterFacts, places: HostPaths) -> NodeConfig:
    """Return a node of a Shepherd that reports to the Librarians of all hosts."""
    first = cluster.port
    return NodeConfig(
        node=NodeSection(name="shepherd"),
        listen=(
            ListenSection(first + CONTROL, ("shepherd", "metrics")),
            ListenSection(first + DATA, ("turl",), client_certificate="optional"),
        ),
        tls=_tls(places),
        trust=_trust(host, cluster, "Librarian", "Bartender"),
        shepherd=ShepherdSection(
            id=url(host.name, first, "Shepherd"),
            data_url=f"https://{host.name}:{first + DATA}",
            data_dir=str(places.data / "shepherd" / "replicas"),
            librarians=tuple(url(name, first, "Librarian") for name in cluster.hosts),
            tuning={"domain": host.domain} if host.domain else {},
        ),
    )


def _trust(host: HostFacts, cluster: ClusterFacts, *names: str) -> TrustSection:
    """Return the trust in the administrators, and in these services of the host."""
    services = (TrustedService(name.lower(), url(host.name, cluster.port, name), host.dn) for name in names)
    return TrustSection(cluster.administrators, tuple(services), cluster.issuers)


def _tls(places: HostPaths) -> TlsSection:
    return TlsSection(str(places.cert), str(places.key), str(places.ca_dir))
