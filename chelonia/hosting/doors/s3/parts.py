"""What the handlers of the S3 door work with, and the few things that all of them do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

    `exchange`: its body is decoded and measured as it is read; its place is the object's, or the bucket's.
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
        """The entry of the key. Raises: S3Error when it cannot be a name."""
        return keys.place_of(self.bucket, self.target.key.removesuffix("/"))

    @property
    def marks(self) -> bool:
        """Whether the key is that of a collection itself: it ends in a slash."""
        return self.target.key.endswith("/")


def xml_answer(body: bytes, status: int = 200) -> HttpResponse:
    """An answer in XML."""
    return HttpResponse(status, answers.XML, body)


async def seen(
    parts: S3Parts, ask: Ask, place: LogicalName, want: Want = Want.NOTHING, *, marks: bool | None = None
) -> Looked | None:
    """What has a key, None: nothing. Raises: NoSuchBucket; as `Files.look` fails."""
    call = carrying(parts.plain, ask.exchange.call) if Want.SOURCES in want else ask.exchange.call
    asked = (Look(ask.bucket), Look(place, want))
    bucket, there = await parts.plain.files.look(call, asked)
    if isinstance(bucket, Failure) and bucket.kind is Kind.NOT_FOUND:
        raise no_bucket(ask)
    if isinstance(there, Failure) and there.kind in (Kind.NOT_FOUND, Kind.IN_MOUNTPOINT):
        return None
    found = good(there, ask.operation)
    wanted = TYPE_COLLECTION if (ask.marks if marks is None else marks) else TYPE_FILE
    if found.attributes.type != wanted or found.attributes.implied:
        return None
    return found


async def found(parts: S3Parts, ask: Ask, want: Want = Want.NOTHING) -> Looked:
    """What has the key of a request. Raises: NoSuchKey, NoSuchBucket; as `Files.look` fails."""
    there = await seen(parts, ask, ask.place, want)
    if there is None:
        raise no_key(ask.target.key)
    return there


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


def no_key(key: str) -> S3Error:
    """There is no such object."""
    return S3Error("NoSuchKey", "The specified key does not exist.", key[:80])


def no_bucket(ask: Ask) -> S3Error:
    """There is no such bucket."""
    return S3Error("NoSuchBucket", "The specified bucket does not exist", ask.target.bucket[:80])
