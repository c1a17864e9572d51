"""Access keys: a pair of id and secret by which programs sign in a user's name where certificates are not spoken.

A key belongs to an identity (DN) and gives its rights as a user, never a role; it may be narrowed to some of them. Its
secret is told once, when it is made; what the metadata keep of it is sealed under the Bartenders' shared secret, so a
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
"""Of the ids of share links: kept as keys that sign nothing, good as long as they are there."""
KEY_ID_CHARACTERS: Final = 20
"""Of an id: as Amazon's are long, which some clients insist on."""
NOTE_BYTES_MAX: Final = 256
SCOPES_MAX: Final = 10
"""Of one key: each is looked at in every decision."""
SCOPES_BYTES_MAX: Final = 8192
"""Of all of them as they are stored."""


class AccessKey(msgspec.Struct, frozen=True):
    """What is known of a key without its secret.

    - `expires_ms` 0: never
    - `note`: what it is for, for people
    - `credential`: the certificate that its owner made it with (`Call.credential`), "": an administrator made it
    - `scopes`: what it is narrowed to, empty: to nothing
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
    """A key as it is stored: `secret` is sealed, and of use to Bartenders alone. `mark`, of a share link: of what
    signed it (`wire.shares.mark_of`), "": not known."""

    key: AccessKey
    secret: str
    mark: str = ""


class NewKey(msgspec.Struct, frozen=True):
    """A key to make. `dn` "": for the caller himself; for others only an administrator makes keys."""

    dn: Dn = Dn("")
    expires_ms: Ms = Ms(0)
    note: str = ""
    scopes: Scopes = ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class IssuedKey:
    """A key as it was made, with its secret: told now and never again."""

    key: AccessKey
    secret: str


def access_key_object(key_id: str) -> ObjectId:
    """The A-Hash object of a key."""
    return ObjectId(ACCESS_KEY_PREFIX + key_id)


class AccessKeys(Protocol):
    """The keys of users: everybody's own, and all for administrators."""

    async def create(self, call: Call, new: NewKey) -> IssuedKey:
        """Make a key. Raises: DENIED (for another, or without a certificate), BAD_REQUEST, TOO_LARGE."""

    async def list(self, call: Call) -> tuple[AccessKey, ...]:
        """The caller's keys; to an administrator all, ordered by id."""

    async def revoke(self, call: Call, key_id: str) -> None:
        """Take a key away; what it signs is refused within `bounds.ACCESS_KEY_CACHE_MS`. Raises: NOT_FOUND, DENIED."""
