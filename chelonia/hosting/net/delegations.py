"""Proxies that users have delegated to this node, so that it may show them to other servers in their name.

The node makes the key of each, which never leaves it: the user signs its certificate. Delegations are in memory alone.
They end with the proxy's validity or a restart, and clients delegate again. A user has one delegation for each set of
attributes (VOMS) on its certificates, whatever id its client gives.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Ms
from chelonia.core.limits import LimitCounts
from chelonia.hosting.net.certificates import Issued, KeyKind, PrivateKey, make_key
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_messages import Peer
from chelonia.hosting.net.identity import check_validity, identity_of_chain, load_certificate

log = logging.getLogger("chelonia.delegations")

DELEGATIONS_MAX: Final = 1000
"""Delegations of one node, about 20 KiB each."""
DELEGATIONS_PER_DN_MAX: Final = 8
"""Delegations of one user, each for a set of attributes."""
ANSWER_MS_MAX: Final = 10 * 60 * 1000
"""Time for which a request waits for its proxy."""
CHAIN_MAX: Final = 16
User = tuple[Dn, tuple[str, ...]]


@dataclass(slots=True)
class _Delegated:
    """One user's delegated proxy, and the key that waits for a proxy."""

    issued: Issued | None = None
    until_ms: Ms = Ms(0)
    pending: PrivateKey | None = None
    pending_until_ms: Ms = Ms(0)


class Delegations:
    """Keeps the proxies that holders of certificates delegate. Every method raises DENIED to peers without one."""

    def __init__(self, now_ms: Callable[[], Ms] | None = None, limits: LimitCounts | None = None) -> None:
        self._now_ms = now_ms or SystemClock().now_ms
        self.limits = limits or LimitCounts()
        self._held: dict[User, _Delegated] = {}
        self._making = asyncio.Lock()

    async def request(self, peer: Peer) -> str:
        """Return a certificate request (PEM) for `peer` to sign: of the same key until it is signed. Raises: BUSY."""
        async with self._making:  # an RSA key costs 100 ms of a core: together they get no more than one core
            held = self._place(_user_of(peer))
            key = held.pending if self._now_ms() < held.pending_until_ms else None
            if key is None:
                key = await asyncio.to_thread(make_key, KeyKind.RSA)
                held = self._place(_user_of(peer))  # it may have been forgotten meanwhile
            held.pending, held.pending_until_ms = key, Ms(self._now_ms() + ANSWER_MS_MAX)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "proxy")])  # its signer names it
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM).decode()

    def put(self, peer: Peer, pem: str) -> None:
        """Keep a proxy that was signed for a request. Raises: BAD_REQUEST, NOT_FOUND, UNTRUSTED, EXPIRED."""
        user = _user_of(peer)
        held = self._held.get(user, _Delegated())
        try:
            found = x509.load_pem_x509_certificates(pem.encode())
            chain = tuple(load_certificate(each.public_bytes(serialization.Encoding.DER)) for each in found)
            public = chain[0].public_key()
        except (ValueError, UnicodeEncodeError, UnsupportedAlgorithm) as error:
            raise CheloniaError(Kind.BAD_REQUEST, "putProxy", cause=f"no certificates in PEM: {error}") from None
        if len(chain) > CHAIN_MAX:
            raise CheloniaError(Kind.BAD_REQUEST, "putProxy", cause=f"a chain of more than {CHAIN_MAX} certificates")
        keys = (held.pending, held.issued.key if held.issued else None)
        key = next((key for key in keys if key is not None and key.public_key() == public), None)
        if key is None:
            cause = "the proxy is not of a key that was requested here in the last minutes: ask with getNewProxyReq"
            raise CheloniaError(Kind.NOT_FOUND, "putProxy", cause=cause)
        identity = identity_of_chain(chain)
        if identity.dn != user[0]:
            raise CheloniaError(Kind.UNTRUSTED, "putProxy", cause=f"it is a proxy of {identity.dn}, you are {user[0]}")
        check_validity(chain, self._now_ms())
        held.issued, held.until_ms = Issued(chain, key), identity.not_after_ms
        if key is held.pending:  # else another client of this user will sign the last request
            held.pending, held.pending_until_ms = None, Ms(0)
        log.info('event=delegated dn="%s" until_ms=%d limited=%s', user[0], identity.not_after_ms, identity.limited)

    def until_ms(self, peer: Peer) -> Ms:
        """Return when the delegation of `peer` ends. Raises: NOT_FOUND."""
        held = self._held.get(_user_of(peer))
        if held is None or self._now_ms() >= held.until_ms:
            raise CheloniaError(Kind.NOT_FOUND, "delegation", cause="nothing that you have delegated is kept here")
        return held.until_ms

    def drop(self, peer: Peer) -> None:
        self._held.pop(_user_of(peer), None)

    def credential(self, peer: Peer, left_ms: int) -> bytes:
        """Return the credential in the name of `peer` (PEM), "" when none is good for `left_ms` more."""
        held = self._held.get(_user_of(peer))
        if held is None or held.issued is None or self._now_ms() + left_ms >= held.until_ms:
            return b""
        return held.issued.proxy_pem

    def _place(self, user: User) -> _Delegated:
        """Return the entry of `user`, a new one if need be. Raises: BUSY."""
        if user not in self._held:
            now_ms = self._now_ms()
            expired = [each for each, held in self._held.items() if now_ms >= max(held.until_ms, held.pending_until_ms)]
            for each in expired:
                del self._held[each]
            if (
                len(self._held) >= DELEGATIONS_MAX
                or sum(dn == user[0] for dn, _ in self._held) >= DELEGATIONS_PER_DN_MAX
            ):
                self.limits.met("delegations", user[0], f"one was refused: {len(self._held)} are kept")
                cause = f"at most {DELEGATIONS_PER_DN_MAX} delegations of a user, {DELEGATIONS_MAX} in all, are kept"
                raise CheloniaError(Kind.BUSY, "delegation", cause=cause)
            self._held[user] = _Delegated(pending_until_ms=Ms(now_ms + ANSWER_MS_MAX))
        return self._held[user]


def id_of(peer: Peer) -> str:
    """Return the id of the delegation of `peer`, 16 hex digits."""
    return hashlib.sha256(repr(_user_of(peer)).encode()).hexdigest()[:16]


def _user_of(peer: Peer) -> User:
    if peer.dn == ANONYMOUS:
        cause = "delegation is for those who show a certificate; with a token, send TransferHeaderAuthorization"
        raise CheloniaError(Kind.DENIED, "delegation", cause=cause)
    return peer.dn, peer.attributes
