"""Pieces that no snapshot knows are laid over their file, in the order in which they were written. Pure.

A record states where a piece is in its file. It states too what the piece was laid on: content, number of splices and
size of the file when it was placed. Bytes of a file that the rebuild finds no place for are noted by file
(`sys:overwritten`). When all records are read, `following` chooses the pieces that surely follow on the file as it came
back, up to the first doubt. Others get no file here.

Invariants: what is laid was committed after every byte of the file that it is laid over, as its Shepherds or the next
piece state. No byte that the file had is missing before or between what is laid. A noted piece is laid once.
Reasoning: docs/design/020-contents.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.contents.attributes import laid_on
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.contents.uploads import NO_PLACE, BeginPut, PiecePlace, SpliceFile, parse_piece_name
from chelonia.core.ids import OVERWRITTEN_OBJECT, BlobId, ContentId, Dn, Guid, Ms
from chelonia.core.metadata import StoredObject
from chelonia.core.names import LogicalName
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.blobs import OWNERS, blob_of, facts_of
from chelonia.librarian.metadata.elements import drop, isset, put, unset
from chelonia.librarian.recovery.rebuild.decide import COMMIT_SLACK_MS

NOTED: Final = "pieces "
"""Start of a note: behind it the file and the blob. It sorts behind the other records of its section."""
SURE: Final = "sure"
"""Value of a note of bytes that were committed."""
UNSURE: Final = "unsure"
"""Value of any other: the bytes may be of the file or not."""

HEARD_MS: Final = 20_000
"""Time after which Shepherds have heard of a commit, unless they were away: they hear of it within 5 s."""


@dataclass(frozen=True, slots=True)
class FoundBase:
    """A file as it came back. `newest_ms`: date of the newest of its `blobs`; `of`, `splices`: as in `PiecePlace`."""

    size: int
    blobs: frozenset[BlobId]
    newest_ms: Ms
    of: str
    splices: int = 0


@dataclass(frozen=True, slots=True)
class FoundPiece:
    """Bytes noted for a file. `sha256`: of them; `free`: nothing else has them."""

    blob: BlobId
    created_ms: Ms
    place: PiecePlace
    sure: bool
    sha256: str = ""
    free: bool = True

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Its extents in the file."""
        return self.place.extents(self.blob)


def note(facts: ReplicaFacts, *, sure: bool) -> Element:
    """Note bytes for their file. One replica that is sure is enough."""
    key = f"{NOTED}{facts.guid} {facts.blob}"
    conditions = () if sure else (unset("formerly", key),)
    return put(OVERWRITTEN_OBJECT, "formerly", key, SURE if sure else UNSURE, *conditions)


def parse_note(key: str) -> tuple[Guid, BlobId]:
    """Return the file and the blob of a note."""
    guid, blob = key.removeprefix(NOTED).split(" ")
    return Guid(guid), BlobId(blob)


def laid_once(guid: Guid, blob: BlobId) -> Element:
    """Drop the note of a piece that is laid, on condition that it is there."""
    key = f"{NOTED}{guid} {blob}"
    return drop(OVERWRITTEN_OBJECT, "formerly", key, isset("formerly", key))


def place_of(facts: ReplicaFacts) -> PiecePlace:
    """Return the place of a piece by its record, `NO_PLACE` where it says none for all its bytes."""
    place = parse_piece_name(facts.name) or NO_PLACE
    return place if place.length == facts.size > 0 else NO_PLACE


def found_base(file: StoredObject, blobs: Sequence[StoredObject]) -> FoundBase:
    """Return a file as it came back. `blobs`: all of its content, or its only one."""
    newest_ms = max((facts_of(blob).created_ms for blob in blobs if blob.exists), default=Ms(0))
    size, names = int(file.value("states", "size") or "0"), frozenset(blob_of(blob) for blob in blobs)
    return FoundBase(size, names, newest_ms, *laid_on(file))


def found_piece(guid: Guid, blob: StoredObject, *, sure: bool) -> FoundPiece:
    """Return noted bytes; those of which no whole replica was found may be anything."""
    facts = facts_of(blob)
    free = blob.exists and facts.guid == guid and not (blob.value("blob", "content") or blob.sections.get(OWNERS))
    return FoundPiece(
        blob_of(blob), facts.created_ms, place_of(facts), sure and blob.exists, facts.checksums.sha256, free
    )


def following(base: FoundBase, noted: Iterable[FoundPiece]) -> tuple[FoundPiece, ...]:
    """Return the pieces to lay over a file, in order: those that follow on it, and on each other, without a doubt."""
    found = [each for each in noted if each.blob not in base.blobs]
    if not all(each.created_ms for each in found):
        return ()
    later, others = _of_one_life(base, found)
    out, tries, unknown, size = list[FoundPiece](), list[FoundPiece](), list[FoundPiece](), base.size
    whole, missing = [0], list[ByteRange]()
    last, newest_ms = (base.of, base.splices - 1), base.newest_ms
    for number, piece in enumerate(later):
        place, sure, before, after = piece.place, piece.sure, later[:number], later[number + 1 :]
        if piece.free and not sure:
            if _is_sent_again(piece, before, after) or _is_there(piece, out) or _is_beaten(piece, before, after):
                tries.append(piece)
                continue
            sure = _is_proven(piece, after)
        dated = piece.created_ms >= newest_ms - COMMIT_SLACK_MS
        room = place.of != last[0] or place.splices > last[1] + 1
        doubt = any(each.created_ms <= piece.created_ms and (room or each.sure) for each in others)
        at_once = sure and _meets_one_at_once(piece, [*out, *unknown])
        # A file that was longer before was cut: some of its bytes must not come back.
        ends = not (piece.free and dated) or doubt or at_once or place.size < size
        if ends or not sure:  # what was laid on the same may have come after it
            earlier = sum(each.place.splices < place.splices for each in out)
            whole = [each for each in whole if each <= earlier]
        if ends:
            break
        missing = [ByteRange(each.offset, min(each.end, place.size) - each.offset) for each in missing]
        missing = [each for each in missing if each.length > 0]  # none beyond what a file has was committed
        if place.size > size:
            missing.append(ByteRange(size, place.size - size))  # a later piece may have them, as for a tail
        size, newest_ms, last = place.size, max(newest_ms, piece.created_ms), (place.of, place.splices)
        if not sure:
            unknown.append(piece)
            missing += place.spans
            continue
        out.append(piece)
        for span in place.spans:
            missing = [part for each in missing for part in _without(each, span)]
        size = max(size, place.spans[-1].end)
        if not missing:
            whole.append(len(out))
    laid = out[: whole[-1]]
    done = {each.blob for each in (*laid, *tries)}
    left = [each for each in (*later, *others) if each.blob not in done and each.place != NO_PLACE]
    return () if _may_hide(base, laid, left) else tuple(laid)


def _of_one_life(base: FoundBase, found: Sequence[FoundPiece]) -> tuple[list[FoundPiece], list[FoundPiece]]:
    """Return the pieces laid on what a file has, or on what came of that, in order; and all other bytes since.

    No record states which content came of an only blob: it is that of the pieces since, if they state one alone.
    """
    since = [each for each in found if each.created_ms >= base.newest_ms]
    stated = {each.place.of for each in since if each.place.splices}
    made = base.of if base.splices or len(stated) != 1 else stated.pop()
    own = [each for each in found if each.place.of in (base.of, made) and each.place.splices >= base.splices]
    own.sort(key=lambda each: (each.place.splices, not each.sure, each.created_ms, each.blob))
    assert all(each.place != NO_PLACE for each in own), "a file that is rebuilt has bytes"
    return own, [each for each in since if each not in own]


def states_after(pieces: Sequence[FoundPiece], fresh: ContentId) -> list[tuple[ContentId, int]]:
    """Return content and number of splices of a file after each of its pieces, as it had them then. So its etag is as
    it was, and a run that breaks off goes on. `fresh`: the content, if no piece states one."""
    content = next((ContentId(each.place.of) for each in pieces if each.place.splices), fresh)
    return [(content, each.place.splices + 1) for each in pieces]


def _may_hide(base: FoundBase, laid: Sequence[FoundPiece], left: Sequence[FoundPiece]) -> bool:
    """Whether what is left may have covered bytes, now erased, that were written before some of what is laid. None were
    between pieces of which one states one splice more than the other."""
    size = max([base.size, *(each.place.spans[-1].end for each in laid)])
    spans = [ByteRange(each.offset, min(each.end, size) - each.offset) for piece in left for each in piece.place.spans]
    hidden = [each for each in spans if each.length > 0]
    before = [base.splices - 1, *(each.place.splices for each in laid[:-1])]
    for piece, splices in zip(reversed(laid), reversed(before), strict=False):
        for span in piece.place.spans:
            hidden = [part for each in hidden for part in _without(each, span)]
        if piece.place.splices > splices + 1:
            return bool(hidden)
    return False


def _is_proven(piece: FoundPiece, later: Sequence[FoundPiece]) -> bool:
    """Whether the next piece states that its file had grown by this one, and is one of the last. Shepherds hear of a
    commit seconds later."""
    before, end = piece.place, piece.place.spans[-1].end
    after = later[0].place if later else NO_PLACE
    grown = before.size < end == after.size and before.splices + 1 == after.splices
    return grown and max(each.created_ms for each in later) <= later[0].created_ms + HEARD_MS


def _is_sent_again(piece: FoundPiece, before: Sequence[FoundPiece], after: Sequence[FoundPiece]) -> bool:
    """Whether the sender of a piece has tried it more than once: another try is sure, or a later one as good."""
    same = [each for each in after if each.place == piece.place]
    as_good = any(each.sha256 == piece.sha256 != "" for each in same)
    return as_good or any(each.sure for each in (*same, *before) if each.place == piece.place)


def _is_beaten(piece: FoundPiece, before: Sequence[FoundPiece], after: Sequence[FoundPiece]) -> bool:
    """Whether another was laid on the same, and the next states one splice more: a change rests on what it was for."""
    number = piece.place.splices
    beaten = any(each.sure and each.place.splices == number for each in (*before, *after))
    return beaten and any(each.place.splices == number + 1 for each in after)


def _is_there(piece: FoundPiece, laid: Sequence[FoundPiece]) -> bool:
    """Whether the last piece at these bytes of the file is the same: its sender has not heard of its commit."""
    last = next((each for each in reversed(laid) if _meet(each, piece)), None)
    return last is not None and last.place.spans == piece.place.spans and last.sha256 == piece.sha256 != ""


def _without(one: ByteRange, other: ByteRange) -> list[ByteRange]:
    """Return the parts of a span that another does not cover."""
    parts = (one.offset, min(one.end, other.offset)), (max(one.offset, other.end), one.end)
    return [ByteRange(start, end - start) for start, end in parts if start < end]


def _meets_one_at_once(piece: FoundPiece, before: Sequence[FoundPiece]) -> bool:
    """Whether a piece has bytes in common with one that was laid on the same: which came last is not known."""
    return any(_meet(each, piece) for each in before if each.place.splices == piece.place.splices)


def _meet(one: FoundPiece, other: FoundPiece) -> bool:
    """Whether pieces have bytes of the file in common."""
    return any(mine.at < its.end and its.at < mine.end for mine in one.extents for its in other.extents)


def request_for(guid: Guid, piece: FoundPiece) -> SpliceFile:
    """Return the splice of a piece over its file."""
    assert piece.free, "`following` has chosen it"
    place, nobody = LogicalName(guid, ()), Dn("")
    begin = BeginPut(Guid(""), "", place, nobody, {}, 1, -1, Checksums(), Ms(0), named=False, replaces=guid)
    return SpliceFile(begin, (), piece.extents)
