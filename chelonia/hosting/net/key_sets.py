"""The public keys of a token issuer (RFC 7517): from a file, or fetched over HTTPS and kept for a while.

Keys are fetched again after `REFRESH_MS`, and at once when a token names an unknown one, but never more often than
`PAUSE_MS`. While the issuer is away, the last keys count for `KEEP_MS`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.clock import Clock
from chelonia.hosting.net.http_client import ClientLimits, HttpClient, Sending

REFRESH_MS: Final = 3_600_000
PAUSE_MS: Final = 60_000
KEEP_MS: Final = 24 * 3_600_000
FETCH_MS: Final = 10_000
"""Longest wait for an issuer's answers: all who bring its tokens wait with the first one."""
SET_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
"""Keys of a set, which has a handful: bounds the memory for one issuer."""
DISCOVERY: Final = ".well-known/openid-configuration"
_LIMITS: Final = ClientLimits(connect_ms=5_000, read_idle_ms=5_000, connections_max=4, answer_bytes_max=SET_BYTES_MAX)

Jwk = Mapping[str, Any]

log = logging.getLogger("chelonia.tokens")


@dataclass(frozen=True, slots=True)
class KeySource:
    """The place of an issuer's keys. `keys`: a file or an HTTPS URL; empty: as in its metadata. `ca_file`: CAs of its
    server's certificate (PEM); empty: those of the system."""

    issuer: str
    keys: str = ""
    ca_file: str = ""


class KeySet:
    """The keys of one issuer."""

    def __init__(self, source: KeySource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._keys: tuple[Jwk, ...] = ()
        self._read_ms = self._tried_ms = -1
        self._trouble = ""
        self._reading = asyncio.Lock()

    async def find(self, kid: str) -> Jwk:
        """Return the key that a token names; without a name the only one. Raises: UNTRUSTED, UNAVAILABLE."""
        found = self._cached(kid)
        if found is None or self._age(self._read_ms) >= REFRESH_MS:
            await self._refresh()
            found = self._cached(kid)
        if found is not None:
            return found
        if self._trouble:
            raise CheloniaError(Kind.UNAVAILABLE, "tokens", self._source.issuer, f"no keys to be had: {self._trouble}")
        raise CheloniaError(Kind.UNTRUSTED, "token", cause=f"its key {kid[:80]!a} is none of {self._source.issuer}")

    def _cached(self, kid: str) -> Jwk | None:
        if self._read_ms < 0 or self._age(self._read_ms) >= KEEP_MS:
            return None
        if not kid:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.get("kid") == kid), None)

    def _age(self, then_ms: int) -> int:
        return self._clock.monotonic_ms() - then_ms if then_ms >= 0 else KEEP_MS

    async def _refresh(self) -> None:
        async with self._reading:
            if self._tried_ms >= 0 and self._age(self._tried_ms) < PAUSE_MS:
                return
            self._tried_ms = self._clock.monotonic_ms()
            try:
                self._keys, self._trouble = await self._read(), ""
            except CheloniaError as error:
                self._trouble = error.cause
                log.info("keys not read issuer=%r error=%s", self._source.issuer, error)
                return
            self._read_ms = self._clock.monotonic_ms()
            log.info("keys read issuer=%r keys=%d", self._source.issuer, len(self._keys))

    async def _read(self) -> tuple[Jwk, ...]:
        """Read or fetch the keys. Raises: UNAVAILABLE, NETWORK, TIMEOUT, UNTRUSTED."""
        url = self._source.keys
        if url and not url.startswith("https://"):
            return read_keys(Path(url))
        try:
            context = ssl.create_default_context(cafile=self._source.ca_file or None)
        except OSError as error:
            raise _bad(f"{self._source.ca_file}: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(FETCH_MS / 1000), HttpClient(lambda: context, _LIMITS) as client:
                return await self._fetched(client, url)
        except TimeoutError:
            raise _bad(f"its server does not answer within {FETCH_MS // 1000} s") from None

    async def _fetched(self, client: HttpClient, url: str) -> tuple[Jwk, ...]:
        """Return the keys at a URL, "": at the one that the issuer's metadata name."""
        if not url:
            document = await _get(client, f"{self._source.issuer.rstrip('/')}/{DISCOVERY}")
            url = str(document.get("jwks_uri", ""))
            if document.get("issuer") != self._source.issuer or not url.startswith("https://"):
                raise _bad(f"its {DISCOVERY} is of another issuer, or has no https jwks_uri")
        return _keys(await _get(client, url))


def read_keys(path: Path) -> tuple[Jwk, ...]:
    """Return the keys of a file. Raises: UNAVAILABLE with the reason."""
    try:
        return _keys(_json(path.read_bytes(), str(path)))
    except OSError as error:
        raise _bad(f"{path}: {error.strerror or error}") from error


async def _get(client: HttpClient, url: str) -> dict[str, Any]:
    answer = await client.request(Sending("GET", url, {"Accept": "application/json"}))
    if answer.status != 200:
        raise _bad(f"{url} answers {answer.status}")
    return _json(answer.body, url)


def _json(body: bytes, where: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"{where} is no JSON object: {error}") from None


def _keys(document: dict[str, Any]) -> tuple[Jwk, ...]:
    keys = document.get("keys")
    if not isinstance(keys, list) or not 0 < len(keys) <= KEYS_MAX:
        raise _bad(f"a key set has 1 to {KEYS_MAX} keys")
    return tuple(key for key in keys if isinstance(key, dict) and key.get("use", "sig") == "sig")


def _bad(cause: str) -> CheloniaError:
    return CheloniaError(Kind.UNAVAILABLE, "tokens", cause=cause)
