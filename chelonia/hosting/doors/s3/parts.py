"""The parts of the S3 door's handlers, and the few steps that all of them take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

from msgspec import Struct, structs

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Guid
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_SYMLINK
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import IssuedKey
from chelonia.core.ports.files import (
    ANY,
    Change,
    Done,
    Failure,
    Listing,
    Look,
    Looked,
    Named,
    Placing,
    Set,
    UserValues,
    Want,
    When,
    good,
)
from chelonia.core.rights.scopes import Scopes
from chelonia.core.timing.clock import Clock
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, apply, carrying, keyed, own_call
from chelonia.hosting.net.http_messages import HttpResponse, Whole, read_whole
from chelonia.wire.s3 import answers, facts, keys, requests, sigv4, versions
from chelonia.wire.s3.checksums import Measured
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.keys import Target

if TYPE_CHECKING:
    from chelonia.bartender.access_keys import AccessKeysService

T = TypeVar("T")

SCOPES_KNOWN: Final = 4
"""Days and regions for which a user's signing key is kept."""
STATE_KNOWN_MS: Final = 2000
"""Time for which reads go by a bucket's state of versioning: another front end may have changed it. No write does."""
STATES_KNOWN: Final = 1000
"""Callers and buckets for which the state is kept."""
AGAIN_MAX: Final = 8
"""Further tries of a change while others change the same name: the last one written stays."""
MOVES_MAX: Final = 8
"""Tries to find a version while it moves from or to its key."""
REGION = "us-east-1"
"""The region that this door names as its own; clients may sign for any."""


@dataclass(frozen=True, slots=True)
class S3Parts:
    """The ports, the keys, and the place of buckets: collections right below `root`. `domain`: its subdomains name
    buckets ("": none do)."""

    plain: DoorParts
    keys: AccessKeysService
    clock: Clock
    root: LogicalName
    domain: str = ""
    derived: WeakKeyDictionary[IssuedKey, dict[str, bytes]] = field(default_factory=WeakKeyDictionary)
    """Signing keys of a day by scope, for each access key: they go with it."""
    states: dict[tuple[Dn, Scopes, LogicalName], tuple[int, str]] = field(default_factory=dict)
    """States of versioning by caller, rights and bucket: when each expires (ms, monotonic), and the state. It is ""
    also where the caller may not know it."""

    def state(self, call: Call, bucket: LogicalName) -> str | None:
        """Return whether a bucket keeps versions, as this caller saw it lately; None: not known."""
        until, state = self.states.get((call.dn, call.scopes, bucket), (0, ""))
        return state if self.clock.monotonic_ms() < until else None

    def note(self, call: Call, bucket: LogicalName, state: str) -> str:
        """Keep whether a bucket keeps versions, as this caller sees it; return that."""
        if len(self.states) >= STATES_KNOWN:
            self.states.clear()
        self.states[call.dn, call.scopes, bucket] = self.clock.monotonic_ms() + STATE_KNOWN_MS, state
        return state

    def signing_key(self, issued: IssuedKey, scope: str) -> bytes:
        """Return the signing key of an access key for a day, region and service."""
        cached = self.derived.setdefault(issued, {})
        if scope not in cached:
            if len(cached) >= SCOPES_KNOWN:
                cached.clear()
            cached[scope] = sigv4.signing_key(issued.secret, scope)
        return cached[scope]


class Ask(Struct, frozen=True):
    """One request, verified as far as it can be before its body has come.

    - `exchange`: its body is decoded and measured as it is read; its place is the bucket until `seen` finds the key's
    - `versioning`, `current`: whether the bucket keeps versions, and the key's version ("": none), once `seen` knows
    - `final`: the key's place, for a new version that is stored at `place` first, as this `version`
    - `guid`: of that new version's entry ("": no other request knows of its place)
    """

    exchange: Exchange
    target: Target
    query: Mapping[str, str]
    measured: Measured
    bucket: LogicalName
    operation: str
    subresource: str = ""
    versioning: str = ""
    current: str = ""
    final: LogicalName | None = None
    version: str = ""
    guid: Guid = Guid("")

    def header(self, name: str) -> str:
        """Return one header field, "" when it is not there."""
        return self.exchange.header(name)

    @property
    def place(self) -> LogicalName:
        """Place of the object, or of a new one."""
        return self.exchange.place

    @property
    def apart(self) -> LogicalName:
        """Place of the key, if it is kept apart."""
        return keys.apart_of(self.bucket, self.target.key)

    @property
    def default_of(self) -> LogicalName | None:
        """Collection whose default policy a new object gets; None: the one that it is in."""
        is_named = self.place == keys.home_of(self.bucket, self.target.key)
        return None if is_named else keys.collection_of(self.bucket, self.target.key)

    @property
    def marks(self) -> bool:
        """Whether the object is a collection itself: the key ends in a slash, and is not kept apart."""
        return self.target.key.endswith("/") and self.place == keys.home_of(self.bucket, self.target.key)

    def itself(self, entry: Looked) -> LogicalName:
        """Return a name of the entry seen at `place`: its GUID, as another version may take `place`. For a narrowed
        caller it is `place`, as no scope covers a GUID."""
        return self.place if self.exchange.call.scopes else LogicalName(entry.attributes.guid, ())

    def at(self, place: LogicalName) -> Ask:
        """Return the same request, about an object at `place`."""
        if place == self.place:
            return self
        return replace(self, exchange=replace(self.exchange, place=place))


async def read_xml(ask: Ask, read: Callable[[bytes], T]) -> T:
    """Read the XML in a body by one of `wire.s3.requests`. A thread reads a large one, which an unsigned request must
    not send. Raises: S3Error, TOO_LARGE."""
    limit = requests.BODY_BYTES_MAX if ask.exchange.call.dn != ANONYMOUS else bounds.SOAP_SMALL_BYTES
    body = await read_whole(ask.exchange.request, Whole(limit))
    return await asyncio.to_thread(read, body) if len(body) > bounds.SOAP_SMALL_BYTES else read(body)


async def apply_again(
    parts: S3Parts, ask: Ask, change: Change, again: Callable[[CheloniaError], Awaitable[bool]]
) -> Done:
    """Apply a change; try again while `again` says so of its error. Raises: as it fails.

    All tries have one request key: the message of a refused one may come late, when another has applied.
    """
    call = keyed(ask.exchange.call)
    for left in range(AGAIN_MAX, -1, -1):
        try:
            return await apply(parts.plain, call, change)
        except CheloniaError as error:
            if not await again(error) or not left:
                raise
        call = structs.replace(call, is_first=False)
    raise AssertionError("the last try returns or raises")


def number_of(text: str, name: str, least: int = 0, most: int = 9_999_999_999) -> int:
    """Read the number of a parameter `name`. Raises: S3Error."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        raise S3Error("InvalidArgument", f"{name} is a number from {least} to {most}")
    return int(text)


def xml_answer(body: bytes, *headers: tuple[str, str], status: int = 200) -> HttpResponse:
    """Return an answer in XML, with further header fields."""
    return HttpResponse(status, (*answers.XML, *headers), body)


def url_of(parts: S3Parts, ask: Ask) -> str:
    """Return the URL of an object at the request's host, with the bucket in the host or in the path as there."""
    host, path = ask.exchange.request.headers.get("Host", ""), f"/{quote(ask.target.key)}"
    if not keys.target_of("/", host, parts.domain).bucket:
        path = f"/{ask.target.bucket}{path}"
    return f"https://{host}{path}" if host.isascii() and host.isprintable() else path


def homes(call: Call, bucket: LogicalName, key: str) -> tuple[LogicalName, ...]:
    """Return the places of a key: by its name, and kept apart (not for a caller narrowed to a part of the bucket)."""
    home, apart = keys.home_of(bucket, key), keys.apart_of(bucket, key)
    if home is None:
        return (apart,)
    return (home, apart) if not call.scopes or any(scope.holds(apart) for scope in call.scopes) else (home,)


async def seen(
    parts: S3Parts, ask: Ask, want: Want = Want.NOTHING, *, writes: bool = False, lately: bool = False
) -> tuple[Ask, Looked | None]:
    """Return the request at the place of a key, and its entry, None: none. `writes`: without an entry, at the place
    where it can be made. `lately`: the bucket's state of a moment ago will do.

    A name counts before a key that is kept apart: other doors write names alone. A collection counts after it: it has
    no bytes. Raises: NoSuchBucket; as `Files.look` fails.
    """
    key, order = ask.target.key, homes(ask.exchange.call, ask.bucket, ask.target.key)
    home, order = keys.home_of(ask.bucket, key), order[::-1] if key.endswith("/") else order
    call = carrying(parts.plain, ask.exchange.call) if Want.SOURCES in want else ask.exchange.call
    taken, looked, state = home is None, False, parts.state(call, ask.bucket) if lately else None
    for place in order:
        looks = (Look(place, want), *(() if state is not None else (Look(ask.bucket, Want.USER),)))
        outcome, *bucket = await parts.plain.files.look(call, looks)
        if bucket:
            looked, state = True, await bucket_state(parts, ask, bucket[0], lately=lately)
        if isinstance(outcome, Failure) and outcome.kind in (Kind.NOT_FOUND, Kind.IN_MOUNTPOINT):
            state = state if looked else None
            continue
        here, found = replace(ask.at(place), versioning=state or ""), good(outcome, ask.operation)
        fits = found.attributes.type == (TYPE_COLLECTION if here.marks else TYPE_FILE)
        if fits and not found.attributes.implied:
            return replace(here, current=version_of(found.user)), found
        taken = taken or not fits
    if state is None:
        (answer,) = await parts.plain.files.look(call, (Look(ask.bucket, Want.USER),))
        state = await bucket_state(parts, ask, answer, lately=lately)
    ask = replace(ask, versioning=state)
    if home is None or taken or (writes and await _blocked(parts, ask, home)):
        return ask.at(ask.apart), None
    return ask.at(home), None


async def seen_to_change(
    parts: S3Parts, ask: Ask, *, writes: bool = False, when: When = ANY
) -> tuple[Ask, Looked | None]:
    """Return as `seen`, with user metadata. For a caller who may not look, but perhaps change, this node looks in its
    own name. Raises: as `seen`, also DENIED of a change on condition: of `when`, or of header fields."""
    try:
        return await seen(parts, ask, Want.USER, writes=writes)
    except CheloniaError as error:
        if error.kind is not Kind.DENIED or when != ANY or ask.header("If-Match") or ask.header("If-None-Match"):
            raise
    return await _seen_in_own_name(parts, ask, writes=writes)


async def _seen_in_own_name(parts: S3Parts, ask: Ask, *, writes: bool = False) -> tuple[Ask, Looked | None]:
    here, entry = await seen(parts, in_own_name(parts, ask), Want.USER, writes=writes)
    return replace(here, exchange=replace(here.exchange, call=ask.exchange.call)), entry


def in_own_name(parts: S3Parts, ask: Ask) -> Ask:
    """Return the same request in this node's own name, to learn what the caller may not see, or do what follows from
    his changes."""
    return replace(ask, exchange=replace(ask.exchange, call=own_call(parts.plain, ask.exchange.call)))


async def bucket_state(parts: S3Parts, ask: Ask, bucket: Looked | Failure, *, lately: bool = False) -> str:
    """Return whether a bucket keeps versions. For a caller who may not read it, reads (`lately`) show no versions, and
    changes keep them all the same. Raises: NoSuchBucket; as the look failed."""
    call, hidden = ask.exchange.call, isinstance(bucket, Failure) and bucket.kind is Kind.DENIED
    if hidden and not lately:
        (bucket,) = await parts.plain.files.look(in_own_name(parts, ask).exchange.call, (Look(ask.bucket, Want.USER),))
    if isinstance(bucket, Looked):
        if bucket.attributes.type != TYPE_COLLECTION:
            raise no_bucket(ask)
        state = facts.facts_of(bucket.user).versioning
        return state if hidden else parts.note(call, ask.bucket, state)
    if bucket.kind is Kind.NOT_FOUND:
        raise no_bucket(ask)
    if not hidden:
        raise bucket.error(ask.operation)  # not "": it may keep versions
    return parts.note(call, ask.bucket, "")


async def _blocked(parts: S3Parts, ask: Ask, home: LogicalName) -> bool:
    """Return whether a file has the place of a collection above a name, even one that the caller may not see."""
    call = in_own_name(parts, ask).exchange.call
    above = [LogicalName(home.start, home.parts[:n]) for n in range(len(home.parts) - 1, len(ask.bucket.parts), -1)]
    for batch in (above[:1], above[1:]):  # mostly the nearest one is there
        looks = tuple(Look(place) for place in batch)
        for answer in await parts.plain.files.look(call, looks) if looks else ():
            if isinstance(answer, Looked):
                return answer.attributes.type == TYPE_FILE
            if answer.kind is not Kind.NOT_FOUND:
                return False  # the write will fail with the reason
    return False


async def found(parts: S3Parts, ask: Ask, want: Want = Want.NOTHING) -> tuple[Ask, Looked]:
    """Return the request at the place of a key, or of the version that it names, and the entry.

    Raises: NoSuchKey, NoSuchVersion, NoSuchBucket, MethodNotAllowed of a delete marker, and as `Files.look` fails.
    """
    version = ask.query.get("versionId", "")
    denied: CheloniaError | None = None
    before: tuple[str, list[KeptVersion]] | None = None
    for _ in range(MOVES_MAX):
        try:
            now, entry = await seen(parts, ask, want | Want.USER if version else want, lately=True)
        except CheloniaError as error:
            if not version or error.kind is not Kind.DENIED:
                raise
            now, entry = (await _seen_in_own_name(parts, ask))[0], None  # the caller may read older versions
            if version == now.current:
                raise
            denied = error
        if entry is not None and version in ("", now.current):
            return now, entry
        if not version:
            newest = await kept(parts, now, 1) if now.versioning else []
            raise no_key(ask.target.key, newest[0].version if newest and newest[0].removed else "")
        older = await kept(parts, now)
        each = next((each for each in older if each.version == version), None)
        if each is None:
            # It may have had its key only while the others were listed.
            if before == (now.current, older):
                raise denied or S3Error("NoSuchVersion", "The specified version does not exist.", version[:80])
            before = now.current, older
            continue
        if each.removed:
            raise S3Error("MethodNotAllowed", "The specified method is not allowed against a delete marker.")
        call = carrying(parts.plain, ask.exchange.call) if Want.SOURCES in want else ask.exchange.call
        (answer,) = await parts.plain.files.look(call, (Look(each.place, want | Want.USER),))
        if isinstance(answer, Failure) and answer.kind is not Kind.NOT_FOUND:
            raise answer.error(ask.operation)
        if isinstance(answer, Looked) and version_of(answer.user) == version:
            return replace(now.at(each.place), current=version), answer
    raise S3Error("ServiceUnavailable", "versions of the key are being changed all the time: ask again")


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A version that no longer has its key, or (`removed`) a delete marker. `order`: of what came after it."""

    place: LogicalName
    version: str
    removed: bool
    guid: Guid
    order: str


async def kept(parts: S3Parts, ask: Ask, limit: int = 0) -> list[KeptVersion]:
    """Return what a bucket keeps of a key beside its current version, newest first; `limit`: how many (0: all)."""
    place, prefix = ask.bucket.child(versions.COLLECTION), f"{versions.begins(ask.target.key)} "
    listing, out, more = Listing(place, "", limit, Want.USER, below=True, prefix=prefix), list[KeptVersion](), True
    while more:
        try:
            page = await parts.plain.files.list(ask.exchange.call, listing)
        except CheloniaError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return out
        out += [_kept_version(place, each) for each in page.entries if is_kept(each)]
        more = page.after != "" and not (limit and out)
        listing = replace(listing, after=page.after, limit=0)
    return out


def _kept_version(place: LogicalName, entry: Named) -> KeptVersion:
    name = LogicalName(place.start, (*place.parts, *entry.name.split("/")))
    attributes, (_, order) = entry.attributes, versions.named(entry.name) or ("", "")
    is_marker, order = attributes.type == TYPE_SYMLINK, order[: versions.ORDER]
    return KeptVersion(name, version_in(entry), is_marker, attributes.guid, order)


def is_kept(entry: Named) -> bool:
    """Return whether an entry below `※versions` is a version or a marker that the caller may read."""
    attributes = entry.attributes
    is_marker = attributes.type == TYPE_SYMLINK and facts.is_id(attributes.target)  # a user may have made another one
    return (
        (attributes.type == TYPE_FILE or is_marker)
        and attributes.owner != ""
        and versions.named(entry.name) is not None
    )


def version_in(entry: Named) -> str:
    """Return the id of a listed version or delete marker."""
    return entry.attributes.target if entry.attributes.type == TYPE_SYMLINK else version_of(entry.user)


def version_of(user: UserValues) -> str:
    """Return the id of an object's version, by its user metadata."""
    return facts.facts_of(user).version or versions.NULL


async def readable_bucket(parts: S3Parts, ask: Ask) -> Looked:
    """Return the bucket of a request. Raises: NoSuchBucket; AccessDenied when the caller may not read it."""
    bucket = await check_bucket(parts, ask)
    if bucket is None:
        raise S3Error("AccessDenied", "Access Denied")
    return bucket


async def note_facts(parts: S3Parts, ask: Ask, **changed: object) -> tuple[Ask, Looked]:
    """Change fields of the `Facts` kept beside a bucket or an object; try again while others change it.

    Returns: as `present`, the entry as it was before. Raises: as it fails.
    """
    for left in range(AGAIN_MAX, -1, -1):
        now, entry = await present(parts, ask, Want.USER)
        user = facts.stored(structs.replace(facts.facts_of(entry.user), **changed))
        # Also of the GUID: the counter of another entry may be the same.
        when = When(version=entry.attributes.version, guid=entry.attributes.guid)
        try:
            await apply(parts.plain, ask.exchange.call, Set(now.itself(entry), user=user, when=when))
            return now, entry
        except CheloniaError as error:
            if error.kind not in (Kind.PRECONDITION, Kind.NOT_FOUND) or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def present(parts: S3Parts, ask: Ask, want: Want) -> tuple[Ask, Looked]:
    """Return as `found`, or a bucket where the request names no key. Raises: as `found` and `readable_bucket`."""
    return await found(parts, ask, want) if ask.target.key else (ask, await readable_bucket(parts, ask))


async def check_bucket(parts: S3Parts, ask: Ask) -> Looked | None:
    """Return the bucket of a request, None when the caller may not read it. Raises: NoSuchBucket."""
    (answer,) = await parts.plain.files.look(ask.exchange.call, (Look(ask.bucket, Want.USER | Want.POLICY),))
    if isinstance(answer, Failure):
        if answer.kind is Kind.DENIED:
            return None
        if answer.kind is Kind.NOT_FOUND:
            raise no_bucket(ask)
        raise answer.error(ask.operation)
    if answer.attributes.type != TYPE_COLLECTION:
        raise no_bucket(ask)
    return answer


async def check_unsigned(parts: S3Parts, ask: Ask) -> None:
    """Refuse an unsigned write that is not allowed, before its body comes. Raises: DENIED."""
    if ask.exchange.call.dn == ANONYMOUS:
        await check_writable(parts, ask, keys.home_of(ask.bucket, ask.target.key) or ask.apart)


async def check_writable(parts: S3Parts, ask: Ask, place: LogicalName) -> None:
    """Refuse a caller who may not give a name bytes. Raises: DENIED."""
    (free,) = await parts.plain.files.place(ask.exchange.call, (Placing(place, -1, parents=True, within=ask.bucket),))
    if isinstance(free, Failure) and free.kind is Kind.DENIED:
        raise free.error(ask.operation)


def lost(error: CheloniaError, *, conditional: bool) -> CheloniaError:
    """Return the error of a change: one without a condition of its client's has lost to others at each of its tries."""
    if error.kind is not Kind.PRECONDITION or conditional:
        return error
    return S3Error("ServiceUnavailable", "others change the same all the time: send it again")


def no_key(key: str, marker: str = "") -> S3Error:
    """Return the error for a missing object; `marker`: the delete marker that has the key, "": none."""
    fields = (("x-amz-delete-marker", "true"), ("x-amz-version-id", marker)) if marker else ()
    return S3Error("NoSuchKey", "The specified key does not exist.", key[:80], fields)


def no_bucket(ask: Ask) -> S3Error:
    """Return the error for a missing bucket."""
    return S3Error("NoSuchBucket", "The specified bucket does not exist", ask.target.bucket[:80])
