"""The settings of a client: where the cluster is, who the user is, and where each value came from.

Sources, best first:
- Bartender: the caller, a cluster file, ARC_BARTENDER_URL, CHELONIA_BARTENDER_URL, `bartender=` in ~/.arc/client.conf,
  ~/.config/chelonia/client.toml.
- Credentials: the caller, a cluster file, the environment (X509_USER_PROXY and so on), client.conf, client.toml, the
  usual places of grid software.

A cluster file is the `cluster.json` of `cheloniad dev`. It decides URL, CAs and credential together: other credentials
mean nothing there. Never opens a connection or reads a certificate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net.credential_files import CredentialFiles

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_-]*"
"""Names of clusters in `client.toml`."""
TOML_KEYS: Final = frozenset(
    {"bartender", "librarian", "ahash", "replicas", "proxy", "cert", "key", "ca_dir", "ca_file"}
)
"""Keys in `client.toml` of a cluster, or of all."""
OWN_CREDENTIAL: Final = ("X509_USER_PROXY", "ARC_PROXY_FILE", "X509_USER_CERT", "ARC_CERT_FILE")
"""Environment variables that name a credential; any of them overrides the configuration files' credential."""
OWN_CAS: Final = ("X509_CERT_DIR", "ARC_CA_DIR", "ARC_CA_FILE")
CLUSTER_USERS: Final = ("user", "user2", "admin", "service", "anonymous")
"""Users whose credentials a cluster file has."""


class Wish(msgspec.Struct, frozen=True):
    """Settings that the caller names; other sources provide the empty fields.

    `cluster_user`: the user of a cluster file; `anonymous`: show no certificate at all.
    """

    bartenders: tuple[str, ...] = ()
    librarians: tuple[str, ...] = ()
    cluster: Path | None = None
    configuration: Path | None = None
    files: CredentialFiles = msgspec.field(default_factory=CredentialFiles)
    cluster_user: str = ""
    anonymous: bool = False
    ahashes: tuple[str, ...] = ()


class Settings(msgspec.Struct, frozen=True):
    """The settings as decided. `origins`: the source of `bartender`, `credential`, `cas`, `replicas` and others."""

    bartenders: tuple[str, ...]
    librarians: tuple[str, ...]
    files: CredentialFiles
    anonymous: bool
    replicas: int
    origins: Mapping[str, str]
    ahashes: tuple[str, ...] = ()
    s3: tuple[str, ...] = ()

    def bartender_urls(self) -> tuple[str, ...]:
        """Return the Bartenders. Raises: BAD_CONFIG, naming all ways to name one."""
        if not self.bartenders:
            raise CheloniaError(Kind.BAD_CONFIG, "settings", cause=NO_BARTENDER)
        return tuple(checked_url(url, self.origins.get("bartender", "")) for url in self.bartenders)

    def librarian_urls(self) -> tuple[str, ...]:
        """Return the Librarians, for administrators; may be empty."""
        return tuple(checked_url(url, "librarian") for url in self.librarians)

    def ahash_urls(self) -> tuple[str, ...]:
        """Return the A-Hashes, for administrators; may be empty."""
        return tuple(checked_url(url, "ahash") for url in self.ahashes)


NO_BARTENDER: Final = (
    "no Bartender is known: have `chelonia setup NAME --bartender URL` write it into ~/.config/chelonia/client.toml, "
    "give -b URL, set ARC_BARTENDER_URL or CHELONIA_BARTENDER_URL, write bartender=URL into ~/.arc/client.conf, or "
    "name the cluster.json of `cheloniad dev` by --cluster FILE or CHELONIA_CLUSTER"
)


class _Layer(msgspec.Struct, frozen=True):
    """The settings of one source, which `origin` names."""

    origin: str
    bartenders: tuple[str, ...] = ()
    librarians: tuple[str, ...] = ()
    files: CredentialFiles = msgspec.field(default_factory=CredentialFiles)
    replicas: str = ""
    anonymous: bool = False
    ahashes: tuple[str, ...] = ()
    s3: tuple[str, ...] = ()


def settle(wish: Wish, environ: Mapping[str, str], home: Path | None) -> Settings:
    """Decide the settings from the caller's wish, the environment and the configuration files, in that order.

    Raises: BAD_CONFIG, naming the file or variable that makes no sense.
    """
    layers = list(_layers(wish, environ, home))
    origins: dict[str, str] = {}
    files, anonymous = _credential(layers, origins)
    cas = next((layer for layer in layers if layer.files.ca_dir or layer.files.ca_file), None)
    if cas is not None:
        origins["cas"] = cas.origin
    found = cas.files if cas is not None else CredentialFiles()
    replicas = _first(layers, "replicas", "replicas", origins)
    return Settings(
        bartenders=_first(layers, "bartenders", "bartender", origins),
        librarians=_first(layers, "librarians", "librarian", origins),
        files=CredentialFiles(files.proxy, files.cert, files.key, found.ca_dir, found.ca_file),
        anonymous=anonymous,
        replicas=parse_replicas(replicas, origins["replicas"]) if replicas else bounds.REPLICAS_DEFAULT,
        origins=origins,
        ahashes=_first(layers, "ahashes", "ahash", origins),
        s3=_first(layers, "s3", "s3", origins),
    )


def _layers(wish: Wish, environ: Mapping[str, str], home: Path | None) -> Iterator[_Layer]:
    """All sources, best first. The environment's credentials are an empty layer that ends the search for others."""
    yield _Layer("the command line", wish.bartenders, wish.librarians, wish.files, "", wish.anonymous, wish.ahashes)
    given = str(wish.cluster or environ.get("CHELONIA_CLUSTER", ""))
    named = given if is_name(given) and not Path(given).exists() else ""
    cluster = Path(given) if given and not named else None
    if named:
        path = toml_path(environ, home)
        yield _client_toml(path, named) if path else _Layer("")
    if cluster is not None:
        yield _cluster(cluster, wish.cluster_user or environ.get("CHELONIA_CLUSTER_USER", "") or "user")
    yield _environment(environ)
    if home is not None or wish.configuration is not None:
        conf = wish.configuration or (home or Path()) / ".arc" / "client.conf"
        yield _client_conf(conf, needed=wish.configuration is not None)
    if path := toml_path(environ, home):
        yield _client_toml(path, named)


def _first(layers: list[_Layer], name: str, topic: str, origins: dict[str, str]) -> Any:
    for layer in layers:
        if value := getattr(layer, name):
            origins[topic] = layer.origin
            return value
    return ()


def _credential(layers: list[_Layer], origins: dict[str, str]) -> tuple[CredentialFiles, bool]:
    for layer in layers:
        if layer.anonymous or layer.files.proxy or layer.files.cert or layer.files.key:
            origins["credential"] = layer.origin
            # `find_credential` searches the environment's places, and explains which it passes over
            return CredentialFiles() if layer.origin == _ENVIRONMENT else layer.files, layer.anonymous
    return CredentialFiles(), False


def parse_replicas(text: str, origin: str) -> int:
    """Read a number of copies. Raises: BAD_CONFIG."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= bounds.REPLICAS_WANTED_MAX):
        cause = f"{text!r} ({origin}) is no number of replicas from 1 to {bounds.REPLICAS_WANTED_MAX}"
        raise CheloniaError(Kind.BAD_CONFIG, "settings", cause=cause)
    return int(text)


_ENVIRONMENT: Final = "the environment"


def _environment(environ: Mapping[str, str]) -> _Layer:
    urls = environ.get("ARC_BARTENDER_URL") or environ.get("CHELONIA_BARTENDER_URL") or ""
    librarians = environ.get("CHELONIA_LIBRARIAN_URL") or environ.get("ARC_LIBRARIAN_URL") or ""
    named = next((Path(environ[name]) for name in OWN_CREDENTIAL if environ.get(name)), None)
    cas = next((environ[name] for name in OWN_CAS if environ.get(name)), "")
    files = CredentialFiles(proxy=named, ca_dir=_path(environ.get("X509_CERT_DIR") or environ.get("ARC_CA_DIR")))
    if cas and files.ca_dir is None:
        files = CredentialFiles(proxy=named, ca_file=Path(cas))
    replicas = environ.get("ARC_NEEDED_REPLICAS") or environ.get("CHELONIA_REPLICAS") or ""
    ahashes = tuple(environ.get("CHELONIA_AHASH_URL", "").split())
    return _Layer(_ENVIRONMENT, tuple(urls.split()), tuple(librarians.split()), files, replicas, ahashes=ahashes)


def _cluster(path: Path, user: str) -> _Layer:
    import json

    path = path / "cluster.json" if path.is_dir() else path
    if user not in CLUSTER_USERS:
        cause = f"{user!r} is not one of {', '.join(CLUSTER_USERS)}"
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), cause)
    try:
        document = json.loads(path.read_text("utf-8"))
        proxy = Path(document["user_proxy"]) if user == "user" else None
        known = user not in ("user", "anonymous")
        cert, key = (Path(document[f"{user}_cert"]), Path(document[f"{user}_key"])) if known else (None, None)
        return _Layer(
            f"the cluster file {path}",
            tuple(entry["url"] for entry in document["bartender"]),
            tuple(entry["url"] for entry in document["librarian"]),
            CredentialFiles(proxy, cert, key, ca_dir=Path(document["ca_dir"])),
            anonymous=user == "anonymous",
            ahashes=tuple(entry["url"] for entry in document.get("ahash", ())),
            s3=tuple(document.get("s3", ())),
        )
    except OSError as error:
        cause = f"{error.strerror or error}; is `cheloniad dev` running on that directory?"
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), cause) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), f"not a cluster file: {error!r}") from error


def _client_conf(path: Path, *, needed: bool) -> _Layer:
    """ARC's client.conf: `key=value` lines, in sections or not, values bare or quoted."""
    text = _text(path, needed=needed)
    if not text:
        return _Layer(str(path))
    import configparser  # here and below: parsers are loaded for files that exist alone

    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",), allow_no_value=True)
    try:
        parser.read_string("[common]\n" + text)
    except configparser.Error as error:
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), str(error).splitlines()[0]) from error
    values = {key: _unquoted(value or "") for section in parser.sections() for key, value in parser.items(section)}
    files = CredentialFiles(
        _path(values.get("proxypath")),
        _path(values.get("certificatepath")),
        _path(values.get("keypath")),
        _path(values.get("cacertificatesdirectory")),
        _path(values.get("cacertificatepath")),
    )
    return _Layer(str(path), tuple(values.get("bartender", "").split()), (), files)


def _client_toml(path: Path, cluster: str) -> _Layer:
    """`client.toml`: keys for all clusters on top, and a table for each named cluster.

    Raises: BAD_CONFIG, for a cluster that has no table too.
    """
    document = read_toml(path)
    tables = document.pop("clusters", {})
    name = cluster or str(document.pop("default", ""))
    document.pop("default", "")
    if name and name not in tables:
        hint = f"known: {', '.join(sorted(tables))}" if tables else "`chelonia setup` makes one"
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), f"there is no cluster {name!r}; {hint}")
    chosen = {**document, **tables.get(name, {})}
    if unknown := sorted(set(chosen) - TOML_KEYS):
        cause = f"{unknown[0]!r} is not known here; known: {', '.join(sorted(TOML_KEYS))}"
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), cause)
    files = CredentialFiles(*(_path(chosen.get(key)) for key in ("proxy", "cert", "key", "ca_dir", "ca_file")))
    replicas = str(chosen.get("replicas", ""))
    bartenders, librarians, ahashes = (_urls(chosen.get(key)) for key in ("bartender", "librarian", "ahash"))
    origin = f"{path}, cluster {name}" if name else str(path)
    return _Layer(origin, bartenders, librarians, files, replicas, ahashes=ahashes)


def is_name(text: str) -> bool:
    """Whether `text` may be the name of a cluster."""
    return re.fullmatch(_NAME, text) is not None


def read_toml(path: Path) -> dict[str, Any]:
    """Read `client.toml`; empty when it is not there. Raises: BAD_CONFIG."""
    text = _text(path, needed=False)
    if not text:
        return {}
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), str(error)) from error


def toml_path(environ: Mapping[str, str], home: Path | None) -> Path | None:
    """Return the path of this user's `client.toml`, None without a home; the file may not exist."""
    folder = environ.get("XDG_CONFIG_HOME") or (str(home / ".config") if home is not None else "")
    return Path(folder) / "chelonia" / "client.toml" if folder else None


def _text(path: Path, *, needed: bool) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        if needed:
            raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), "no such file") from error
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CheloniaError(Kind.BAD_CONFIG, "settings", str(path), str(error)) from error


def _urls(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(str(url) for url in value)
    return tuple(str(value or "").split())


def _unquoted(value: str) -> str:
    import shlex

    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _path(value: Any) -> Path | None:
    return Path(str(value)).expanduser() if value else None


def checked_url(url: str, origin: str) -> str:
    """Check a service's URL, and return it. Raises: BAD_CONFIG."""
    try:
        parts = urlsplit(url)
        valid = parts.hostname and parts.port != 0
    except ValueError:
        cause = (
            f"{url!r} ({origin}) is no URL: one is like https://host:60000/Bartender, https://[2001:db8::1]:60000/..."
        )
        raise CheloniaError(Kind.BAD_CONFIG, "settings", cause=cause) from None
    if parts.scheme != "https" or not valid:
        cause = f"{url!r} ({origin}) is no https:// URL; every connection is encrypted and checked"
        raise CheloniaError(Kind.BAD_CONFIG, "settings", cause=cause)
    return url
