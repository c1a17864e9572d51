"""The configuration of a node: TOML to frozen dataclasses, refused as a whole when any of it is wrong.

Names of keys have units. Unknown keys are refused with the nearest known one. The file never holds secrets, only paths
of files that others cannot read. A section that is present makes the node host that service. `conf/` explains every
key, unit and default (a test compares). `tuning` names a service's settings as its own settings dataclass does, but
never what hosting derives (identities, keys).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chelonia.ahash.settings import AHashSettings
from chelonia.bartender.settings import BartenderSettings
from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.names import parse_ln
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.hosting.doors.grants import RegistryPace
from chelonia.hosting.doors.http_server import HttpLimits
from chelonia.hosting.doors.tokens.issuers import Issuer
from chelonia.hosting.logging_setup import LogSettings
from chelonia.hosting.net.http_client import ClientLimits
from chelonia.hosting.net.identity import parse_dn
from chelonia.hosting.net.tls import check_key_mode
from chelonia.librarian.settings import LibrarianSettings
from chelonia.shepherd.settings import ShepherdSettings

SERVES = ("ahash", "librarian", "bartender", "shepherd", "turl", "metrics", "files", "s3")
"""Services of a listener. `turl` is a Shepherd's data plane; `files` and `s3` are doors to the namespace. `metrics`
adds /metrics; health is always there."""
DOORS = ("files", "s3")
"""Those that take every path of their listener."""
SHARED = frozenset(("bartender", *DOORS))
"""Those that several processes may serve at one port: all of them show the same."""

POSITIVE = (
    "node.worker_threads", "tls.reload_check_ms", "registry.refresh_ms", "registry.miss_ms", "registry.keep_ms",
    "limits.header_bytes_max", "limits.body_idle_ms", "limits.send_idle_ms", "limits.connections_max",
    "limits.connections_per_address_max", "limits.connections_per_dn_max", "limits.first_request_ms",
    "limits.keepalive_ms", "limits.handshake_ms", "client.connect_ms", "client.read_idle_ms", "client.send_idle_ms",
    "client.answer_bytes_max",
)  # fmt: skip
"""Keys that are never 0."""
TUNED_POSITIVE = (
    "ahash.batch_max", "ahash.queue_max", "ahash.upkeep_interval_ms",
    "librarian.lease_ms", "librarian.leader_lease_ms", "librarian.tick_ms", "librarian.sweep_interval_ms",
    "librarian.services_interval_ms", "librarian.claim_ms", "librarian.plan_batch", "librarian.copies_max",
    "librarian.flap_returns_max",
    "bartender.durable_copies", "bartender.put_lifetime_ms", "bartender.shepherd_timeout_ms",
    "shepherd.heartbeat_ms", "shepherd.report_retry_ms", "shepherd.tidy_ms", "shepherd.unknown_retry_ms",
    "shepherd.ticket_lifetime_max_ms", "shepherd.scrub_bytes_per_s_max", "shepherd.copy_tries",
    "shepherd.forward_queue_chunks",
)  # fmt: skip
"""The same among the keys of `tuning`."""


@dataclass(frozen=True, slots=True)
class NodeSection:
    """The process. `name` shows in logs; `stop_deadline_ms`: time for running requests after SIGTERM."""

    name: str
    stop_deadline_ms: int = 60_000
    worker_threads: int = 4


@dataclass(frozen=True, slots=True)
class TlsSection:
    """Certificate, key and trust of the node: PEM files, and a directory as `/etc/grid-security/certificates`.
    `voms_dir`: a directory for each organisation, whose `.lsc` files name the signers of VOMS attributes."""

    cert: str = "/etc/grid-security/hostcert.pem"
    key: str = "/etc/grid-security/hostkey.pem"
    ca_dir: str = "/etc/grid-security/certificates"
    reload_check_ms: int = 60_000
    voms_dir: str = "/etc/grid-security/vomsdir"


@dataclass(frozen=True, slots=True)
class ListenSection:
    """One listener. `client_certificate`: `required` for services, `optional` for users and TURLs; `shared`: other
    processes of the same account listen at its port too."""

    port: int
    serves: tuple[str, ...]
    host: str = "0.0.0.0"
    client_certificate: str = "required"
    shared: bool = False


@dataclass(frozen=True, slots=True)
class TrustedService:
    """An identity known from the start: `role` ahash, librarian, bartender or shepherd; its id (URL) and DN."""

    role: str
    id: str
    dn: str


@dataclass(frozen=True, slots=True)
class TrustSection:
    """Identities with a role before the registry can be read. All others are registered and approved there.

    `issuers`: the only CAs whose certificates may act as administrators and services, approved ones too (empty: any).
    """

    administrators: tuple[str, ...] = ()
    services: tuple[TrustedService, ...] = ()
    issuers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """One replica of an A-Hash group. `id`: a number, the same everywhere and never used again. `host`, `port`: where
    the others reach it. `dn`: of its certificate."""

    id: int
    host: str
    port: int
    dn: str


@dataclass(frozen=True, slots=True)
class AHashSection:
    """The A-Hash: `id` its URL, `data_dir` its Berkeley DB environment (one process only).

    `backup_dir`: an existing directory for the backups that `chelonia admin ahash backup` makes (empty: it makes none).
    In a group, `replica_id` names its own entry in `replicas` (0: alone). On `replica_listen`, an address, and that
    entry's port it listens for the others.
    """

    id: str
    data_dir: str
    backup_dir: str = ""
    replica_id: int = 0
    replica_listen: str = "0.0.0.0"
    replicas: tuple[PeerEntry, ...] = ()
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LibrarianSection:
    """The Librarian. `id`: its URL. `ahash`: URLs, empty when the A-Hash is in this process. `record_key_file` keeps
    the cluster's record key for a rebuild (empty: nowhere)."""

    id: str
    ahash: tuple[str, ...] = ()
    record_key_file: str = ""
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BartenderSection:
    """The Bartender.

    - `id` its URL
    - `librarians` URLs, empty when one is in this process
    - `token_key_file`: at least 16 secret bytes, the same on every Bartender
    - `issuers`: of the tokens that the plain door takes
    - `s3_root`: the collection whose collections are buckets
    - `s3_domain`: its subdomains name buckets (empty: none do)
    - `s3_copies`: of a new object
    """

    id: str
    token_key_file: str
    librarians: tuple[str, ...] = ()
    issuers: tuple[Issuer, ...] = ()
    s3_root: str = "/"
    s3_domain: str = ""
    s3_copies: int = bounds.REPLICAS_DEFAULT
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShepherdSection:
    """The Shepherd. `id`: its URL. `data_url`: the start of its TURLs. `librarians`: URLs of all Librarians (empty when
    one is in this process)."""

    id: str
    data_url: str
    data_dir: str
    librarians: tuple[str, ...] = ()
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A whole configuration. The node does not host a service whose section is None."""

    node: NodeSection
    listen: tuple[ListenSection, ...]
    tls: TlsSection = TlsSection()
    log: LogSettings = LogSettings()
    trust: TrustSection = TrustSection()
    registry: RegistryPace = RegistryPace()
    limits: HttpLimits = HttpLimits()
    client: ClientLimits = ClientLimits()
    ahash: AHashSection | None = None
    librarian: LibrarianSection | None = None
    bartender: BartenderSection | None = None
    shepherd: ShepherdSection | None = None


TUNING: dict[type[Any], tuple[type[Any], frozenset[str]]] = {
    AHashSection: (AHashSettings, frozenset({"backup_dir"})),
    LibrarianSection: (LibrarianSettings, frozenset({"bootstrap", "record_key"})),
    BartenderSection: (BartenderSettings, frozenset({"dn", "service_id", "token_key"})),
    ShepherdSection: (ShepherdSettings, frozenset({"service_id", "base_url", "dn", "version"})),
}
"""For each section the settings of its service, and those of them that `tuning` may not name: hosting derives them."""


def load_config(path: Path) -> NodeConfig:
    """Read and check a configuration file. Raises: BAD_CONFIG naming file, key and cure."""
    try:
        return parse_config(_read_table(path))
    except CheloniaError as error:
        raise _in_file(error, path) from None


def parse_config(table: Mapping[str, Any]) -> NodeConfig:
    """Turn parsed TOML into a configuration. Raises: BAD_CONFIG, `subject` the dotted key."""
    config, problems = _read_config(table)
    if config is None:
        raise problems[0]
    return config


def problems_of(
    path: Path, look: Callable[[NodeConfig], Iterable[CheloniaError]] = lambda _: ()
) -> tuple[CheloniaError, ...]:
    """Return everything that is wrong with a configuration file, in the order of its keys; empty when all is well.

    Contradictions between keys count once every key can be read; `look`, for this host, runs once there are none.
    """
    try:
        config, problems = _read_config(_read_table(path))
    except CheloniaError as error:
        config, problems = None, [error]
    if config is not None:
        problems = [*look(config), *(cache_problems(config.ahash) if config.ahash else ())]
    return tuple(_in_file(problem, path) for problem in problems)


def _read_table(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise bad("", getattr(error, "strerror", "") or str(error)) from error


def _read_config(table: Mapping[str, Any]) -> tuple[NodeConfig | None, list[CheloniaError]]:
    """Return the configuration, or None and its problems."""
    reader = _ConfigReader()
    config: NodeConfig | None = reader.section(NodeConfig, table, "")
    problems = reader.problems if config is None else list(_contradictions(config))
    return (None if problems else config), problems


def _in_file(problem: CheloniaError, path: Path) -> CheloniaError:
    subject = f"{path}: {problem.subject}" if problem.subject else str(path)
    return CheloniaError(problem.kind, "read config", subject, problem.cause)


def trusted(config: NodeConfig) -> tuple[ServiceRecord, ...]:
    """Return the identities that the configuration itself approves."""
    services = [
        ServiceRecord(Role(entry.role), Dn(entry.dn), ServiceId(entry.id), True) for entry in config.trust.services
    ]
    admins = [ServiceRecord(Role.ADMINISTRATOR, Dn(dn), ServiceId(""), True) for dn in config.trust.administrators]
    return (*services, *admins)


def files_url(bartender: str, listeners: Sequence[ListenSection]) -> str:
    """Return the URL of this node's plain door, with the host of its Bartender's URL; "" when it has none."""
    ports = [listener.port for listener in listeners if "files" in listener.serves]
    host = urlsplit(bartender).hostname or ""
    return f"https://{f'[{host}]' if ':' in host else host}:{ports[0]}/" if ports and host else ""


def read_secret(path: Path) -> bytes:
    """Read a secret file. Raises: BAD_CONFIG when others may read it, or it is shorter than 16 bytes."""
    check_key_mode(path)
    secret = path.read_bytes().strip()
    if len(secret) < 16:
        raise CheloniaError(Kind.BAD_CONFIG, "read secret", str(path), "a secret has at least 16 bytes")
    return secret


def render_config(config: NodeConfig, *, brief: bool = False) -> str:
    """Return the configuration as TOML, every key with the value in force; `brief`: without default values."""
    lines: list[str] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.name == "listen":
            for listener in value:
                lines += _render_table("[[listen]]", listener, brief)
        elif value is not None and not (brief and value == default_of(item)):
            lines += _render_table(f"[{item.name}]", value, brief)
    return "\n".join(lines)


def settings_keys(section: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the keys that `tuning` of a section may name."""
    settings, derived = TUNING[section]
    return {item.name: item for item in dataclasses.fields(settings) if item.name not in derived}


def default_of(item: dataclasses.Field[Any]) -> Any:
    """Return a field's default; `dataclasses.MISSING` when it must be given."""
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


# --- checks over several keys --------------------------------------------------------------------------------------


def _contradictions(config: NodeConfig) -> Iterator[CheloniaError]:
    hosted = [name for name in ("ahash", "librarian", "bartender", "shepherd") if getattr(config, name) is not None]
    if not hosted:
        yield bad("", "the node hosts nothing: add [ahash], [librarian], [bartender] or [shepherd]")
    yield from _zeros(config)
    yield from _listener_problems(config.listen, hosted)
    yield from _trust_problems(config)
    for key, url in urls_of(config):
        if "://" in url and not _is_https(url):
            yield bad(key, f"{url!r} is no https:// URL with a host and a port, as https://host:60000/...")
    if config.ahash:
        yield from _replica_problems(config.ahash, config.listen)
        yield from _tuning_limits(config.ahash)
    yield from _replica_limits(config)
    if config.bartender:
        yield from _s3_problems(config.bartender)
    if config.librarian and not config.librarian.ahash and not config.ahash:
        yield bad("librarian.ahash", "no A-Hash is hosted here: name the URLs of the A-Hash")
    for name in ("bartender", "shepherd"):
        section = getattr(config, name)
        if section and not section.librarians and not config.librarian:
            yield bad(f"{name}.librarians", "no Librarian is hosted here: name the URLs of the Librarians")
    yield from _issuer_problems(config.bartender.issuers if config.bartender else ())
    if config.log.format not in ("text", "json"):
        yield bad("log.format", "it is 'text' or 'json'")
    if config.log.level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        yield bad("log.level", "it is DEBUG, INFO, WARNING or ERROR")


def _zeros(config: NodeConfig) -> Iterator[CheloniaError]:
    """Yield the keys that are 0 where that would be a loop without a pause, or a node that serves nobody."""
    for key in POSITIVE:
        section, _, name = key.partition(".")
        if not getattr(getattr(config, section), name):
            yield bad(key, "a number of at least 1 is wanted here")
    for key in TUNED_POSITIVE:
        name, _, tuned = key.partition(".")
        role = getattr(config, name)
        if role and role.tuning.get(tuned, 1) < 1:
            yield bad(f"{name}.tuning.{tuned}", "at least 1: 0 does not mean that there is no limit")


def urls_of(config: NodeConfig) -> Iterator[tuple[str, str]]:
    """Yield the URLs of services that a configuration names, each behind its key."""
    yield from ((f"trust.services[{index}].id", entry.id) for index, entry in enumerate(config.trust.services))
    for name in ("ahash", "librarian", "bartender", "shepherd"):
        section = getattr(config, name)
        if section is None:
            continue
        yield f"{name}.id", section.id
        if name == "shepherd":
            yield "shepherd.data_url", section.data_url
        for key in ("ahash", "librarians"):
            yield from ((f"{name}.{key}", url) for url in getattr(section, key, ()))


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # two colons and no brackets, or a port that is none
        return False


def dns_of(config: NodeConfig) -> Iterator[tuple[str, str]]:
    """Yield the DNs that a node compares with those of certificates, each behind its key."""
    trust, replicas = config.trust, config.ahash.replicas if config.ahash else ()
    yield from (("trust.administrators", dn) for dn in trust.administrators)
    yield from (("trust.issuers", dn) for dn in trust.issuers)
    yield from ((f"trust.services[{index}].dn", entry.dn) for index, entry in enumerate(trust.services))
    yield from ((f"ahash.replicas[{index}].dn", entry.dn) for index, entry in enumerate(replicas))


def _trust_problems(config: NodeConfig) -> Iterator[CheloniaError]:
    roles = [role.value for role in Role if role is not Role.ADMINISTRATOR]
    for index, entry in enumerate(config.trust.services):
        if entry.role not in roles:
            yield bad(f"trust.services[{index}].role", f"{entry.role!r} is none of: {', '.join(roles)}")
    for key, dn in dns_of(config):
        if not dn.startswith("/"):
            show = "openssl x509 -noout -subject -nameopt compat"
            yield bad(key, f"{dn!r} is no DN: one starts with /, as `{show}` shows it")


def _replica_problems(section: AHashSection, listeners: Sequence[ListenSection]) -> Iterator[CheloniaError]:
    if not section.replica_id:
        if section.replicas:
            yield bad("ahash.replica_id", "ahash.replicas names a group: say which of them this is")
        return
    own = next((entry for entry in section.replicas if entry.id == section.replica_id), None)
    if own is None:
        yield bad("ahash.replica_id", f"ahash.replicas has no entry with the id {section.replica_id}")
    elif any(listener.port == own.port for listener in listeners):
        yield bad(
            "ahash.replicas", f"port {own.port} of replica {own.id} is that of a listener: give it one of its own"
        )
    for index, entry in enumerate(section.replicas):
        where = f"ahash.replicas[{index}]"
        if not 0 < entry.id < 65_536:
            yield bad(f"{where}.id", "an id is a number from 1 to 65535")
        if not 0 < entry.port < 65_536:
            yield bad(f"{where}.port", "a port is a number from 1 to 65535")
    for key, values in (
        ("id", [str(entry.id) for entry in section.replicas]),
        ("host and port", [f"{entry.host}:{entry.port}" for entry in section.replicas]),
        ("dn", [entry.dn for entry in section.replicas]),
    ):
        if len(set(values)) < len(values):
            yield bad("ahash.replicas", f"two replicas have the same {key}")
    if len(section.replicas) > bounds.REPLICAS_MAX:
        yield bad("ahash.replicas", f"at most {bounds.REPLICAS_MAX} replicas")
    if not section.tuning.get("cluster"):
        yield bad("ahash.tuning.cluster", "a group needs the id of its cluster, the same on every replica")


def _listener_problems(listeners: Sequence[ListenSection], hosted: Sequence[str]) -> Iterator[CheloniaError]:
    ports: dict[int, int] = {}
    for index, listener in enumerate(listeners):
        other = ports.setdefault(listener.port, index)
        hosts = {listener.host, listeners[other].host}
        if other != index and listener.port and (len(hosts) == 1 or hosts & {"0.0.0.0", "::"}):
            cause = f"listen[{other}] and listen[{index}] have the same port, {listener.port}"
            yield bad(f"listen[{index}].port", cause)
    for index, listener in enumerate(listeners):
        if listener.port > 65_535:
            yield bad(f"listen[{index}].port", "a port is a number up to 65535")
        for name in listener.serves:
            if name not in SERVES:
                yield bad(f"listen[{index}].serves", f"{name!r} is none of: {', '.join(SERVES)}")
            elif name in DOORS and "bartender" not in hosted:
                yield bad(f"listen[{index}].serves", f"{name} is served beside a Bartender: add [bartender]")
            elif name in DOORS and len(listener.serves) > 1:
                yield bad(f"listen[{index}].serves", f"{name} has every path of its port: give it one of its own")
            elif name == "s3" and listener.client_certificate != "optional":
                yield bad(f"listen[{index}].client_certificate", "S3 clients sign with keys: 'optional'")
            elif name not in ("metrics", "turl", *DOORS) and name not in hosted:
                yield bad(f"listen[{index}].serves", f"{name!r} is not hosted here: add [{name}]")
        if listener.shared and not SHARED.issuperset(listener.serves):
            yield bad(f"listen[{index}].shared", f"processes share ports of {', '.join(sorted(SHARED))} alone")
        if listener.client_certificate not in ("required", "optional"):
            yield bad(f"listen[{index}].client_certificate", "it is 'required' or 'optional'")
        if listener.client_certificate == "optional" and {"ahash", "librarian"} & set(listener.serves):
            yield bad(f"listen[{index}].client_certificate", "an A-Hash or Librarian demands certificates: 'required'")


def _issuer_problems(issuers: Sequence[Issuer]) -> Iterator[CheloniaError]:
    for index, each in enumerate(issuers):
        where = f"bartender.issuers[{index}]"
        if not each.issuer.startswith("https://") or [other.issuer for other in issuers].count(each.issuer) > 1:
            yield bad(f"{where}.issuer", "an https URL, as the claim iss of its tokens has it; each issuer once")
        if not each.audience:
            yield bad(f"{where}.audience", "say how its tokens name this service, as the URL of this plain door")
        if each.keys.startswith("http://"):
            yield bad(f"{where}.keys", "keys are fetched by https alone")
        try:
            if not each.base_path.startswith("/"):
                raise bad("", "it begins with /")
            parse_ln(each.base_path)
        except CheloniaError as error:
            yield bad(f"{where}.base_path", error.cause)
        for dn in filter(None, (each.identity, *each.subjects.values())):
            try:
                parse_dn(dn)
            except CheloniaError as error:
                yield bad(f"{where}.identity", error.cause)
        if "/" in each.vo:
            yield bad(f"{where}.vo", "the name of an organisation alone, as 'atlas'")


def _s3_problems(section: BartenderSection) -> Iterator[CheloniaError]:
    try:
        parse_ln(section.s3_root)
    except CheloniaError as error:
        yield bad("bartender.s3_root", error.cause)
    if not 1 <= section.s3_copies <= bounds.REPLICAS_WANTED_MAX:
        yield bad("bartender.s3_copies", f"1 to {bounds.REPLICAS_WANTED_MAX} copies")


def _tuning_limits(section: AHashSection) -> Iterator[CheloniaError]:
    least, most = bounds.ROUND_TRIP_MS, bounds.ROUND_TRIP_MS_MAX
    if not least <= section.tuning.get("round_trip_ms", least) <= most:
        yield bad("ahash.tuning.round_trip_ms", f"from {least} to {most} ms, the same on every replica")
    least, most = bounds.CACHE_BYTES_MIN, bounds.CACHE_BYTES_MAX
    if not least <= section.tuning.get("cache_bytes", bounds.CACHE_BYTES) <= most:
        cause = f"a page cache has from {least} ({least >> 20} MiB) to {most} ({most >> 30} GiB) bytes"
        yield bad("ahash.tuning.cache_bytes", f"{cause}; a quarter of a dedicated host's memory is a good size")


def _replica_limits(config: NodeConfig) -> Iterator[CheloniaError]:
    most = bounds.COPIES_IN_FLIGHT_PER_NODE_MAX
    limits = (
        (config.librarian, "librarian", "copies_per_node_max"),
        (config.shepherd, "shepherd", "copies_at_once_max"),
    )
    for section, name, key in limits:
        if section and not 1 <= section.tuning.get(key, most) <= most:
            yield bad(f"{name}.tuning.{key}", f"a Shepherd sends, and takes, 1 to {most} repair copies at once")
    tuning, most = config.shepherd.tuning if config.shepherd else {}, bounds.INLINE_BYTES_MAX
    if not 0 <= tuning.get("segment_replica_bytes_max", 0) <= most:
        yield bad("shepherd.tuning.segment_replica_bytes_max", f"from 0 (every replica is a file) to {most} bytes")
    least = bounds.COPY_BYTES_PER_S_MIN
    if 0 < tuning.get("copy_bytes_per_s_max", 0) < least:
        cause = f"at least {least} bytes/s: a slower copy counts as standing still; 0: as the cluster says"
        yield bad("shepherd.tuning.copy_bytes_per_s_max", cause)


def cache_problems(section: AHashSection) -> Iterator[CheloniaError]:
    """Yield a problem if the configured page cache is too large for this host."""
    most = memory_bytes() // 4 * 3
    if section.tuning.get("cache_bytes", 0) > most:
        cause = f"three quarters of this host's memory are {most} ({most >> 20} MiB), and no page cache is larger"
        yield bad("ahash.tuning.cache_bytes", f"{cause}; a quarter of a dedicated host's memory is a good size")


def memory_bytes() -> int:
    """Return the size of this host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# --- TOML to dataclasses -------------------------------------------------------------------------------------------


def bad(key: str, cause: str) -> CheloniaError:
    """Return a problem of one key."""
    return CheloniaError(Kind.BAD_CONFIG, "", key, cause)


class _ConfigReader:
    """Builds dataclasses from TOML tables and goes on after a problem, to report all of them at once."""

    def __init__(self) -> None:
        self.problems: list[CheloniaError] = []

    def _refuse(self, key: str, cause: str) -> None:
        self.problems.append(bad(key, cause))

    def section(self, kind: type[Any], table: Any, path: str) -> Any:
        """Return the dataclass `kind` of a table; None when anything in it, or before it, is wrong."""
        if not isinstance(table, dict):
            return self._refuse(path, "a table [...] is wanted here")
        items = {item.name: item for item in dataclasses.fields(kind)}
        self._refuse_unknown(table, items, path)
        hints = typing.get_type_hints(kind)
        values: dict[str, Any] = {}
        for name, item in items.items():
            key = f"{path}.{name}" if path else name
            if name == "tuning":
                values[name] = self._tuning(kind, table.get(name, {}), key)
            elif name in table:
                values[name] = self._value(hints[name], table[name], key)
            elif default_of(item) is dataclasses.MISSING:
                self._refuse(key, "this key must be given")
        return None if self.problems else kind(**values)

    def _tuning(self, section: type[Any], table: Any, path: str) -> dict[str, Any] | None:
        items = settings_keys(section)
        if not isinstance(table, dict):
            self._refuse(path, "a table [...] is wanted here")
            return None
        self._refuse_unknown(table, items, path)
        hints = typing.get_type_hints(TUNING[section][0])
        given = {name: value for name, value in table.items() if name in items}
        return {name: self._value(hints[name], value, f"{path}.{name}") for name, value in given.items()}

    def _refuse_unknown(self, table: Mapping[str, Any], items: Mapping[str, Any], path: str) -> None:
        for name in table:
            if name not in items:
                near = difflib.get_close_matches(name, list(items), n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(items)}"
                self._refuse(f"{path}.{name}" if path else name, f"unknown key; {hint}")

    def _value(self, hint: Any, value: Any, key: str) -> Any:
        hint = getattr(hint, "__supertype__", hint)
        if isinstance(hint, types.UnionType):
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
        origin = typing.get_origin(hint)
        if origin is tuple:
            if not isinstance(value, list):
                return self._refuse(key, "a list [...] is wanted here")
            return tuple(self._value(typing.get_args(hint)[0], part, f"{key}[{n}]") for n, part in enumerate(value))
        if origin is not None and issubclass(origin, Mapping):
            if not isinstance(value, dict):
                return self._refuse(key, "a table [...] is wanted here")
            return {name: self._value(str, part, f"{key}.{name}") for name, part in value.items()}
        if dataclasses.is_dataclass(hint):
            return self.section(hint, value, key)  # type: ignore[arg-type]
        if type(value) is not hint:
            wanted, given = _NAMES.get(hint, hint), _NAMES.get(type(value), type(value))
            return self._refuse(key, f"{wanted} is wanted here, this is {given}")
        if hint is int and value < 0:
            return self._refuse(key, "a number of at least 0 is wanted here")
        return value


_NAMES: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


# --- dataclasses to TOML -------------------------------------------------------------------------------------------


def _render_table(head: str, value: Any, brief: bool) -> list[str]:
    lines = [head]
    nested: list[str] = []
    for item in dataclasses.fields(value):
        part = getattr(value, item.name)
        if item.name == "tuning":
            nested += _render_tuning(f"{head[:-1]}.tuning]", type(value), part, brief)
        elif not (brief and part == default_of(item)):
            lines += render_key(item.name, part, brief=brief)
    return [*lines, "", *nested]


def render_key(name: str, value: Any, *, brief: bool) -> list[str]:
    """Return a key's lines: one, or with `brief` a line for each table of a list."""
    if brief and isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return [f"{name} = [", *(f"  {_toml(part)}," for part in value), "]"]
    return [f"{name} = {_toml(value)}"]


def _render_tuning(head: str, section: type[Any], given: Mapping[str, Any], brief: bool) -> list[str]:
    items = settings_keys(section)
    lines = [
        f"{name} = {_toml(given[name] if name in given else default_of(item))}"
        for name, item in items.items()
        if name in given or not brief
    ]
    return [head, *lines, ""] if lines else []


def _toml(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        parts = ", ".join(f"{item.name} = {_toml(getattr(value, item.name))}" for item in dataclasses.fields(value))
        return f"{{ {parts} }}"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    return json.dumps(value, ensure_ascii=False)
