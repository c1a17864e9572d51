"""The Files port: names, attributes, content and changes as typed values. Every door is a translation of it.

`look` and `list` read, `place` says where new bytes may go, `apply` changes. A change says what must hold (`When`);
the Bartender decides the caller's rights, and one transact carries both as conditions. Bytes travel by
`core.ports.bytes`. Instants are integer nanoseconds since the Unix epoch, sizes are bytes.

Invariants: a change applies wholly or not at all, and once per request key; nothing is decided on a state older than
the transact that uses it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.quotas import QuotaUse, narrowest
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange, Extent, check_extents
from chelonia.core.contents.parts import NO_PART, PartPage, PartPlace, UploadId, UploadPage
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, BlobId, Dn, Guid
from chelonia.core.names import LogicalName
from chelonia.core.rights.locks import Lock
from chelonia.core.rights.scopes import Share, Shared

TOP: Final = LogicalName(ROOT, ())
UNSET: Final = -1
"""An attribute that nobody has set: the door that shows it chooses (a mount: 0644, 0755, its own user)."""


class Want(enum.Flag):
    """What a look or a listing tells beside the attributes."""

    NOTHING = 0
    USER = enum.auto()
    """Metadata that users wrote."""
    POLICY = enum.auto()
    CHECKSUMS = enum.auto()
    SOURCES = enum.auto()
    """TURLs to read a file from, in any ranges, bound to `Call.carrier` (unless that is `ANONYMOUS`) or else to the
    caller, who has one full body of each if he is `ANONYMOUS`."""
    EXTENTS = enum.auto()
    """Which bytes of which blobs a file is."""
    LOCKS = enum.auto()
    """Write locks: of a look all that cover the entry, of a listing each entry's own."""
    BYTES = enum.auto()
    """Of a look: all bytes of a small file, in place of what SOURCES and EXTENTS would tell of it."""
    MEASURED = enum.auto()
    """Of a look: checksums as with CHECKSUMS, and those that Shepherds keep beside the bytes, who are asked."""
    WRITE = enum.auto()
    """Of a look: who may not replace the bytes is refused."""


class Attributes(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is known of an entry without its bytes.

    Args:
        type: `file`, `collection`, `mountpoint`, `symlink` or `special`.
        version: rises with every change of the entry itself; a `When` may name it. 0 where a listing does not tell it.
        size: bytes; 0 for what has none.
        etag: names these bytes (a strong validator, RFC 9110 section 8.8.3); of a collection, its state.
        mode: permission bits, with the file type's bits of a special file; `UNSET`, as `uid` and `gid`, when not set.
        links: how many names lead to it.
        target: what a symlink or mount point stands for.
        wanted: copies wanted of a file; 0 for what has none.
        implied: of a collection: only a longer name asked for it, and it goes with the last entry in it.
    """

    guid: Guid
    type: str
    version: int
    owner: Dn
    size: int = 0
    etag: str = ""
    modified_ns: int = 0
    changed_ns: int = 0
    accessed_ns: int = 0
    created_ns: int = 0
    mode: int = UNSET
    uid: int = UNSET
    gid: int = UNSET
    device: int = 0
    links: int = 1
    target: str = ""
    wanted: int = 0
    implied: bool = False


class When(msgspec.Struct, frozen=True):
    """What must hold of the entry under a name for a change of it. Empty: anything.

    Args:
        absent: there is none (`If-None-Match: *`, O_EXCL).
        present: there is one (`If-Match: *`).
        etags: its etag is one of these (`If-Match`); not_etags: it is none of these (`If-None-Match`).
        version: `Attributes.version`; -1: any.
        unmodified_since_ns: it was last modified at this instant or before; -1: any.
        tokens: no lock covers what is changed but one of the caller's with one of these tokens; None: whatever does.
        guid: it is this entry, "": any. Copies may have the etag and the version of what they are of.
    """

    absent: bool = False
    present: bool = False
    etags: tuple[str, ...] = ()
    not_etags: tuple[str, ...] = ()
    version: int = -1
    unmodified_since_ns: int = -1
    tokens: tuple[str, ...] | None = None
    guid: Guid = Guid("")

    def refusal(self, there: Attributes | None) -> str:
        """Why this does not hold of what is there (None: nothing), for people; "" when it holds."""
        if there is None:
            asks = self.present or self.etags or self.guid or self.version >= 0 or self.unmodified_since_ns >= 0
            return "there is no such entry" if asks else ""
        if self.absent:
            return "there is an entry of this name"
        if self.guid not in ("", there.guid):
            return "it is another entry"
        if self.etags and there.etag not in self.etags:
            return f"its etag is {there.etag}"
        if there.etag in self.not_etags:
            return f"its etag is {there.etag} still"
        if self.version not in (-1, there.version):
            return f"its version is {there.version}"
        if 0 <= self.unmodified_since_ns < there.modified_ns:
            return "it was modified since"
        return ""

    def require(self, place: LogicalName, there: Attributes | None) -> None:
        """Raises: PRECONDITION unless this holds of what is there."""
        reason = self.refusal(there)
        if reason:
            raise CheloniaError(Kind.PRECONDITION, subject=str(place), cause=f"{reason}; look at it again")


ANY: Final = When()

UserValues = Mapping[str, str]
"""Metadata that users wrote: property -> value of the section `metadata`."""


# --- reading -------------------------------------------------------------------------------------------------------


class Look(msgspec.Struct, frozen=True):
    """Look at one entry; attributes are always told. `span`: of a file of several blobs, the bytes that SOURCES and
    EXTENTS are asked for; None: all."""

    place: LogicalName
    want: Want = Want.NOTHING
    span: ByteRange | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """One entry. What was not asked for is empty.

    Args:
        sources: TURLs of a file of one blob, nearest first.
        extents: of the span asked for, at most `bounds.EXTENTS_PAGE`. Gaps are zeros.
        told: the bytes up to which extents are told; look again from there for more.
        blobs: TURLs by blob, of a file of several.
        sums: with CHECKSUMS and EXTENTS, of the blobs of a file of several: checksums kept with them, name -> hex.
        data: all bytes of a file of at most `bounds.INLINE_BYTES_MAX`, as a Shepherd has checked them; None: it is
            larger or of several blobs, the answer is full, or no Shepherd gave them: then `sources` are told.
    """

    attributes: Attributes
    user: UserValues = field(default_factory=dict)
    policy: Mapping[str, str] = field(default_factory=dict)
    checksums: Checksums = Checksums()
    sources: tuple[str, ...] = ()
    extents: tuple[Extent, ...] = ()
    told: int = 0
    blobs: Mapping[BlobId, tuple[str, ...]] = field(default_factory=dict)
    locks: tuple[Lock, ...] = ()
    data: bytes | None = field(default=None, repr=False)
    sums: Mapping[BlobId, Mapping[str, str]] = field(default_factory=dict)


T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """Why one element of a call failed: the error of that element alone."""

    kind: Kind
    subject: str = ""
    cause: str = ""

    def error(self, op: str = "") -> CheloniaError:
        """The error to raise where one element was asked for."""
        return CheloniaError(self.kind, op, self.subject, self.cause)


def good(answer: T | Failure, op: str) -> T:
    """The answer to the one element asked for. Raises: what it failed with."""
    if isinstance(answer, Failure):
        raise answer.error(op)
    return answer


class Listing(msgspec.Struct, frozen=True):
    """A page of what is in a collection, in byte order of path, where a collection's ends in `/`.

    Args:
        after: the path that the page follows: of the answer before, or any other.
        limit: answers, at most `bounds.BELOW_ENTRIES_MAX`; 0: `bounds.PAGE_ENTRIES_MAX`.
        below: everything below the collection, else what is in it by name.
        prefix: only paths that begin with it; a path is relative to `place`.
        delimiter: paths that have it behind the prefix are told by what they have in common up to it, once.
    """

    place: LogicalName
    after: str = ""
    limit: int = 0
    want: Want = Want.NOTHING
    below: bool = False
    prefix: str = ""
    delimiter: str = ""


class Named(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry of a listing; `name`: its path below the collection that is listed, without a slash at its end.

    A caller without `read` on it is told its type, size and times only.
    """

    name: str
    attributes: Attributes
    user: UserValues = msgspec.field(default_factory=dict)
    locks: tuple[Lock, ...] = ()


class Listed(msgspec.Struct, frozen=True):
    """A page of a listing. `prefixes`: what the delimiter has summed up, in order; each counts as an answer. `after`
    continues it; "" when this is the last page."""

    entries: tuple[Named, ...]
    after: str = ""
    prefixes: tuple[str, ...] = ()


# --- writing -------------------------------------------------------------------------------------------------------


class Setting(msgspec.Struct, frozen=True):
    """Attributes to set; None leaves one as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    device: int | None = None
    modified_ns: int | None = None
    accessed_ns: int | None = None


LEAVE: Final = Setting()


class Reserving(msgspec.Struct, frozen=True):
    """A name is reserved for bytes until their TURL expires. The Shepherd gives it to them itself once it has them all:
    nothing is left to apply, and neither rights nor `when` are decided again. `setting`: of the file."""

    setting: Setting = LEAVE
    when: When = ANY


class Placing(msgspec.Struct, frozen=True):
    """Where may the bytes of a file go? `size` -1 and empty checksums when not known before. `wanted`: copies;
    `parents`: the collections above it may be missing, as `Write.parents` will make them. `piece`: the bytes will be
    part of a file, by a `Content` or as a `Part`; `part`: as this one and no other. `reserving`: they will be the whole
    of a file, whose collection is there, without a `Write`; then `Placed.put` is empty. `when`: what is refused before
    the bytes are sent, if it does not hold; the change that brings them says it again."""

    place: LogicalName
    size: int
    checksums: Checksums = Checksums()
    wanted: int = 3
    parents: bool = False
    piece: bool = False
    part: PartPlace = NO_PART
    reserving: Reserving | None = None
    when: When = ANY


class Placed(msgspec.Struct, frozen=True):
    """`turl`: PUT the bytes there, with the ticket bound to `Call.carrier` or else to the caller; `put`: the token that
    `Arrived` carries back; `blob`: what an `Extent` calls the bytes. `note`: as of `Done`."""

    turl: str
    put: str
    blob: BlobId = BlobId("")
    note: str = ""


class Arrived(msgspec.Struct, frozen=True):
    """Bytes on stable storage: the token of `place`, and the receipts of the Shepherds that hold them."""

    put: str
    receipts: tuple[str, ...]


NOTHING_ARRIVED: Final = Arrived("", ())
"""In place of bytes that are on stable storage: they come in the message."""


@dataclass(frozen=True, slots=True)
class Inline:
    """All bytes of a file, or a piece of one, in the message: at most `bounds.INLINE_BYTES_MAX`. The Bartender stores
    them before it answers. `wanted`, `checksums`: as in `Placing`; `checksums.sha256` also tells repeated calls from
    others."""

    data: bytes = field(repr=False)
    wanted: int = 3
    checksums: Checksums = Checksums()


INLINED: Final = BlobId("")
"""What an extent calls the bytes that come in its message."""
MARK: Final = "mark"
"""Under what name `Looked.sums` tells `Content.mark`."""
_AN_ETAG: Final = re.compile(r"[!#-~]{0,256}")
"""Of a writer's: what stands between quotes in a header field, and in any XML once it is escaped."""
_A_MARK: Final = re.compile(rf"[0-9A-Za-z-]{{0,{bounds.MARK_CHARACTERS_MAX}}}")


class Content(msgspec.Struct, frozen=True):
    """Extents to lay over what a file has: append, write in the middle, truncate; `whole`: in place of all of it.

    Args:
        extents: of `blobs` and `inline` alone, ordered, not overlapping.
        blobs: pieces that have arrived, at most `bounds.SPLICE_BLOBS_MAX`; each is named by an extent.
        size: of the file afterwards, -1: as far as it reaches. What is beyond it goes; gaps are zeros.
        inline: the only piece, where it comes in the message; extents call it `INLINED`.
        mark: a word for the pieces, at most `bounds.MARK_CHARACTERS_MAX` letters, digits and `-`. It stays with them
            (`Looked.sums`), so that whoever has not heard the answer knows his own among others'.
    """

    extents: tuple[Extent, ...] = ()
    blobs: tuple[Arrived, ...] = ()
    size: int = -1
    whole: bool = False
    inline: Inline | None = None
    mark: str = ""

    def check(self, place: LogicalName) -> None:
        """Raises: BAD_REQUEST, TOO_LARGE unless it is a content of `place`, as far as it tells itself."""
        check_extents(self.extents, self.size)
        if len(self.blobs) > bounds.SPLICE_BLOBS_MAX:
            cause = f"at most {bounds.SPLICE_BLOBS_MAX} blobs in one change; write in several"
            raise CheloniaError(Kind.TOO_LARGE, subject=str(place), cause=cause)
        if self.inline is not None and (self.blobs or any(extent.blob != INLINED for extent in self.extents)):
            cause = "a piece in the message is the only one; place them all, or send this one alone"
            raise CheloniaError(Kind.BAD_REQUEST, subject=str(place), cause=cause)
        if not _A_MARK.fullmatch(self.mark):
            cause = f"a mark has at most {bounds.MARK_CHARACTERS_MAX} letters, digits and `-`"
            raise CheloniaError(Kind.BAD_REQUEST, subject=str(place), cause=cause)


class Make(msgspec.Struct, frozen=True):
    """Make an entry that has no bytes: a collection, a symlink or mount point (`target`), a special file.

    `parents`: make the collections above it that are missing; they stay when the entry itself is refused. They are
    implied: `Removing.KEY` lets one go with the last entry in it.
    """

    place: LogicalName
    type: str
    setting: Setting = LEAVE
    user: UserValues = msgspec.field(default_factory=dict)
    target: str = ""
    parents: bool = False
    when: When = ANY


class Write(msgspec.Struct, frozen=True):
    """Give a file these bytes: a new one, or one that is there, which keeps its GUID, links and policy.

    `user` None leaves what users wrote about a file as it is. `parents` as in `Make`. `etag`: what is to name these
    bytes, "": the id of their blob. `inline`: the bytes, where none have arrived before. `policy`: rules in place of
    those that the file has, or would get from its collection, but for those of groups (`VOMS:`); None: these.
    """

    place: LogicalName
    content: Arrived = NOTHING_ARRIVED
    setting: Setting = LEAVE
    user: UserValues | None = None
    parents: bool = False
    when: When = ANY
    etag: str = ""
    inline: Inline | None = None
    policy: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raises: BAD_REQUEST for an etag that readers could not be told."""
        if not _AN_ETAG.fullmatch(self.etag):
            cause = "an etag has at most 256 printable ASCII characters, no blank and no quote among them"
            raise CheloniaError(Kind.BAD_REQUEST, subject=str(self.place), cause=cause)


class Splice(msgspec.Struct, frozen=True):
    """Lay extents over a file, or make one of them; all else as in `Write`."""

    place: LogicalName
    content: Content
    setting: Setting = LEAVE
    user: UserValues | None = None
    parents: bool = False
    when: When = ANY

    def check(self) -> None:
        """Raises: as `Content.check`."""
        self.content.check(self.place)


class Clone(msgspec.Struct, frozen=True):
    """Give a file the bytes of another by reference: no byte moves, and each may be changed or removed by itself.

    `source` has to be readable; `of`: what must hold of it, which `when` says of `place`. All else as in `Write`, but
    that `user` None takes along what users wrote about the source. Size, checksums, etag and the number of copies are
    the source's; quotas count the full size. Failures beside those of a write: NOT_A_FILE, BAD_REQUEST (one onto
    itself), TOO_LARGE (too many files have these bytes by reference already: copy them).
    """

    place: LogicalName
    source: LogicalName
    setting: Setting = LEAVE
    user: UserValues | None = None
    parents: bool = False
    when: When = ANY
    of: When = ANY
    policy: Mapping[str, str] | None = None


UNSHARED: Final = (Kind.TOO_LARGE, Kind.NOT_SUPPORTED)
"""What a copy by reference fails with where a copy of the bytes need not."""


class Open(msgspec.Struct, frozen=True):
    """Open an upload in parts for a file: `Done.upload` names it. Nothing of it is seen under the file's name.

    `within`: the collection that lists it, at or above the file's own; the upload is listed there by the rest of the
    name. `setting` and `user` become those of the file. `parents`: collections between may be missing.
    """

    place: LogicalName
    within: LogicalName
    wanted: int = 3
    setting: Setting = LEAVE
    user: UserValues = msgspec.field(default_factory=dict)
    parents: bool = False


class Part(msgspec.Struct, frozen=True):
    """A piece that has arrived (`Placing.piece`) becomes a part, in place of one of its number (1 to
    `bounds.PARTS_MAX`). `checksum`: one more that its sender has measured and wants told of it (`<name>:<hex>`): with
    the parts of the upload, and in `Looked.sums`. `etag`: its MD5, as S3 calls it, where its sender has measured that
    (32 hex digits), else `part_etag`; `Done.etag` says which it has."""

    place: LogicalName
    upload: UploadId
    number: int
    content: Arrived
    checksum: str = ""
    etag: str = ""


def placed_part(change: object) -> PartPlace:
    """As which part bytes may have been placed that come with a change."""
    return PartPlace(change.upload, change.number) if isinstance(change, Part) else NO_PART


class Seal(msgspec.Struct, frozen=True):
    """Make parts the content of the file, in one step for readers; parts that are not named go. All else is as in
    `Write`; the etag of the file is `<MD5 of the parts' MD5s>-<their number>`.

    `place`: the name it was opened for, or another of which the caller may the same.

    - `order`: number and etag of each part, numbers rising
    - `least`: bytes that each has, but the last
    - `user`: metadata for the file beside, and before, what the upload keeps for it
    - `policy`: as of `Write`
    """

    place: LogicalName
    upload: UploadId
    order: tuple[tuple[int, str], ...]
    least: int = 0
    parents: bool = False
    when: When = ANY
    user: UserValues = msgspec.field(default_factory=dict)
    policy: Mapping[str, str] | None = None


class Drop(msgspec.Struct, frozen=True):
    """Give an upload in parts up. Who opened it may, and who may take names from the collection that lists it."""

    place: LogicalName
    upload: UploadId


class Set(msgspec.Struct, frozen=True):
    """Set attributes, user metadata (a value None takes it away), rights (`policy` likewise) and locks, together.

    `locks`: taken, or refreshed where their token is known, or (`lasts_ms` 0) given up.
    """

    place: LogicalName
    setting: Setting = LEAVE
    user: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    policy: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    when: When = ANY
    locks: tuple[Lock, ...] = ()


class Over(enum.Enum):
    """What a move does with an entry that has the target's name."""

    REFUSE = "refuse"
    REPLACE = "replace"
    """It goes as `Remove` does it, in the same transact; a collection only when it is empty (POSIX rename)."""
    EXCHANGE = "exchange"
    """The two entries change names."""


class Move(msgspec.Struct, frozen=True):
    """Give an entry another name; `keep`: one more name (a hard link). `when` speaks of the source. `parents`: of the
    target, as in `Make`."""

    source: LogicalName
    target: LogicalName
    over: Over = Over.REFUSE
    keep: bool = False
    when: When = ANY
    parents: bool = False


class Removing(enum.Enum):
    """What is taken away."""

    NAME = "name"
    """One name; the last one takes a file, or an empty collection, with it."""
    FILE = "file"
    """A file with all its names."""
    COLLECTION = "collection"
    """An empty collection."""
    KEY = "key"
    """A name of what is no collection, and the implied collections above it that are empty then."""
    MARK = "mark"
    """That a collection is there for its own sake: it is implied from now on, and goes once nothing is in it."""


class Remove(msgspec.Struct, frozen=True):
    """Take a name, a file or an empty collection away. A file's bytes stay in the trash for a while."""

    place: LogicalName
    what: Removing = Removing.NAME
    when: When = ANY


Change = Make | Write | Splice | Clone | Open | Part | Seal | Drop | Set | Move | Remove


class Done(msgspec.Struct, frozen=True):
    """A change that applied.

    - `attributes`: the entry after it, None when it is gone
    - `made`: the change made it
    - `upload`: what `Open` opened
    - `etag`: of a `Part`
    - `note`: what the user may want to know, as that more copies are wanted than there are Shepherds
    """

    attributes: Attributes | None = None
    made: bool = False
    upload: UploadId = UploadId("")
    etag: str = ""
    note: str = ""


class Uploads(msgspec.Struct, frozen=True):
    """A page of the open uploads that a collection lists, of keys that begin with `prefix`.

    `after`: `UploadPage.after`, or `parts.listing_mark` of an upload, or a key and `parts.AFTER_KEY`. `limit`: at most
    `bounds.PAGE_ENTRIES_MAX`; 0: that many.
    """

    place: LogicalName
    prefix: str = ""
    after: str = ""
    limit: int = 0


class UploadParts(msgspec.Struct, frozen=True):
    """A page of the parts of an open upload, those with numbers above `after`. `limit` as in `Uploads`."""

    place: LogicalName
    upload: UploadId
    after: int = 0
    limit: int = 0


class Space(msgspec.Struct, frozen=True):
    """Bytes of all Shepherds that are alive: what they have, and what is free. A file takes as much as all its copies.

    `quotas`: those that count what the caller writes below the place asked about; of files' bytes, not their copies'.
    """

    total: int
    free: int
    quotas: tuple[QuotaUse, ...] = ()

    def of_files(self, copies: int) -> tuple[int, int]:
        """Bytes of files, kept in so many copies, that fit in all and still: as the narrowest quota has it, where that
        is less."""
        total, free = self.total // copies, self.free // copies
        use = narrowest(self.quotas)
        if use is None or use.bytes_left >= free:
            return total, free
        return use.bytes + use.bytes_left, use.bytes_left


class Files(Protocol):
    """Names, attributes and changes. A failure of one element is an answer; a failure of the call is raised."""

    async def look(self, call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        """Look at entries; `read` is needed on each.

        Args: `asks`: at most `bounds.BULK_ELEMENTS_MAX`.
        Returns: answers in the order of `asks`.
        """

    async def list(self, call: Call, ask: Listing) -> Listed:
        """Return a page of a collection: what is in those below it that the caller may not read is left out.

        Raises: NOT_FOUND, DENIED, NOT_A_COLLECTION, IN_MOUNTPOINT, BAD_REQUEST, TOO_LARGE (one call has read so much).
        """

    async def place(self, call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        """Choose Shepherds for new bytes. Writes nothing, so that nothing is left of an upload that breaks off."""

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        """Apply changes, each one transact of its own, in order where their names are related.

        Failures: PRECONDITION (a `When` does not hold), LOCKED (its `tokens` do not), and each change's own.
        """

    async def share(self, call: Call, ask: Share) -> Shared:
        """Give a token for an entry. Rights are judged again whenever it is used.

        Raises: NOT_FOUND, BAD_REQUEST; DENIED to whoever lacks them, has no certificate, or has a token himself;
        NOT_SUPPORTED where no plain door is known.
        """

    async def uploads(self, call: Call, ask: Uploads) -> UploadPage:
        """Return a page of open uploads; `read` is needed on the collection. Raises: as `list`."""

    async def parts(self, call: Call, ask: UploadParts) -> PartPage:
        """Return a page of parts, to who opened the upload or may read the collection that lists it.

        Raises: NOT_FOUND (no such upload for this name), DENIED.
        """

    async def space(self, call: Call, place: LogicalName = TOP) -> Space:
        """How much there is to store in, a little old; and the quotas that bind the caller below a collection (of one
        that he may not read, only his own)."""
