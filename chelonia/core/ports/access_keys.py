"""Access keys: pairs of id and secret by which programs sign in a user's name where certificates do not work.

A key belongs to an identity (DN) and gives its rights as a user, never a role; it may be narrowed to some of them. Only
the answer that makes a key contains its secret. The metadata keep it sealed under the Bartenders' shared secret, so a
backup alone reveals none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from chelonia.core.caller import Call
from chelonia.core.ids import Dn, Ms, ObjectId
from chelonia.core.rights.scopes import Scopes

ACCESS_KEY_PREFIX: Final = "sys:access:"
LINK_PREFIX: Final = "link-"
"""Start of the ids of share links: keys that sign nothing, and are good as long as they are stored."""
KEY_ID_CHARACTERS: Final = 20
"""Length of an id: that of Amazon's, on which some clients insist."""
NOTE_BYTES_MAX: Final = 256
SCOPES_MAX: Final = 10
"""Scopes of one key: each decision checks all of them."""
SCOPES_BYTES_MAX: Final = 8192
"""Bytes of all scopes of a key as they are stored."""


class AccessKey(msgspec.Struct, frozen=True):
    """The facts of a key, without its secret.

    - `expires_ms` 0: never
    - `note`: its purpose, for people
    - `credential`: the certificate that its owner made it with (`Call.credential`), "": an administrator made it
    - `scopes`: those that it is narrowed to, empty: not narrowed
    - `void`, in a list: refused, for the Bartenders have another secret since, or that certificate is revoked
    """

    id: str
    dn: Dn
    created_ms: Ms
    expires_ms: Ms = Ms(0)
    note: str = ""
    credential: str = ""
    scopes: Scopes = ()
    void: bool = False


class SealedKey(msgspec.Struct, frozen=True):
    """A key as it is stored: only Bartenders can use the sealed `secret`. `mark`, of a share link: the mark of the key
    that signed it (`wire.shares.mark_of`), "" if unknown."""

    key: AccessKey
    secret: str
    mark: str = ""


class NewKey(msgspec.Struct, frozen=True):
    """A key to make. `dn` "": for the caller himself; only an administrator makes keys for others."""

    dn: Dn = Dn("")
    expires_ms: Ms = Ms(0)
    note: str = ""
    scopes: Scopes = ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class IssuedKey:
    """A new key with its secret, which no later answer contains."""

    key: AccessKey
    secret: str


def access_key_object(key_id: str) -> ObjectId:
    """Return the A-Hash object of a key."""
    return ObjectId(ACCESS_KEY_PREFIX + key_id)


class AccessKeys(Protocol):
    """The keys of users: a caller's own, and all for administrators."""

    async def create(self, call: Call, new: NewKey) -> IssuedKey:
        """Make a key. Raises: DENIED (for another, or without a certificate), BAD_REQUEST, TOO_LARGE."""

    async def list(self, call: Call) -> tuple[AccessKey, ...]:
        """Return the caller's keys, or all to an administrator, ordered by id."""

    async def revoke(self, call: Call, key_id: str) -> None:
        """Revoke a key; its signatures are refused within `bounds.ACCESS_KEY_CACHE_MS`. Raises: NOT_FOUND, DENIED."""
