"""The service of `core.ports.access_keys.AccessKeys`: rights to make, see and revoke keys, and seals of their secrets.

A secret is sealed with AES-256-GCM under a key derived from `token_key`, bound to all that its key may do. `find`
gives a door the secret with which a request must be signed.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from msgspec import Struct, structs
from msgspec.json import encode as encoded

from chelonia.bartender import audit
from chelonia.bartender.bulk import as_seen
from chelonia.bartender.ports import Ports
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Ms
from chelonia.core.operations.access_keys import ACCESS_KEYS
from chelonia.core.ports.access_keys import (
    KEY_ID_CHARACTERS,
    LINK_PREFIX,
    NOTE_BYTES_MAX,
    SCOPES_BYTES_MAX,
    SCOPES_MAX,
    AccessKey,
    IssuedKey,
    NewKey,
    SealedKey,
)
from chelonia.core.rights.access import guarded
from chelonia.core.rights.scopes import NARROWED, Scopes
from chelonia.wire.secret_box import NONCE_BYTES, SecretBox
from chelonia.wire.shares import mark_of

T = TypeVar("T")

_CONTEXT: Final = b"chelonia access key 1"
_SECRET_BYTES: Final = 25
"""40 characters of base32, as in Amazon's secrets. None begins with `-`: programs would take it for an option."""


class _CachedKey(Struct, frozen=True):
    """A key in memory until `until_ms`. `sealed` None: no such key; `issued` None: a link, or sealed by others."""

    sealed: SealedKey | None
    issued: IssuedKey | None
    until_ms: int


@guarded(ACCESS_KEYS)
class AccessKeysService:
    """`AccessKeys`; it keeps for a moment the keys that doors have looked up."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.revoked: Callable[[str], bool] = lambda credential: False
        """Whether a certificate (`Call.credential`) is revoked by now, and so the keys made with it."""
        self._box = SecretBox(ports.settings.token_key, _CONTEXT)
        self._cache: dict[str, _CachedKey] = {}

    async def create(self, call: Call, new: NewKey) -> IssuedKey:
        dn, now = Dn(new.dn or call.dn), self._ports.clock.now_ms()
        if call.dn == ANONYMOUS or (dn != call.dn and not call.has(Role.ADMINISTRATOR)):
            cause = "a key is made by who shows a certificate, for himself; an administrator makes keys for others"
            raise _refused(call, "createKey", dn, cause)
        if not dn.startswith("/") or len(dn) > bounds.PROPERTY_BYTES_MAX or len(new.note.encode()) > NOTE_BYTES_MAX:
            cause = f"a key is of a DN, which begins with /; its note has at most {NOTE_BYTES_MAX} bytes"
            raise CheloniaError(Kind.BAD_REQUEST, "createKey", dn[:80], cause)
        if new.expires_ms and not now < new.expires_ms <= bounds.TIME_S_MAX * 1000:
            cause = "it would have expired already, or have no date (0: for ever)"
            raise CheloniaError(Kind.BAD_REQUEST, "createKey", dn, cause)
        _check_scopes(new.scopes, dn)
        ids = self._ports.ids
        key_id = base64.b32encode(ids.token(KEY_ID_CHARACTERS)).decode()[:KEY_ID_CHARACTERS]
        credential = call.credential if dn == call.dn else ""
        key = AccessKey(key_id, dn, Ms(now), new.expires_ms, new.note, credential, new.scopes)
        issued = IssuedKey(key, base64.b32encode(ids.token(_SECRET_BYTES)).decode())
        sealed = SealedKey(key, self._sealed(key, issued.secret, ids.token(NONCE_BYTES)))
        await _asked(call, self._ports.librarian.keep_access_key(self._ports.own(call), sealed))
        audit.record(call, "createKey", dn, action="createKey", decision="allowed", rule=f"key {key_id}")
        return issued

    async def list(self, call: Call) -> tuple[AccessKey, ...]:
        kept = await _asked(call, self._ports.librarian.access_keys(self._ports.own(call)))
        visible = [each for each in kept if each.key.dn == call.dn or call.has(Role.ADMINISTRATOR)]
        return tuple([structs.replace(each.key, void=self._is_void(each)) for each in visible])

    async def revoke(self, call: Call, key_id: str) -> None:
        sealed = await _asked(call, self._ports.librarian.access_key(self._ports.own(call).strongly(), key_id))
        if sealed is None or not (sealed.key.dn == call.dn != ANONYMOUS or call.has(Role.ADMINISTRATOR)):
            raise CheloniaError(Kind.NOT_FOUND, "revokeKey", key_id[:80], "you have no such key")
        await _asked(call, self._ports.librarian.drop_access_key(self._ports.own(call), key_id))
        self._cache.pop(key_id, None)
        audit.record(call, "revokeKey", sealed.key.dn, action="revokeKey", decision="allowed", rule=f"key {key_id}")

    async def find(self, key_id: str) -> IssuedKey | None:
        sealed = await self.kept(key_id)
        return None if sealed is None or self._is_revoked(sealed.key) else self._cache[key_id].issued

    async def kept(self, key_id: str) -> SealedKey | None:
        """Return a valid key or share link, else None. Reads it again after `bounds.ACCESS_KEY_CACHE_MS`."""
        now, mono = self._ports.clock.now_ms(), self._ports.clock.monotonic_ms()
        cached = self._cache.get(key_id)
        if cached is None or cached.until_ms <= mono:
            own = self._ports.own(Call()).strongly()
            sealed = await _asked(own, self._ports.librarian.access_key(own, key_id))
            if len(self._cache) >= bounds.ACCESS_KEYS_KNOWN_MAX:
                self._cache.clear()
            issued = None if sealed is None else self._opened(sealed)
            cached = self._cache[key_id] = _CachedKey(sealed, issued, mono + bounds.ACCESS_KEY_CACHE_MS)
        if cached.sealed is None or 0 < cached.sealed.key.expires_ms <= now:
            return None
        return cached.sealed

    def _is_revoked(self, key: AccessKey) -> bool:
        return bool(key.credential) and self.revoked(key.credential)

    def _is_void(self, sealed: SealedKey) -> bool:
        if sealed.key.id.startswith(LINK_PREFIX):
            is_other = sealed.mark not in ("", mark_of(self._ports.settings.token_key))
        else:
            is_other = self._opened(sealed) is None
        return is_other or self._is_revoked(sealed.key)

    def _sealed(self, key: AccessKey, secret: str, nonce: bytes) -> str:
        return base64.b64encode(self._box.encrypt(secret, nonce, _bound(key))).decode()

    def _opened(self, sealed: SealedKey) -> IssuedKey | None:
        """Return the key, or None when another secret sealed it, or what the seal binds has changed."""
        try:
            raw = base64.b64decode(sealed.secret, validate=True)
        except ValueError:
            return None
        secret = self._box.decrypt(raw, _bound(sealed.key))
        return None if secret is None else IssuedKey(sealed.key, secret)


async def _asked(user: Call, request: Awaitable[T]) -> T:
    """Return the Librarian's answer. Raises: its error, as the user may see it."""
    try:
        return await request
    except CheloniaError as error:
        error = as_seen(error, user)
        raise error


def _bound(key: AccessKey) -> bytes:
    """Return the facts that a secret is sealed with: a change of any of them in the metadata breaks the seal."""
    if key.scopes:
        return encoded((key.id, key.dn, key.expires_ms, key.credential, key.scopes))
    return "\n".join((key.id, key.dn, str(key.expires_ms), *filter(None, [key.credential]))).encode()


def _check_scopes(scopes: Scopes, dn: Dn) -> None:
    lawful = all(each.actions and NARROWED.issuperset(each.actions) for each in scopes)
    if not lawful or len(scopes) > SCOPES_MAX or len(encoded(scopes)) > SCOPES_BYTES_MAX:
        cause = (
            f"a key is narrowed to {' '.join(sorted(each.value for each in NARROWED))} in at most {SCOPES_MAX} places"
        )
        raise CheloniaError(Kind.BAD_REQUEST, "createKey", dn, f"{cause}, {SCOPES_BYTES_MAX} bytes in all")


def _refused(call: Call, op: str, subject: str, cause: str) -> CheloniaError:
    audit.record(call, op, subject, action=op, decision="denied", rule=cause)
    return CheloniaError(Kind.DENIED, op, subject, cause)
