"""The configuration of a node: TOML to frozen dataclasses, refused as a whole when any of it cannot be meant.

Units stand in the names. Unknown keys are refused with the nearest known one. Secrets are never in the file, only
paths to files that others cannot read. A section that is present makes the node host that service. Every key, unit and
default is explained in `conf/` (a test compares). `tuning` holds settings of a service by the names of its own
settings dataclass; what hosting derives (identities, keys) cannot be set there.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chelonia.ahash.service import AHashSettings
from chelonia.bartender.settings import BartenderSettings
from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.librarian import ServiceRecord
from chelonia.hosting.http_client import ClientLimits
from chelonia.hosting.http_server import Limits
from chelonia.hosting.logging_setup import LogSettings
from chelonia.hosting.registry import RegistryPace
from chelonia.hosting.tls import check_key_mode
from chelonia.librarian.settings import LibrarianSettings
from chelonia.shepherd.settings import ShepherdSettings

SERVES = ("ahash", "librarian", "bartender", "shepherd", "turl", "metrics")
"""What a listener may serve. `turl` is a Shepherd's data plane; `metrics` adds /metrics; health is always there."""


@dataclass(frozen=True, slots=True)
class NodeSection:
    """The process. `name` shows in logs; `stop_deadline_ms` is what running requests get after SIGTERM."""

    name: str
    stop_deadline_ms: int = 60_000
    worker_threads: int = 4


@dataclass(frozen=True, slots=True)
class TlsSection:
    """Certificate, key and trust of the node: PEM files, and a directory as `/etc/grid-security/certificates`."""

    cert: str = "/etc/grid-security/hostcert.pem"
    key: str = "/etc/grid-security/hostkey.pem"
    ca_dir: str = "/etc/grid-security/certificates"
    reload_check_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class ListenSection:
    """One listener. `client_certificate`: `required` for services, `optional` for users and TURLs."""

    port: int
    serves: tuple[str, ...]
    host: str = "0.0.0.0"
    client_certificate: str = "required"


@dataclass(frozen=True, slots=True)
class TrustedService:
    """An identity known from the start: `role` ahash, librarian, bartender or shepherd; its id (URL) and DN."""

    role: str
    id: str
    dn: str


@dataclass(frozen=True, slots=True)
class TrustSection:
    """Who counts as what before the registry can be asked. Everybody else is registered and approved there."""

    administrators: tuple[str, ...] = ()
    services: tuple[TrustedService, ...] = ()


@dataclass(frozen=True, slots=True)
class AHashSection:
    """The A-Hash: `id` its URL, `data_dir` its Berkeley DB environment (one process only)."""

    id: str
    data_dir: str
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LibrarianSection:
    """The Librarian: `id` its URL; `ahash` URLs, empty when the A-Hash is in this process."""

    id: str
    ahash: tuple[str, ...] = ()
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BartenderSection:
    """The Bartender: `id` its URL; `librarians` URLs, empty when one is in this process; `token_key_file`: at least
    16 secret bytes, the same on every Bartender."""

    id: str
    token_key_file: str
    librarians: tuple[str, ...] = ()
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShepherdSection:
    """The Shepherd: `id` its URL; `data_url` what TURLs start with; `librarians` URLs of all Librarians (empty when one
    is in this process)."""

    id: str
    data_url: str
    data_dir: str
    librarians: tuple[str, ...] = ()
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A whole configuration. A service section that is None is not hosted here."""

    node: NodeSection
    listen: tuple[ListenSection, ...]
    tls: TlsSection = TlsSection()
    log: LogSettings = LogSettings()
    trust: TrustSection = TrustSection()
    registry: RegistryPace = RegistryPace()
    limits: Limits = Limits()
    client: ClientLimits = ClientLimits()
    ahash: AHashSection | None = None
    librarian: LibrarianSection | None = None
    bartender: BartenderSection | None = None
    shepherd: ShepherdSection | None = None


TUNING: dict[type[Any], tuple[type[Any], frozenset[str]]] = {
    AHashSection: (AHashSettings, frozenset()),
    LibrarianSection: (LibrarianSettings, frozenset({"bootstrap"})),
    BartenderSection: (BartenderSettings, frozenset({"dn", "service_id", "token_key"})),
    ShepherdSection: (ShepherdSettings, frozenset({"service_id", "base_url", "dn", "version"})),
}
"""For each section the settings its `tuning` may name, and those that hosting derives."""


def load_config(path: Path) -> NodeConfig:
    """Read and check a configuration file. Raises: BAD_CONFIG naming file, key and cure."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CheloniaError(Kind.BAD_CONFIG, "read config", str(path), str(error)) from error
    try:
        return parse_config(table)
    except CheloniaError as error:
        raise CheloniaError(error.kind, "read config", f"{path}: {error.subject}", error.cause) from None


def parse_config(table: Mapping[str, Any]) -> NodeConfig:
    """Turn parsed TOML into a configuration. Raises: BAD_CONFIG, `subject` the dotted key."""
    config: NodeConfig = _section(NodeConfig, table, "")
    _check(config)
    return config


def trusted(config: NodeConfig) -> tuple[ServiceRecord, ...]:
    """The identities that the configuration itself approves."""
    services = [
        ServiceRecord(Role(entry.role), Dn(entry.dn), ServiceId(entry.id), True) for entry in config.trust.services
    ]
    admins = [ServiceRecord(Role.ADMINISTRATOR, Dn(dn), ServiceId(""), True) for dn in config.trust.administrators]
    return (*services, *admins)


def read_secret(path: Path) -> bytes:
    """Read a secret file. Raises: BAD_CONFIG when others may read it, or it is shorter than 16 bytes."""
    check_key_mode(path)
    secret = path.read_bytes().strip()
    if len(secret) < 16:
        raise CheloniaError(Kind.BAD_CONFIG, "read secret", str(path), "a secret has at least 16 bytes")
    return secret


def render_config(config: NodeConfig) -> str:
    """The configuration as TOML, every key with the value in force, defaults included."""
    lines: list[str] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.name == "listen":
            for listener in value:
                lines += _render_table("[[listen]]", listener)
        elif value is not None:
            lines += _render_table(f"[{item.name}]", value)
    return "\n".join(lines)


def settings_keys(section: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The keys that `tuning` of a section may name."""
    settings, derived = TUNING[section]
    return {item.name: item for item in dataclasses.fields(settings) if item.name not in derived}


def default_of(item: dataclasses.Field[Any]) -> Any:
    """A field's default; `dataclasses.MISSING` when it must be given."""
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


# --- checks over several keys --------------------------------------------------------------------------------------


def _check(config: NodeConfig) -> None:
    hosted = [name for name in ("ahash", "librarian", "bartender", "shepherd") if getattr(config, name) is not None]
    if not hosted:
        raise _bad("", "the node hosts nothing: add [ahash], [librarian], [bartender] or [shepherd]")
    for index, listener in enumerate(config.listen):
        if listener.port > 65_535:
            raise _bad(f"listen[{index}].port", "a port is a number up to 65535")
        for name in listener.serves:
            if name not in SERVES:
                raise _bad(f"listen[{index}].serves", f"{name!r} is none of: {', '.join(SERVES)}")
            if name not in ("metrics", "turl") and name not in hosted:
                raise _bad(f"listen[{index}].serves", f"{name!r} is not hosted here: add [{name}]")
        if listener.client_certificate not in ("required", "optional"):
            raise _bad(f"listen[{index}].client_certificate", "it is 'required' or 'optional'")
        if listener.client_certificate == "optional" and {"ahash", "librarian"} & set(listener.serves):
            raise _bad(f"listen[{index}].client_certificate", "an A-Hash or Librarian demands certificates: 'required'")
    if config.librarian and not config.librarian.ahash and not config.ahash:
        raise _bad("librarian.ahash", "no A-Hash is hosted here: name the URLs of the A-Hash")
    for name in ("bartender", "shepherd"):
        section = getattr(config, name)
        if section and not section.librarians and not config.librarian:
            raise _bad(f"{name}.librarians", "no Librarian is hosted here: name the URLs of the Librarians")
    roles = [role.value for role in Role if role is not Role.ADMINISTRATOR]
    for index, entry in enumerate(config.trust.services):
        if entry.role not in roles:
            raise _bad(f"trust.services[{index}].role", f"{entry.role!r} is none of: {', '.join(roles)}")
    if config.log.format not in ("text", "json"):
        raise _bad("log.format", "it is 'text' or 'json'")
    if config.log.level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise _bad("log.level", "it is DEBUG, INFO, WARNING or ERROR")


# --- TOML to dataclasses -------------------------------------------------------------------------------------------


def _bad(key: str, cause: str) -> CheloniaError:
    return CheloniaError(Kind.BAD_CONFIG, "", key, cause)


def _section(kind: type[Any], table: Any, path: str) -> Any:
    """Build the dataclass `kind` from a TOML table."""
    if not isinstance(table, dict):
        raise _bad(path, "a table [...] is wanted here")
    items = {item.name: item for item in dataclasses.fields(kind)}
    _refuse_unknown(table, items, path)
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, item in items.items():
        key = f"{path}.{name}" if path else name
        if name == "tuning":
            values[name] = _tuning(kind, table.get(name, {}), key)
        elif name in table:
            values[name] = _value(hints[name], table[name], key)
        elif default_of(item) is dataclasses.MISSING:
            raise _bad(key, "this key must be given")
    return kind(**values)


def _tuning(section: type[Any], table: Any, path: str) -> dict[str, Any]:
    items = settings_keys(section)
    if not isinstance(table, dict):
        raise _bad(path, "a table [...] is wanted here")
    _refuse_unknown(table, items, path)
    hints = typing.get_type_hints(TUNING[section][0])
    return {name: _value(hints[name], value, f"{path}.{name}") for name, value in table.items()}


def _refuse_unknown(table: Mapping[str, Any], items: Mapping[str, Any], path: str) -> None:
    for name in table:
        if name not in items:
            near = difflib.get_close_matches(name, list(items), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(items)}"
            raise _bad(f"{path}.{name}" if path else name, f"unknown key; {hint}")


def _value(hint: Any, value: Any, key: str) -> Any:
    hint = getattr(hint, "__supertype__", hint)
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    origin = typing.get_origin(hint)
    if origin is tuple:
        if not isinstance(value, list):
            raise _bad(key, "a list [...] is wanted here")
        return tuple(_value(typing.get_args(hint)[0], part, f"{key}[{n}]") for n, part in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _bad(key, "a table [...] is wanted here")
        return {name: _value(str, part, f"{key}.{name}") for name, part in value.items()}
    if dataclasses.is_dataclass(hint):
        return _section(hint, value, key)  # type: ignore[arg-type]
    if type(value) is not hint:
        raise _bad(key, f"{_NAMES.get(hint, hint)} is wanted here, this is {_NAMES.get(type(value), type(value))}")
    if hint is int and value < 0:
        raise _bad(key, "a number of at least 0 is wanted here")
    return value


_NAMES: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


# --- dataclasses to TOML -------------------------------------------------------------------------------------------


def _render_table(head: str, value: Any) -> list[str]:
    lines = [head]
    nested: list[str] = []
    for item in dataclasses.fields(value):
        part = getattr(value, item.name)
        if item.name == "tuning":
            nested += _render_tuning(f"{head[:-1]}.tuning]", type(value), part)
        else:
            lines.append(f"{item.name} = {_toml(part)}")
    return [*lines, "", *nested]


def _render_tuning(head: str, section: type[Any], given: Mapping[str, Any]) -> list[str]:
    lines = [head]
    for name, item in settings_keys(section).items():
        lines.append(f"{name} = {_toml(given[name] if name in given else default_of(item))}")
    return [*lines, ""]


def _toml(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        parts = ", ".join(f"{item.name} = {_toml(getattr(value, item.name))}" for item in dataclasses.fields(value))
        return f"{{ {parts} }}"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    return json.dumps(value, ensure_ascii=False)
