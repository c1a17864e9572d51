"""Requests to other servers that a user names: as the user or as nobody, and never into networks not meant for it.

The client shows the user's delegated proxy, or no certificate: with the node's own, a user could reach what only the
node may. Only the named host gets the credential, and header fields that give rights. Addresses that are not public
(loopback, private, link-local, ...) are refused, also behind a name or a redirect, unless the operator has named their
network. The client connects to the very address that it checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.values import replace
from chelonia.hosting.net.http_client import ClientLimits, HttpClient, Sending, Streaming, target_of
from chelonia.hosting.net.tls import TlsSettings, TlsStore, make_client_context

REDIRECTS_MAX: Final = 5
CONTINUE_MS: Final = 1000
"""Time that a body waits for `100 Continue`: not every server sends it."""
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""Addresses of IPv6 given to public networks (RFC 4291, IANA); `is_global` is true of more."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses of a network's gateway to IPv4 (RFC 6052)."""
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_EXPECTATION_FAILED: Final = 417
_ABOUT_BYTES: Final = ("Want-Digest", "Accept-Encoding", "If-None-Match", "User-Agent")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Strangers:
    """An HTTP client for servers that users name. `tls`: its trust. `networks`: not public, and yet allowed. `context`:
    with the certificate to show, None: shows none. Raises: BAD_CONFIG."""

    def __init__(self, tls: TlsStore, networks: Sequence[str] = (), context: ssl.SSLContext | None = None) -> None:
        try:
            allowed = tuple(ipaddress.ip_network(text) for text in networks)
        except ValueError as error:
            subject, cause = (
                "bartender.tuning.transfer_networks",
                f"{error}; a network is 192.0.2.0/24 or 2001:db8::/32",
            )
            raise CheloniaError(Kind.BAD_CONFIG, "start", subject, cause) from error
        self._allowed, self._networks, self._tls = allowed, networks, tls
        # A server may measure a large file before it answers with the checksum.
        limits = ClientLimits(read_idle_ms=bounds.HTTP_BODY_IDLE_MS, connections_max=64, keepalive_ms=1000)
        chosen = context or tls.anonymous_context()
        self._client = self._beyond = HttpClient(lambda: chosen, limits, _Public(allowed), continue_ms=CONTINUE_MS)

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def showing(self, credential: bytes) -> AsyncIterator[Strangers]:
        """Yield the same client with a credential to show, "" for none. Raises: BAD_CONFIG."""
        if not credential:
            yield self
            return
        other = Strangers(self._tls, self._networks, await asyncio.to_thread(_showing, credential, self._tls))
        other._beyond = self._client
        try:
            yield other
        finally:
            await other.close()

    @asynccontextmanager
    async def stream(
        self, sending: Sending, body: Callable[[], AsyncIterator[bytes]] | None = None
    ) -> AsyncIterator[Streaming]:
        """Send, follow redirects, and yield the answer; `body` begins anew at each server.

        Other hosts than the first see no certificate, and only those of `sending.headers` that give no right. Else the
        first could have others read and written with the user's rights.
        Raises: INVALID_TARGET (an address that is not public), NETWORK, TIMEOUT, UNTRUSTED, what the body raised.
        """
        client, first = self._client, _host(sending.url)
        for left in range(REDIRECTS_MAX, -1, -1):
            _check_literal(sending.url, self._allowed)
            async with AsyncExitStack() as stack:
                one = replace(sending, body=body()) if body is not None else sending
                answer = await stack.enter_async_context(client.stream(one))
                location = answer.headers.get("Location", "") if answer.status in _REDIRECTS else ""
                unexpected = answer.status == _EXPECTATION_FAILED and sending.expects
                if not left or not (location or unexpected):
                    yield answer
                    return
            if unexpected:
                sending = replace(sending, expects=False)
                continue
            sending = replace(sending, url=_redirected(sending.url, location))
            if _host(sending.url) != first:
                headers = {name: text for name, text in (sending.headers or {}).items() if name in _ABOUT_BYTES}
                client, sending = self._beyond, replace(sending, headers=headers)


def _redirected(url: str, location: str) -> str:
    """Return the target of a redirect. Raises: INVALID_TARGET."""
    try:
        target = urljoin(url, location).replace("davs://", "https://", 1)
        if target.startswith("https://") and _host(target)[0]:
            return target
    except ValueError:  # brackets that do not close, a port that is none
        pass
    raise CheloniaError(Kind.INVALID_TARGET, cause=f"{target_of(url)} redirects to no https URL")


def _host(url: str) -> tuple[str | None, int]:
    """Return host and port. Raises: ValueError."""
    parsed = urlsplit(url)
    return parsed.hostname, parsed.port or 443


def _showing(credential: bytes, trusting: TlsStore) -> ssl.SSLContext:
    """Return a client's context with a certificate, key and chain; no file keeps the key. Raises: BAD_CONFIG."""
    with os.fdopen(os.memfd_create("credential"), "wb") as file:  # OpenSSL reads only what has a name
        file.write(credential)
        file.flush()
        own = TlsSettings(proxy=Path(f"/proc/self/fd/{file.fileno()}"))
        return make_client_context(own, trusting.trust, trusting.identify)


class _Public(AbstractResolver):
    """Resolves names to addresses that users may reach."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._inner: ThreadedResolver | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a name. Raises: INVALID_TARGET when one of its addresses is not public."""
        self._inner = self._inner or ThreadedResolver()
        found = await self._inner.resolve(host, port, family)
        for each in found:
            _check(ipaddress.ip_address(each["host"].partition("%")[0]), host, self._allowed)
        return found

    async def close(self) -> None:
        """Close nothing: nothing is open."""


def _check_literal(url: str, allowed: Sequence[Network]) -> None:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        if host.replace(".", "").isdigit():  # a connect may read it as an address all the same
            cause = f"{host[:80]!a} is no address as it is spelled: write 192.0.2.1, or a name"
            raise CheloniaError(Kind.INVALID_TARGET, "COPY", cause=cause) from None
        return
    _check(address, host, allowed)


def _check(address: Address, host: str, allowed: Sequence[Network]) -> None:
    final = _final_address(address)
    is_unicast = final in _UNICAST if final.version == 6 else not final.is_multicast
    if (final.is_global and is_unicast) or any(final in network for network in allowed):
        return
    cause = f"{host} is at an address that is not public; an administrator can allow its network (transfer_networks)"
    raise CheloniaError(Kind.INVALID_TARGET, "COPY", cause=cause)


def _final_address(address: Address) -> Address:
    """Return the address at which packets end up: some of IPv6 stand for one of IPv4."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
