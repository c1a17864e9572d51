"""Makes a `Client` or an `Administrator` from settings: finds the credential, loads the trust, binds the ports to URLs.

    async with connect.from_environment() as client:
        print(await client.stat("/"))
    async with connect.administrator_from_environment() as administrator:
        print(await administrator.nodes())

All its sources are in `settings` and `chelonia.hosting.net.credentials`. Of several Bartenders one is picked, and the
next is tried when it does not answer.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ANONYMOUS
from chelonia.core.values import replace
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.compact_client import CompactClient
from chelonia.hosting.net.credentials import Credential, CredentialSurroundings, find_cas, find_credential
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.net.rpc_client import (
    Link,
    RetryLimits,
    open_link,
    remote_ahash,
    remote_bartender,
    remote_files,
    remote_keys,
    remote_librarian,
    remote_shepherd,
)
from chelonia.hosting.net.tls import TlsSettings, TlsStore
from chelonia_clients.client import Client
from chelonia_clients.settings import Settings, Wish, settle
from chelonia_clients.waiting import WaitingNotes, keep_quiet
from chelonia_clients.watch import LinePrinter, WatchedCompact

if TYPE_CHECKING:
    from chelonia.core.ports.access_keys import AccessKeys
    from chelonia_clients.administrator import Administrator

ONE_AHASH_MS = 5_000
"""Time limit of a call to one A-Hash: the others are called as well."""


class ConnectionPlan(msgspec.Struct, frozen=True):
    """TLS settings and credential of a connection; `credential` is None for an anonymous user."""

    tls: TlsSettings
    credential: Credential | None


def from_environment(
    wish: Wish | None = None, environ: Mapping[str, str] | None = None, trace: LinePrinter | None = None
) -> Client:
    """Make a client from the caller's wish, the environment and the user's files; use it in one event loop.

    Args: `trace`: called with every message sent and received.
    Raises: BAD_CONFIG, EXPIRED, UNTRUSTED, each with every place looked at.
    """
    return open_client(settle_here(wish or Wish(), environ), environ, trace, strong=False)


def settle_here(wish: Wish, environ: Mapping[str, str] | None = None) -> Settings:
    """Decide the settings for this process's user. Raises: BAD_CONFIG."""
    return settle(wish, os.environ if environ is None else environ, home())


def open_client(
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    trace: LinePrinter | None = None,
    note: LinePrinter | None = None,
    *,
    strong: bool = True,
) -> Client:
    """Make a client, as a rule for one command: its reads are `strong`, to see the writes of earlier commands.

    Args: `note`: called with a line when a request has failed for a while and is still tried.
    Raises: as `from_environment`.
    """
    bartenders = settings.bartender_urls()
    plan = find(settings, environ)
    http = open_http(plan.tls)
    link = replace(_link(http, trace, note), strong=strong)
    ports = remote_bartender(link, bartenders), remote_files(link, bartenders)
    client = Client(*ports, http, trouble=link.trouble or keep_quiet)
    client.account = " ".join((*sorted(bartenders), plan.credential.dn if plan.credential else ANONYMOUS))
    return client


def _link(http: HttpClient, trace: LinePrinter | None, note: LinePrinter | None) -> Link:
    """Channels over existing connections; messages go to `trace` too, notes of missing answers to `note`."""
    waiting, packed = WaitingNotes(SystemClock(), note) if note is not None else None, http.compact
    if trace is not None or waiting is not None:
        silent = waiting.silent if waiting is not None else None
        packed = cast(CompactClient, WatchedCompact(packed, trace, silent)) if packed is not None else None
    return Link(http, SystemClock(), SystemIds(), trouble=waiting, compact=packed)


def administrator_from_environment(
    wish: Wish | None = None, environ: Mapping[str, str] | None = None, trace: LinePrinter | None = None
) -> Administrator:
    """Make an administrator's connection, with the administrator's credential where a cluster file is used.

    Args, Raises: as `from_environment`.
    """
    wish = wish or Wish()
    settings = settle_here(wish if wish.cluster_user else replace(wish, cluster_user="admin"), environ)
    return open_administrator(open_http(find(settings, environ).tls), settings, trace)


def open_administrator(
    http: HttpClient, settings: Settings, trace: LinePrinter | None = None, note: LinePrinter | None = None
) -> Administrator:
    """Make an administrator's ports on existing connections. Args: `note` as for `open_client`."""
    from chelonia_clients.administrator import Administrator  # users' commands load none of it

    link = _link(http, trace, note)
    librarians, once = settings.librarian_urls(), RetryLimits(retry_ms=0, read_ms=ONE_AHASH_MS)
    return Administrator(
        http,
        lambda service: remote_shepherd(link, (service,)),
        remote_librarian(link, librarians) if librarians else None,
        {url: remote_ahash(link, (url,), once) for url in settings.ahash_urls()},
    )


def open_keys(
    http: HttpClient, settings: Settings, trace: LinePrinter | None = None, note: LinePrinter | None = None
) -> AccessKeys:
    """Make the port of access keys on existing connections. Args: `note` as for `open_client`."""
    return remote_keys(_link(http, trace, note), settings.bartender_urls())


def find(settings: Settings, environ: Mapping[str, str] | None = None) -> ConnectionPlan:
    """Find CAs and credential. Raises: BAD_CONFIG, EXPIRED."""
    around = surroundings(environ)
    cas = find_cas(settings.files, around)
    if settings.anonymous:
        return ConnectionPlan(cas, None)
    credential = find_credential(settings.files, around, SystemClock().now_ms(), ask_password)
    return ConnectionPlan(credential.settings(cas), credential)


def surroundings(environ: Mapping[str, str] | None = None) -> CredentialSurroundings:
    """Return the environment, home and user id by which this user's credentials are found."""
    return CredentialSurroundings(os.environ if environ is None else environ, home(), os.getuid())


def open_http(tls: TlsSettings) -> HttpClient:
    """Make a pooled client whose TLS is always checked, with the compact encoding beside it.

    Raises: BAD_CONFIG, EXPIRED, UNTRUSTED.
    """
    return open_link(TlsStore(tls, SystemClock().now_ms)).client


def home() -> Path | None:
    """Return the user's home directory, or None."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def ask_password(key_file: Path) -> bytes | None:
    """Ask a person at the terminal for a key's password; None when there is no person."""
    if not sys.stdin.isatty():
        return None
    try:
        return getpass.getpass(f"Password of {key_file}: ").encode()
    except (EOFError, OSError):
        return None


__all__ = [
    "CheloniaError", "Client", "ConnectionPlan", "Settings", "Wish", "administrator_from_environment",
    "from_environment", "open_administrator", "open_client",
]  # fmt: skip
