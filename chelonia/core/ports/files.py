"""The Files port: names, attributes, content and changes as typed values. Every door is a translation of it.

`look` and `list` read, `place` says where new bytes may go, `apply` changes. A change names its conditions (`When`).
The Bartender decides the caller's rights, and one transact carries both as conditions. Bytes travel by
`core.ports.bytes`. Instants are integer nanoseconds since the Unix epoch, sizes are bytes.

Invariants: a change applies wholly or not at all, and once per request key. No decision rests on a state older than
the transact that uses it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from zlib import crc32

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
    """Facts that a look or a listing returns beside the attributes."""

    NOTHING = 0
    USER = enum.auto()
    """Metadata that users wrote."""
    POLICY = enum.auto()
    CHECKSUMS = enum.auto()
    SOURCES = enum.auto()
    """TURLs to read a file from, in any ranges, bound to `Call.carrier` or else to the caller. If the carrier is
    `ANONYMOUS` they are unbound; a caller that is `ANONYMOUS` gets one full body of each."""
    EXTENTS = enum.auto()
    """The extents of a file: the bytes of blobs that it consists of."""
    LOCKS = enum.auto()
    """Write locks: of a look all that cover the entry, of a listing each entry's own."""
    BYTES = enum.auto()
    """Of a look: all bytes of a small file, in place of the answer to SOURCES and EXTENTS."""
    MEASURED = enum.auto()
    """Of a look: checksums as with CHECKSUMS, and those that only Shepherds keep, beside the bytes."""
    WRITE = enum.auto()
    """Of a look: refuse a caller who may not give the name bytes, also where it leads nowhere yet."""


class Attributes(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The attributes of an entry, without its bytes.

    Args:
        type: `file`, `collection`, `mountpoint`, `symlink` or `special`.
        version: rises with every change of the entry itself; a `When` may name it. 0 where a listing omits it.
        size: bytes; 0 for an entry without bytes.
        etag: names these bytes (a strong validator, RFC 9110 section 8.8.3); of a collection, its state.
        mode: permission bits, with the file type's bits of a special file; `UNSET`, as `uid` and `gid`, when not set.
        links: number of its names.
        target: the text of a symlink, or the place that a mount point stands for.
        wanted: copies wanted of a file; 0 for other entries.
        implied: of a collection: made only as part of a longer name, it goes with the last entry in it.
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
    """Conditions on the entry under a name for a change of it. Empty: none.

    Args:
        absent: there is none (`If-None-Match: *`, O_EXCL).
        present: there is one (`If-Match: *`).
        etags: its etag is one of these (`If-Match`); not_etags: it is none of these (`If-None-Match`).
        version: `Attributes.version`; -1: any.
        unmodified_since_ns: it was last modified at this instant or before; -1: any.
        tokens: no lock covers the change, or one of the caller's with one of these tokens; None: locks do not matter.
        guid: it is this entry, "": any. A copy may have the etag and the version of its source.
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
        """Return why the entry there (None: no entry) does not meet this, for people; "" when it does."""
        if there is None:
            asks = self.present or self.etags or self.guid or self.version >= 0 or self.unmodified_since_ns >= 0
            return "there is no such entry" if asks else ""
        if self.absent:
            return "there is an entry of this name"
        if self.guid not in ("", there.guid):
            return "it is another entry"
        if self.etags and there.etag not in self.etags:
            return "its etag is another"  # not which one: who asks need not have the right to read it
        if there.etag in self.not_etags:
            return "its etag is the same still"
        if self.version not in (-1, there.version):
            return "its version is another"
        if 0 <= self.unmodified_since_ns < there.modified_ns:
            return "it was modified since"
        return ""

    def require(self, place: LogicalName, there: Attributes | None) -> None:
        """Refuse an entry that does not meet this. Raises: PRECONDITION."""
        reason = self.refusal(there)
        if reason:
            raise CheloniaError(Kind.PRECONDITION, subject=str(place), cause=f"{reason}; look at it again")


ANY: Final = When()

UserValues = Mapping[str, str]
"""Metadata that users wrote: property -> value of the section `metadata`."""


# --- reading -------------------------------------------------------------------------------------------------------


class Look(msgspec.Struct, frozen=True):
    """A look at one entry, for its attributes and more. `span`: of a file of several blobs, the bytes whose SOURCES and
    EXTENTS are wanted; None: all."""

    place: LogicalName
    want: Want = Want.NOTHING
    span: ByteRange | None = None


class Looked(msgspec.Struct, frozen=True):
    """One entry. Fields that the look did not want are empty.

    Args:
        sources: TURLs of a file of one blob, nearest first.
        extents: of the span, at most `bounds.EXTENTS_PAGE`. Gaps are zeros.
        told: the offset up to which `extents` are complete; look again from there for more.
        blobs: TURLs by blob, of a file of several.
        sums: with CHECKSUMS and EXTENTS, of the blobs of a file of several: checksums kept with them, name -> hex.
        data: all bytes of a file of at most `bounds.INLINE_BYTES_MAX`, as a Shepherd has checked them. None if it is
            larger or of several blobs, the answer is full, or no Shepherd gave them: then `sources` are there.
    """

    attributes: Attributes
    user: UserValues = msgspec.field(default_factory=dict)
    policy: Mapping[str, str] = msgspec.field(default_factory=dict)
    checksums: Checksums = Checksums()
    sources: tuple[str, ...] = ()
    extents: tuple[Extent, ...] = ()
    told: int = 0
    blobs: Mapping[BlobId, tuple[str, ...]] = msgspec.field(default_factory=dict)
    locks: tuple[Lock, ...] = ()
    data: bytes | None = None
    sums: Mapping[BlobId, Mapping[str, str]] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a text without the bytes."""
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "data"]
        return f"Looked({', '.join(shown)})"


T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """The error of one element of a call."""

    kind: Kind
    subject: str = ""
    cause: str = ""

    def error(self, op: str = "") -> CheloniaError:
        """Return the error to raise for a call of one element."""
        return CheloniaError(self.kind, op, self.subject, self.cause)


def good(answer: T | Failure, op: str) -> T:
    """Return the answer to a single element. Raises: the error that it failed with."""
    if isinstance(answer, Failure):
        raise answer.error(op)
    return answer


class Listing(msgspec.Struct, frozen=True):
    """A request for a page of a collection, in byte order of path; a collection's path ends in `/`.

    Args:
        after: the path that the page follows: of the answer before, or any other.
        limit: answers, at most `bounds.BELOW_ENTRIES_MAX`; 0: `bounds.PAGE_ENTRIES_MAX`.
        below: list everything below the collection, else only the names in it.
        prefix: only paths that begin with it; a path is relative to `place`.
        delimiter: paths with it behind the prefix are grouped: one answer has what they share, up to the delimiter.
    """

    place: LogicalName
    after: str = ""
    limit: int = 0
    want: Want = Want.NOTHING
    below: bool = False
    prefix: str = ""
    delimiter: str = ""


class Named(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry of a listing; `name`: its path below the listed collection, without a slash at its end.

    A caller without `read` on it gets its type, size and times only.
    """

    name: str
    attributes: Attributes
    user: UserValues = msgspec.field(default_factory=dict)
    locks: tuple[Lock, ...] = ()


class Listed(msgspec.Struct, frozen=True):
    """A page of a listing. `prefixes`: groups made by the delimiter, in order; each counts as an answer. `after`
    continues it; "" when this is the last page."""

    entries: tuple[Named, ...]
    after: str = ""
    prefixes: tuple[str, ...] = ()


# --- writing -------------------------------------------------------------------------------------------------------


class Setting(msgspec.Struct, frozen=True):
    """Attributes to set; None leaves one unchanged."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    device: int | None = None
    modified_ns: int | None = None
    accessed_ns: int | None = None


LEAVE: Final = Setting()


class Reserving(msgspec.Struct, frozen=True):
    """A name reserved for bytes until their TURL expires. The Shepherd commits it itself once it has all bytes: nothing
    is left to apply, and neither rights nor `when` are decided again. `setting`: of the file."""

    setting: Setting = LEAVE
    when: When = ANY


class Placing(msgspec.Struct, frozen=True):
    """A request for a place for a file's bytes. `size`: -1 if unknown, as empty checksums. `wanted`: copies. `parents`:
    the collections above it may be missing, as `Write.parents` will make them, but not `within`. `piece`: the bytes
    will be part of a file, by a `Content` or as a `Part`; `part`: as this one and no other. `at`: the bytes of the file
    that a piece will be, in order, at most `bounds.PLACED_SPANS_MAX` spans. A sender that will give the
    file another size than those do, or begin it anew, gives none.
    `reserving`: they will be a whole file in an existing collection, without a `Write`; `Placed.put` is then empty.
    `when`: if it does not hold, the bytes are refused before they are sent; the change that brings them repeats it."""

    place: LogicalName
    size: int
    checksums: Checksums = Checksums()
    wanted: int = 3
    parents: bool = False
    piece: bool = False
    part: PartPlace = NO_PART
    reserving: Reserving | None = None
    when: When = ANY
    within: LogicalName | None = None
    at: tuple[ByteRange, ...] = ()


class Placed(msgspec.Struct, frozen=True):
    """The place for bytes. `turl`: PUT them there, with the ticket bound to `Call.carrier` or else to the caller.
    `put`: the token for `Arrived`; `blob`: their name in an `Extent`. `note`: as in `Done`."""

    turl: str
    put: str
    blob: BlobId = BlobId("")
    note: str = ""


class Arrived(msgspec.Struct, frozen=True):
    """Bytes on stable storage: the token of `place`, and the receipts of the Shepherds that hold them."""

    put: str
    receipts: tuple[str, ...]


NOTHING_ARRIVED: Final = Arrived("", ())
"""In place of bytes on stable storage: they come in the message."""


@dataclass(frozen=True, slots=True)
class Inline:
    """All bytes of a file, or of a piece, in the message: at most `bounds.INLINE_BYTES_MAX`. The Bartender stores
    them before it answers. `wanted`, `checksums`: as in `Placing`."""

    data: bytes
    wanted: int = 3
    checksums: Checksums = Checksums()

    def __repr__(self) -> str:
        """Return a text without the bytes, which other bytes change: request keys are bound to it."""
        return f"Inline({len(self.data)} bytes, CRC-32 {crc32(self.data):08x}, wanted={self.wanted})"


INLINED: Final = BlobId("")
"""The blob of an extent whose bytes come in its message."""
MARK: Final = "mark"
"""The name of `Content.mark` in `Looked.sums`."""
_AN_ETAG: Final = re.compile(r"[!#-~]{0,256}")
"""Text of a writer's etag: allowed between quotes in a header field, and in any XML once it is escaped."""
_A_MARK: Final = re.compile(rf"[0-9A-Za-z-]{{0,{bounds.MARK_CHARACTERS_MAX}}}")


class Content(msgspec.Struct, frozen=True):
    """Extents to lay over a file's: append, write in the middle, truncate; `whole`: in place of them.

    Args:
        extents: of `blobs` and `inline` alone, ordered, not overlapping.
        blobs: arrived pieces, at most `bounds.SPLICE_BLOBS_MAX`; an extent names each of them.
        size: of the file afterwards, -1: up to its end. Bytes beyond it go; gaps are zeros.
        inline: the only piece, where it comes in the message; extents call it `INLINED`.
        mark: as in `Write`. It stays with the pieces (`Looked.sums`).
    """

    extents: tuple[Extent, ...] = ()
    blobs: tuple[Arrived, ...] = ()
    size: int = -1
    whole: bool = False
    inline: Inline | None = None
    mark: str = ""

    def check(self, place: LogicalName) -> None:
        """Refuse an invalid content of `place`, as far as it shows itself. Raises: BAD_REQUEST, TOO_LARGE."""
        check_extents(self.extents, self.size)
        if len(self.blobs) > bounds.SPLICE_BLOBS_MAX:
            cause = f"at most {bounds.SPLICE_BLOBS_MAX} blobs in one change; write in several"
            raise CheloniaError(Kind.TOO_LARGE, subject=str(place), cause=cause)
        if self.inline is not None and (self.blobs or any(extent.blob != INLINED for extent in self.extents)):
            cause = "a piece in the message is the only one; place them all, or send this one alone"
            raise CheloniaError(Kind.BAD_REQUEST, subject=str(place), cause=cause)
        _check_mark(place, self.mark)


class Make(msgspec.Struct, frozen=True):
    """A new entry without bytes: a collection, a symlink or mount point (`target`), a special file.

    `parents`: make the missing collections above it; if the entry itself is refused, they are removed again. They are
    implied: `Removing.KEY` lets one go with the last entry in it. The default policy of the nearest collection above
    that is not implied counts in them. `default_of`: the collection whose default policy the new entry gets, as far as
    it is there. None: its own. The entry gets none from one that the caller may neither read nor add to. `within`: a
    collection above it that is not made, nor any above that; None: they may be made, too.
    """

    place: LogicalName
    type: str
    setting: Setting = LEAVE
    user: UserValues = msgspec.field(default_factory=dict)
    target: str = ""
    parents: bool = False
    when: When = ANY
    default_of: LogicalName | None = None
    within: LogicalName | None = None


class Write(msgspec.Struct, frozen=True):
    """New bytes of a file. It may be new, or exist, and then keeps its GUID, links and policy.

    `user` replaces the users' metadata of a file, None leaves them. `parents`, `default_of` and `within` as in
    `Make`. `etag`: of these bytes, "": the id of their blob. `inline`: the bytes, where none have arrived before.
    `policy`: rules in place of those that the file has, or would get by a default policy, except those of groups
    (`VOMS:`); None: no change. They need `modifyPolicy`. `ANONYMOUS` owns nothing: a new file of his may allow nobody
    more than its collection does by its policy or default policy.

    `mark`: the caller's identifier of this change, at most `bounds.MARK_CHARACTERS_MAX` letters, digits and `-`; "":
    none. It is the change's request key, bound to the caller and to `when.guid`, else to the place. Once the change has
    applied, all of this mark is answered as done for 10 minutes, in any call.
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
    default_of: LogicalName | None = None
    within: LogicalName | None = None
    mark: str = ""

    def check(self) -> None:
        """Refuse an etag that no answer could carry, and an invalid mark. Raises: BAD_REQUEST."""
        _check_mark(self.place, self.mark)
        if not _AN_ETAG.fullmatch(self.etag):
            cause = "an etag has at most 256 printable ASCII characters, no blank and no quote among them"
            raise CheloniaError(Kind.BAD_REQUEST, subject=str(self.place), cause=cause)


def _check_mark(place: LogicalName, mark: str) -> None:
    if not _A_MARK.fullmatch(mark):
        cause = f"a mark has at most {bounds.MARK_CHARACTERS_MAX} letters, digits and `-`"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(place), cause=cause)


class Splice(msgspec.Struct, frozen=True):
    """Extents to lay over a file, or to make a new one of; all else as in `Write`."""

    place: LogicalName
    content: Content
    setting: Setting = LEAVE
    user: UserValues | None = None
    parents: bool = False
    when: When = ANY

    def check(self) -> None:
        """Refuse an invalid content. Raises: as `Content.check`."""
        self.content.check(self.place)


class Clone(msgspec.Struct, frozen=True):
    """A copy by reference: a file gets the bytes of another. No byte moves, and each may be changed or removed alone.

    The caller needs `read` on `source`; `of`: conditions on it, as `when` on `place`. All else as in `Write`, except
    that `user` None copies the users' metadata of the source. Size, checksums, etag and number of copies are the
    source's; quotas count the full size. Failures beside those of a write: NOT_A_FILE, BAD_REQUEST (onto itself),
    TOO_LARGE (too many files have these bytes by reference already: copy them).
    """

    place: LogicalName
    source: LogicalName
    setting: Setting = LEAVE
    user: UserValues | None = None
    parents: bool = False
    when: When = ANY
    of: When = ANY
    policy: Mapping[str, str] | None = None
    default_of: LogicalName | None = None
    within: LogicalName | None = None


UNSHARED: Final = (Kind.TOO_LARGE, Kind.NOT_SUPPORTED)
"""Failures of a copy by reference that a copy of the bytes may not have."""


class Open(msgspec.Struct, frozen=True):
    """An upload in parts to open for a file: `Done.upload` names it. The file's name shows nothing of it.

    `within`: the collection that lists it, at or above the file's own, by the rest of the name. `setting` and `user`
    become those of the file. `parents`: collections between may be missing.
    """

    place: LogicalName
    within: LogicalName
    wanted: int = 3
    setting: Setting = LEAVE
    user: UserValues = msgspec.field(default_factory=dict)
    parents: bool = False


class Part(msgspec.Struct, frozen=True):
    """An arrived piece (`Placing.piece`) that becomes a part, in place of one of its number (1 to `bounds.PARTS_MAX`).
    `checksum`: another one of its sender (`<name>:<hex>`), shown with the upload's parts and in `Looked.sums`. `etag`:
    its MD5, as S3 calls it, where its sender has measured that (32 hex digits), else `part_etag`; `Done.etag` has the
    one in force."""

    place: LogicalName
    upload: UploadId
    number: int
    content: Arrived
    checksum: str = ""
    etag: str = ""


def placed_part(change: object) -> PartPlace:
    """Return the part as which the bytes of a change may have been placed."""
    return PartPlace(change.upload, change.number) if isinstance(change, Part) else NO_PART


class Seal(msgspec.Struct, frozen=True):
    """Parts to make the content of the file, in one step for readers; parts not named are dropped. All else as in
    `Write`; the etag of the file is `<MD5 of the parts' etags>-<their number>`.

    `place`: the name it was opened for, or another one on which the caller has the same rights.

    - `order`: number and etag of each part, numbers rising
    - `least`: least bytes of each part but the last
    - `user`: metadata for the file beside those that the upload keeps for it, and preferred to them. None at all: the
      file's own stay
    - `policy`: as in `Write`
    """

    place: LogicalName
    upload: UploadId
    order: tuple[tuple[int, str], ...]
    least: int = 0
    parents: bool = False
    when: When = ANY
    user: UserValues = msgspec.field(default_factory=dict)
    policy: Mapping[str, str] | None = None
    default_of: LogicalName | None = None
    within: LogicalName | None = None


class Drop(msgspec.Struct, frozen=True):
    """An upload in parts to drop, by its opener or a caller who may remove names from the collection that lists it."""

    place: LogicalName
    upload: UploadId


class Set(msgspec.Struct, frozen=True):
    """Attributes, user metadata, rights (`policy`) and locks to set together; a value None removes one.

    `locks`: taken, or refreshed where their token is known, or (`lasts_ms` 0) released.
    """

    place: LogicalName
    setting: Setting = LEAVE
    user: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    policy: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    when: When = ANY
    locks: tuple[Lock, ...] = ()


class Over(enum.Enum):
    """The treatment of an entry that has a move's target name."""

    REFUSE = "refuse"
    REPLACE = "replace"
    """Remove it as `Remove` does, in the same transact; a collection only when it is empty (POSIX rename)."""
    EXCHANGE = "exchange"
    """Let the two entries change names."""


class Move(msgspec.Struct, frozen=True):
    """A new name for an entry; `keep`: a further one (a hard link). `when`: on the source. `parents`: of the target,
    below the collection that is above both names."""

    source: LogicalName
    target: LogicalName
    over: Over = Over.REFUSE
    keep: bool = False
    when: When = ANY
    parents: bool = False


class Removing(enum.Enum):
    """The object of a removal."""

    NAME = "name"
    """One name; the last one takes a file, or an empty collection, with it."""
    FILE = "file"
    """A file with all its names."""
    COLLECTION = "collection"
    """An empty collection."""
    KEY = "key"
    """A name of anything but a collection, and the implied collections above it that become empty."""
    OBJECT = "object"
    """The same of a file alone: another door may have put a symlink, or what else is no object, under an S3 key."""
    MARK = "mark"
    """The mark that a collection exists for its own sake: it is implied from now on, and goes once it is empty. Its
    default policy counts no more."""


class Remove(msgspec.Struct, frozen=True):
    """A name, a file or an empty collection to remove. A file's bytes stay in the trash for a while."""

    place: LogicalName
    what: Removing = Removing.NAME
    when: When = ANY


Change = Make | Write | Splice | Clone | Open | Part | Seal | Drop | Set | Move | Remove


class Done(msgspec.Struct, frozen=True):
    """A change that applied.

    - `attributes`: the entry after it, None when it is gone. None also of a repeated change, if another has taken its
      name or its bytes since. Of a `Set` or `Move` by a caller without `read`: as much as a listing shows
    - `made`: the change made it
    - `upload`: the upload that `Open` opened
    - `etag`: of a `Part`
    - `note`: advice for the user, such as that more copies are wanted than there are Shepherds
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
    """Bytes of all live Shepherds, in total and free. A file takes as much as all its copies.

    `quotas`: those that count the caller's bytes below the place; of files, not of their copies.
    """

    total: int
    free: int
    quotas: tuple[QuotaUse, ...] = ()

    def of_files(self, copies: int) -> tuple[int, int]:
        """Return total and free bytes for files kept in `copies` copies, by the narrowest quota where that is less."""
        total, free = self.total // copies, self.free // copies
        use = narrowest(self.quotas)
        if use is None or use.bytes_left >= free:
            return total, free
        return use.bytes + use.bytes_left, use.bytes_left


class Files(Protocol):
    """Names, attributes and changes. A failure of one element is an answer; a failure of the call is raised."""

    async def look(self, call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        """Look at entries; the caller needs `read` on each.

        Args: `asks`: at most `bounds.BULK_ELEMENTS_MAX`.
        Returns: answers in the order of `asks`.
        """

    async def list(self, call: Call, ask: Listing) -> Listed:
        """Return a page of a collection, without the contents of collections below it that the caller may not read.

        Raises: NOT_FOUND, DENIED, NOT_A_COLLECTION, IN_MOUNTPOINT, BAD_REQUEST, TOO_LARGE (the call has read too much).
        """

    async def place(self, call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        """Choose Shepherds for new bytes. Writes nothing, so that an upload that breaks off leaves nothing."""

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        """Apply changes, each one transact of its own, in order where their names are related.

        Failures: PRECONDITION (a `When` does not hold), LOCKED (its `tokens` do not), and each change's own.
        """

    async def share(self, call: Call, ask: Share) -> Shared:
        """Return a token for an entry. Each use of it is checked against the rights of that moment.

        Raises: NOT_FOUND, BAD_REQUEST, DENIED (to a caller without these rights, without a certificate, or with a
        token), NOT_SUPPORTED (where no plain door is known).
        """

    async def uploads(self, call: Call, ask: Uploads) -> UploadPage:
        """Return a page of open uploads, without those of others in collections below that the caller may not read; he
        needs `read` on the collection. Raises: as `list`."""

    async def parts(self, call: Call, ask: UploadParts) -> PartPage:
        """Return a page of parts, to the opener of the upload or a caller with `read` on the collection that lists it.

        Raises: NOT_FOUND (no such upload for this name), DENIED.
        """

    async def space(self, call: Call, place: LogicalName = TOP) -> Space:
        """Return the space of all Shepherds, slightly old, and the quotas that bind the caller below a collection. Of
        one that he may not read, return only his own."""
