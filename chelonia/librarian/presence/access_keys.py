"""Users' access keys in the metadata: one object each (`sys:access:<id>`), its secret sealed by a Bartender."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId
from chelonia.core.limits import LimitCounts
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.access_keys import ACCESS_KEY_PREFIX, AccessKey, SealedKey, access_key_object
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.elements import check, erase, put_all, texts, version
from chelonia.librarian.metadata.records import PlannedTransact, Records

SECTION: Final = "key"


class StoredKeys:
    """Reads and changes access keys."""

    def __init__(self, records: Records, limits: LimitCounts) -> None:
        self._records = records
        self._limits = limits

    async def find(self, call: Call, key_id: str) -> SealedKey | None:
        """Return a key, None where there is none."""
        return read_key(await self._records.one(call, access_key_object(key_id)))

    async def all(self, call: Call) -> tuple[SealedKey, ...]:
        """Return all keys, ordered by id."""
        out: list[SealedKey] = []
        async for ids in self._pages(call):
            out += [key for key in map(read_key, await self._records.get(call, ids)) if key is not None]
        return tuple(out)

    def _pages(self, call: Call) -> AsyncIterator[tuple[ObjectId, ...]]:
        return self._records.object_pages(call, ACCESS_KEY_PREFIX, bounds.PAGE_ENTRIES_MAX)

    async def _room(self, call: Call, new: AccessKey) -> list[Element]:
        """The change that makes room for a key: drops expired ones once there is none. Raises: TOO_LARGE."""
        count = sum([len(ids) async for ids in self._pages(call)])
        if count < bounds.ACCESS_KEYS_PER_DN_MAX:
            return []
        keys = [sealed.key for sealed in await self.all(call)]
        over = [key.id for key in keys if 0 < key.expires_ms <= new.created_ms]
        own = sum(key.dn == new.dn and not 0 < key.expires_ms <= new.created_ms for key in keys)
        if own >= bounds.ACCESS_KEYS_PER_DN_MAX or (count >= bounds.ACCESS_KEYS_MAX and not over):
            most = f"{bounds.ACCESS_KEYS_PER_DN_MAX} of one DN, {bounds.ACCESS_KEYS_MAX} of all"
            cause = f"{own} access keys and share links of {new.dn} are kept, {count} of all, and at most {most}: "
            cause += "revoke those that nobody uses"
            self._limits.met("access_keys", new.dn, "a key was refused")
            raise CheloniaError(Kind.TOO_LARGE, "createKey", cause=cause)
        return [erase(access_key_object(each)) for each in over[: bounds.BULK_ELEMENTS_MAX]]

    async def keep(self, call: Call, sealed: SealedKey) -> None:
        """Store a new key. Raises: TOO_LARGE when there are too many, EXISTS."""

        async def build() -> PlannedTransact:
            stored = await self._records.one(call, access_key_object(sealed.key.id))
            if stored.exists:  # before there is no room: a repeated call has filled the last place itself
                raise CheloniaError(Kind.EXISTS, "createKey", sealed.key.id, "there is a key of this id")
            room = await self._room(call, sealed.key)
            return PlannedTransact([*written(sealed), *room], memo=sealed.key.id)

        await self._records.apply(call, build)

    async def drop(self, call: Call, key_id: str) -> None:
        """Drop a key. Raises: NOT_FOUND."""

        async def build() -> PlannedTransact:
            stored = await self._records.one(call, access_key_object(key_id))
            if read_key(stored) is None:
                raise CheloniaError(Kind.NOT_FOUND, "revokeKey", key_id[:80], "there is no such key")
            return PlannedTransact((erase(stored.id, version(stored.version)),), memo=key_id)

        await self._records.apply(call, build)


def read_key(stored: StoredObject) -> SealedKey | None:
    """Return a key as stored, None where the object is no key."""
    values: Mapping[str, str] = stored.sections.get(SECTION, {})
    if not stored.id.startswith(ACCESS_KEY_PREFIX) or not values.get("secret"):
        return None
    scopes = msgspec.json.decode(values.get("scopes", "[]"))
    own = {"dn": "", "created_ms": 0, **values, "id": stored.id.removeprefix(ACCESS_KEY_PREFIX), "scopes": scopes}
    return SealedKey(msgspec.convert(own, AccessKey, strict=False), values["secret"], values.get("mark", ""))


def written(sealed: SealedKey) -> list[Element]:
    """Return the elements that store a new key."""
    key, obj = sealed.key, access_key_object(sealed.key.id)
    values = {name: getattr(key, name) for name in ("dn", "created_ms", "expires_ms", "note", "credential")}
    values |= {"secret": sealed.secret, "mark": sealed.mark}
    values["scopes"] = msgspec.json.encode(key.scopes).decode() if key.scopes else ""
    return [check(obj, version(0)), *put_all(obj, {SECTION: texts(values)})]
