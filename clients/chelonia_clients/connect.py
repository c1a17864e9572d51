"""Makes a `Client` from settings: finds the credential, loads the trust, binds the ports to URLs.

    async with connect.from_environment() as client:
        print(await client.stat("/"))

Everything it looks at is in `settings` and `chelonia.hosting.credentials`; of several Bartenders one is
picked, and the next is tried when it does not answer.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from chelonia.core.errors import CheloniaError
from chelonia.hosting.clock import SystemClock, SystemIds
from chelonia.hosting.credentials import Credential, Explicit, Surroundings, find_cas, find_credential
from chelonia.hosting.http_client import HttpClient
from chelonia.hosting.rpc_client import Link, Patience, RemoteAHash, RemoteBartender, RemoteLibrarian, RemoteShepherd
from chelonia.hosting.tls import TlsSettings, TlsStore
from chelonia_clients.client import Client
from chelonia_clients.settings import Settings, Wish, settle
from chelonia_clients.soap_trace import SoapTrace, Teller
from chelonia_clients.waiting import Waiting, Watched, keep_quiet

ONE_AHASH_MS = 5_000
"""How long one A-Hash is waited for: the others are asked as well."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a connection will use. `credential` is None for an anonymous user."""

    tls: TlsSettings
    credential: Credential | None


def from_environment(
    wish: Wish | None = None, environ: Mapping[str, str] | None = None, trace: Teller | None = None
) -> Client:
    """Make a client from what the caller names, the environment and the user's files; to be used in one event loop.

    Args: `trace` is given every SOAP message sent and received.
    Raises: BAD_CONFIG, EXPIRED, UNTRUSTED, each with every place looked at.
    """
    return _open(settle_here(wish or Wish(), environ), environ, trace)


def settle_here(wish: Wish, environ: Mapping[str, str] | None = None) -> Settings:
    """Settle for this process's user. Raises: BAD_CONFIG."""
    return settle(wish, os.environ if environ is None else environ, home())


def open_client(
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    trace: Teller | None = None,
    note: Teller | None = None,
) -> Client:
    """Make a client for one command: its reads are strong, as other commands' writes must be seen and it knows of none.

    Args: `note` is given a line when a request has been in trouble for a while and is still tried.
    Raises: as `from_environment`.
    """
    return _open(settings, environ, trace, note, strong=True)


def _open(
    settings: Settings,
    environ: Mapping[str, str] | None,
    trace: Teller | None,
    note: Teller | None = None,
    *,
    strong: bool = False,
) -> Client:
    bartenders, librarians = settings.bartender_urls(), settings.librarian_urls()
    http = open_http(find(settings, environ).tls)
    traced = http if trace is None else SoapTrace(http, trace)
    waiting = Waiting(SystemClock(), note) if note is not None else None
    carrier = traced if waiting is None else Watched(traced, waiting)
    link = Link(cast(HttpClient, carrier), SystemClock(), SystemIds(), trouble=waiting)
    librarian = RemoteLibrarian(link, librarians) if librarians else None
    once = Patience(retry_ms=0, read_ms=ONE_AHASH_MS)
    return Client(
        RemoteBartender(replace(link, strong=strong), bartenders), http, librarian, trouble=waiting or keep_quiet,
        ahashes={url: RemoteAHash(link, (url,), once) for url in settings.ahash_urls()},
        shepherds=lambda service: RemoteShepherd(link, (service,)),
    )  # fmt: skip


def find(settings: Settings, environ: Mapping[str, str] | None = None) -> Found:
    """Find CAs and credential. Raises: BAD_CONFIG, EXPIRED."""
    around = surroundings(environ)
    explicit = explicit_files(settings)
    cas = find_cas(explicit, around)
    if settings.anonymous:
        return Found(cas, None)
    credential = find_credential(explicit, around, SystemClock().now_ms(), ask_password)
    return Found(credential.settings(cas), credential)


def explicit_files(settings: Settings) -> Explicit:
    """The settings' files in the form the search for credentials takes."""
    files = settings.files
    return Explicit(files.proxy, files.cert, files.key, files.ca_dir, files.ca_file)


def surroundings(environ: Mapping[str, str] | None = None) -> Surroundings:
    """Where this process's user keeps credentials."""
    return Surroundings(os.environ if environ is None else environ, home(), os.getuid())


def open_http(tls: TlsSettings) -> HttpClient:
    """A pooled client whose TLS is always checked. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
    context = TlsStore(tls, SystemClock().now_ms).client_context()
    return HttpClient(lambda: context)


@asynccontextmanager
async def shepherd_as_administrator(url: str, wish: Wish | None = None) -> AsyncIterator[RemoteShepherd]:
    """Speak to one Shepherd (scrub, status), with the administrator's credential where a cluster file is used.

    Raises: as `from_environment`.
    """
    wish = wish or Wish()
    settings = settle_here(wish if wish.cluster_user else replace(wish, cluster_user="admin"))
    async with open_http(find(settings).tls) as http:
        yield RemoteShepherd(Link(http, SystemClock(), SystemIds()), (url,), Patience(retry_ms=0))


def home() -> Path | None:
    """The user's directory, or None."""
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


__all__ = ["CheloniaError", "Client", "Found", "Settings", "Wish", "from_environment", "open_client"]
