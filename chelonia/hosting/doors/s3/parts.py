"""What the handlers of the S3 door work with, and the few things that all of them do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from chelonia.core.errors import Kind
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import IssuedKey
from chelonia.core.ports.files import Failure, Look, Looked, Want
from chelonia.core.ports.librarian import TYPE_COLLECTION, TYPE_FILE
from chelonia.core.timing.clock import Clock
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, carrying, good
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import answers, keys
from chelonia.wire.s3.checksums import Measured
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.keys import Target

REGION = "us-east-1"
"""What this door says where it is; any region that a client signs for is taken."""


class KeyRing(Protocol):
    """Finds the secrets that requests are signed with."""

    async def find(self, key_id: str) -> IssuedKey | None:
        """A key with its secret, None where there is none in force."""
        ...


@dataclass(frozen=True, slots=True)
class S3Parts:
    """The ports, the keys, and where buckets are: collections right below `root`; `domain`: whose subdomains name them,
    "": none."""

    plain: DoorParts
    keys: KeyRing
    clock: Clock
    root: LogicalName
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, verified as far as it can be before its body has come.

    `exchange`: its body is decoded and measured as it is read; its place is the bucket's until `seen` has found where
    the object is, or would be.
    """

    exchange: Exchange
    target: Target
    query: Mapping[str, str]
    measured: Measured
    bucket: LogicalName
    operation: str
    subresource: str = ""

    def header(self, name: str) -> str:
        """One header field, "" when it is not there."""
        return self.exchange.header(name)

    @property
    def place(self) -> LogicalName:
        """Where the object is, or would be."""
        return self.exchange.place

    @property
    def apart(self) -> LogicalName:
        """Where the key is, if it is kept apart."""
        return keys.apart_of(self.bucket, self.target.key)

    @property
    def marks(self) -> bool:
        """Whether the object is a collection itself: the key ends in a slash, and is not kept apart."""
        return self.target.key.endswith("/") and self.place != self.apart

    def at(self, place: LogicalName) -> Ask:
        """The same request, about an object that is there."""
        return replace(self, exchange=replace(self.exchange, place=place))


def xml_answer(body: bytes, status: int = 200) -> HttpResponse:
    """An answer in XML."""
    return HttpResponse(status, answers.XML, body)


async def seen(
    parts: S3Parts, ask: Ask, want: Want = Want.NOTHING, *, writes: bool = False
) -> tuple[Ask, Looked | None]:
    """Where a key is, and what has it; None: nothing. `writes`: else say where it can be made, not where it may be.

    A name counts before a key that is kept apart: other doors write names alone. A collection counts after it: it has
    no bytes. Raises: NoSuchBucket; as `Files.look` fails.
    """
    home, apart = keys.home_of(ask.bucket, ask.target.key), ask.apart
    order = (apart,) if home is None else (apart, home) if ask.target.key.endswith("/") else (home, apart)
    call = carrying(parts.plain, ask.exchange.call) if Want.SOURCES in want else ask.exchange.call
    taken = home is None
    for place in order:
        here = ask.at(place)
        bucket, there = await parts.plain.files.look(call, (Look(ask.bucket), Look(place, want)))
        if isinstance(bucket, Failure) and bucket.kind is Kind.NOT_FOUND:
            raise no_bucket(ask)
        if isinstance(there, Failure) and there.kind in (Kind.NOT_FOUND, Kind.IN_MOUNTPOINT):
            continue
        found = good(there, ask.operation)
        fits = found.attributes.type == (TYPE_COLLECTION if here.marks else TYPE_FILE)
        if fits and not found.attributes.implied:
            return here, found
        taken = taken or not fits
    if home is None or taken or (writes and await _blocked(parts, ask, home)):
        return ask.at(apart), None
    return ask.at(home), None


async def _blocked(parts: S3Parts, ask: Ask, home: LogicalName) -> bool:
    """Whether a file stands where a collection above a name would have to be."""
    above = [LogicalName(home.start, home.parts[:n]) for n in range(len(home.parts) - 1, len(ask.bucket.parts), -1)]
    for asked in (above[:1], above[1:]):  # as a rule the nearest one is there
        looks = tuple(Look(place) for place in asked)
        for answer in await parts.plain.files.look(ask.exchange.call, looks) if looks else ():
            if isinstance(answer, Looked):
                return answer.attributes.type == TYPE_FILE
            if answer.kind is not Kind.NOT_FOUND:
                return False  # whoever writes is told why
    return False


async def found(parts: S3Parts, ask: Ask, want: Want = Want.NOTHING) -> tuple[Ask, Looked]:
    """Where a key is, and what has it. Raises: NoSuchKey, NoSuchBucket; as `Files.look` fails."""
    ask, there = await seen(parts, ask, want)
    if there is None:
        raise no_key(ask.target.key)
    return ask, there


async def check_bucket(parts: S3Parts, ask: Ask) -> Looked | None:
    """The bucket of a request, None when the caller may not read it. Raises: NoSuchBucket."""
    keys.check_bucket(ask.target.bucket)
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


async def check_owner(parts: S3Parts, ask: Ask) -> None:
    """Refuse a request whose client takes the bucket for somebody else's. Raises: AccessDenied."""
    expected = ask.header("x-amz-expected-bucket-owner")
    if expected and ask.target.bucket and ask.operation != "CreateBucket":
        there = await check_bucket(parts, ask)
        if there is None or there.attributes.owner != expected:
            raise S3Error("AccessDenied", "Access Denied: the bucket is not the expected owner's")


def no_key(key: str) -> S3Error:
    """There is no such object."""
    return S3Error("NoSuchKey", "The specified key does not exist.", key[:80])


def no_bucket(ask: Ask) -> S3Error:
    """There is no such bucket."""
    return S3Error("NoSuchBucket", "The specified bucket does not exist", ask.target.bucket[:80])
