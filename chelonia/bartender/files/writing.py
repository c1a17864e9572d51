"""New bytes of the port `Files`: places for them, the one transact that gives them a name, and copies by reference.

`place` writes nothing. `write` decides everything anew on the state of that moment. It makes a file, or swaps the bytes
of the one that has the name by then, whatever was there when the bytes were sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.client_metadata import FileFacts, accepted, check_count, merged
from chelonia.bartender.files import locking
from chelonia.bartender.files.attributes import DESCRIBED, etag_fact, rule_triples, setting_triples, user_triples
from chelonia.bartender.files.changing import done, lacks_only_parents, pinned, required, seen, walk
from chelonia.bartender.names import giving, inherited, opens_nothing
from chelonia.bartender.ports import Ports
from chelonia.bartender.put_token import PutToken, decode, encode
from chelonia.bartender.rights import FoundEntry, Judge, existing, parent_of_new, versions
from chelonia.bartender.transfers import checked_receipts, file_checksum, holder, overtaken, tickets, unnamed
from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Receipt
from chelonia.core.contents.attributes import attributes_of, laid_on
from chelonia.core.contents.extents import ByteRange
from chelonia.core.contents.parts import NO_PART, parse_upload
from chelonia.core.contents.uploads import (
    NO_PLACE,
    BeginPut,
    CommitFile,
    Committed,
    CopyFile,
    Expect,
    PiecePlace,
    are_placed,
)
from chelonia.core.contents.uploads import SpliceFile as SpliceOrder
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Guid, ObjectId
from chelonia.core.metadata import TYPE_FILE, Needed, Sections, StoredObject, from_triples
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    Arrived,
    Clone,
    Done,
    Open,
    Part,
    Placed,
    Placing,
    Reserving,
    Splice,
    Write,
    placed_part,
)
from chelonia.core.ports.shepherd import Purpose
from chelonia.core.rights.policy import Action, with_rules
from chelonia.core.values import replace


async def place(ports: Ports, turn: ElementCall, ask: Placing) -> Placed:
    """Choose Shepherds for new bytes. Raises: DENIED, NO_PARENT, NOT_A_FILE, NO_SHEPHERD, NO_SPACE, BAD_REQUEST,
    PRECONDITION; NOT_FOUND for a part with an invalid upload id."""
    check_wanted(ask.place, ask.wanted, ask.size)
    if ask.part != NO_PART:
        parse_upload(ask.part.upload)
        if not (ask.piece and 1 <= ask.part.number <= bounds.PARTS_MAX):
            cause = f"a part is a piece with a number from 1 to {bounds.PARTS_MAX}"
            raise CheloniaError(Kind.BAD_REQUEST, subject=str(ask.place), cause=cause)
    fits = are_placed(ask.at) and ask.size in (-1, PiecePlace(spans=ask.at).length)
    if ask.at and not (ask.piece and ask.part == NO_PART and fits):
        cause = f"only a piece has a place: 1 to {bounds.PLACED_SPANS_MAX} spans in order, apart, as long as itself"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ask.place), cause=cause)
    if ask.reserving is not None:
        return await _reserved(ports, turn, ask, ask.reserving)
    found = await may_begin(ports, turn, ask, "place")
    begin = unnamed(ports, turn, ask.place, ask.wanted, ask.size, ask.checksums)
    begin = replace(begin, replaces=guid_of(found), piece=ask.piece, part=ask.part, at=placed_at(found, ask.at))
    turl, begun = await tickets(ports, turn, begin, Purpose.RECEIPT)
    put = encode(PutToken(begin, begun, record_type(ask.checksums)), ports.settings.token_key)
    return Placed(turl, put, begun.blob, await ports.shepherds.shortage(turn.service, ask.wanted))


async def _reserved(ports: Ports, turn: ElementCall, ask: Placing, reserving: Reserving) -> Placed:
    """Return a TURL whose last byte makes the file. Raises: as `place`, LOCKED, BAD_REQUEST for a piece or parents."""
    if ask.piece or ask.parents:
        cause = "a name is reserved for the whole of a file, in a collection that is there"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ask.place), cause=cause)
    begin = unnamed(ports, turn, ask.place, ask.wanted, ask.size, ask.checksums)
    change = Write(ask.place, setting=reserving.setting, when=reserving.when)
    ready, _ = await ready_to_write(ports, turn, change, begin)
    kind = record_type(ask.checksums)
    facts = FileFacts(ask.size, getattr(ask.checksums, kind), kind, ask.wanted)
    named = replace(ready, sections=merged(ready.sections, {"states": facts.states()}), named=True)
    turl, begun = await tickets(ports, turn, named, Purpose.PENDING)
    return Placed(turl, "", begun.blob)


def check_wanted(place: LogicalName, wanted: int, size: int = -1) -> None:
    """Refuse an invalid number of copies or bytes. Raises: BAD_REQUEST."""
    if not 1 <= wanted <= bounds.REPLICAS_WANTED_MAX or size < -1:
        cause = f"1 to {bounds.REPLICAS_WANTED_MAX} copies, and a size (-1: not known) are needed"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(place), cause=cause)


def placed_at(found: FoundEntry | None, spans: tuple[ByteRange, ...]) -> PiecePlace:
    """Return the place of a piece in a file as found; one without bytes is rebuilt from its whole bytes alone."""
    if found is None:
        return NO_PLACE
    of, splices = laid_on(found.object)
    return PiecePlace(of, splices, size_of(found), spans) if of and spans else NO_PLACE


def size_of(found: FoundEntry) -> int:
    """Return the bytes of a file."""
    return int(found.section("states").get("size") or "0")


def guid_of(found: FoundEntry | None) -> Guid:
    """Return the file that is there, or ""."""
    return found.guid if found is not None else Guid("")


async def may_begin(ports: Ports, turn: ElementCall, ask: Placing | Open, op: str) -> FoundEntry | None:
    """Require the right to give this name bytes, as things stand. Returns: the file that has the name.

    Raises: DENIED, NO_PARENT, NOT_A_FILE, PRECONDITION.
    """
    (walked,) = await ports.librarian.traverse(turn.service, (ask.place,), DESCRIBED)
    judge, found = Judge(turn.user, op), seen(ask.place, walked)
    if isinstance(ask, Placing):
        required(judge, ask.when, ask.place, found)
    if found is not None:
        judge.require(Action.DELETE, replaceable(ask.place, found))
        return found
    if ask.parents and lacks_only_parents(ask.place, walked, ask.within):
        above = LogicalName(ask.place.start, ask.place.parts[: -len(walked.rest)])
        judge.require(Action.ADD_ENTRY, FoundEntry(above, walked.last, above.child(walked.rest[0])))
    else:
        judge.require(Action.ADD_ENTRY, parent_of_new(ask.place, walked))
    return None


async def write(ports: Ports, turn: ElementCall, change: Write) -> Done:
    """Give durable bytes their name, if the caller still may and his conditions still hold."""
    token, receipts = arrived_bytes(ports, turn, change, change.content, piece=False)
    begin = token.begin
    ready, replaced = await ready_to_write(ports, turn, change, begin)
    facts = FileFacts(begin.size, file_checksum(token), token.checksum_type, begin.wanted)
    file = await commit(ports, turn, change, facts, CommitFile(ready, token.begun, receipts, begin.replaces != ""))
    return done(file.entry, made=replaced is None)


async def commit(ports: Ports, turn: ElementCall, change: Write, facts: FileFacts, order: CommitFile) -> Committed:
    """Have the file made, or its bytes swapped. `order.renew`: the upload began for a file that was there then."""
    ready = order.begin
    sections = merged(ready.sections, {"states": facts.states()}, etag_fact(change.etag, order.begun.blob))
    renew, begin = order.renew and not ready.replaces, replace(ready, sections=sections)
    try:
        return await ports.librarian.commit_file(
            turn.service, CommitFile(begin, order.begun, order.receipts, renew, change.policy)
        )
    except CheloniaError as error:
        error = await overtaken(ports, turn, change.place, error)
        raise error


async def splice(ports: Ports, turn: ElementCall, change: Splice) -> Done:
    """Lay extents over a file, or make a new one of them, if the caller may and his conditions hold."""
    content = change.content
    arrived = [arrived_bytes(ports, turn, change, each, piece=True) for each in content.blobs]
    begins = [token.begin for token, _ in arrived]
    wanted = max((begin.wanted for begin in begins), default=bounds.REPLICAS_DEFAULT)
    ready, replaced = await ready_to_write(ports, turn, change, unnamed(ports, turn, change.place, wanted))
    pieces = tuple(CommitFile(token.begin, token.begun, receipts) for token, receipts in arrived)
    return done(await lay(ports, turn, change, ready, pieces), made=replaced is None)


async def lay(
    ports: Ports, turn: ElementCall, change: Splice, ready: BeginPut, pieces: tuple[CommitFile, ...]
) -> Guid | StoredObject:
    """Have extents laid over the file that `ready` names. Returns: the file after it."""
    content = change.content
    order = SpliceOrder(ready, pieces, content.extents, content.size, content.whole, described=True, mark=content.mark)
    try:
        return await ports.librarian.splice(turn.service, order)
    except CheloniaError as error:
        error = await overtaken(ports, turn, change.place, error)
        raise error


def arrived_bytes(
    ports: Ports, turn: ElementCall, change: Write | Splice | Part, arrived: Arrived, *, piece: bool
) -> tuple[PutToken, tuple[Receipt, ...]]:
    """Return the upload of a token, and its receipts. Raises: as `checked_receipts`; BAD_REQUEST for another's name."""
    token = decode(arrived.put, ports.settings.token_key)
    receipts = checked_receipts(ports, turn, token, arrived.receipts)
    if token.begin.ln != change.place:
        cause = f"these bytes were placed for {token.begin.ln}; place them again for this name"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(change.place), cause=cause)
    if token.begin.piece is not piece:  # a rebuild from bytes must tell a file from a part of one
        cause = (
            f"these bytes were placed as {'the whole' if piece else 'a piece'} of a file; place them as what they are"
        )
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(change.place), cause=cause)
    placed = token.begin.part
    if placed not in (NO_PART, placed_part(change)):
        cause = f"these bytes were placed as part {placed.number} of {placed.upload}; place them as what they are"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(change.place), cause=cause)
    if token.begin.at != NO_PLACE and not _is_laid_as_placed(token, change):
        cause = "these bytes were placed for other bytes of the file; place them as what they are"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(change.place), cause=cause)
    return token, receipts


def _is_laid_as_placed(token: PutToken, change: Write | Splice | Part) -> bool:
    """Whether a change lays bytes as their record says, over what is there."""
    if not isinstance(change, Splice) or change.content.whole:
        return False
    blob = token.begun.blob
    return tuple(each for each in change.content.extents if each.blob == blob) == token.begin.at.extents(blob)


async def ready_to_write(
    ports: Ports, turn: ElementCall, change: Write | Splice | Clone, begin: BeginPut
) -> tuple[BeginPut, FoundEntry | None]:
    """Return the request to the Librarian, if the caller may write, and the file that is there."""
    own = from_triples(setting_triples(change.setting))
    rules, default_of, within = (
        (None, None, None) if isinstance(change, Splice) else (change.policy, change.default_of, change.within)
    )
    given = accepted(user_triples(change.user or {}), TYPE_FILE, "write.metadata")
    walked = await walk(ports, turn, change.place, parents=change.parents, within=within)
    found, judge = seen(change.place, walked), Judge(turn.user, "write")
    required(judge, change.when, change.place, found)
    policies: Sections = {}
    above: tuple[StoredObject, ...] = ()
    if found is not None:
        replaceable(change.place, found)
        expect, parent = (*pinned(change.when, found), *judge.require(Action.DELETE, found)), holder(walked)
    else:
        collection = parent_of_new(change.place, walked)
        expect, parent = judge.require(Action.ADD_ENTRY, collection), collection.guid
        above = collection.object, await giving(ports, turn, walked, of=default_of)
        policies, rests = inherited(above[1], TYPE_FILE)
        expect += rests
    if rules is not None:
        expect += _may_rule(turn, found or _would_be(turn, change.place, policies), rules, above)
        policies = {"policy": with_rules(policies.get("policy", {}), rules)} if found is None else {}
    if change.when.tokens is not None:
        expect += await locking.unlocked(ports, turn, change.when, change.place, walked, names=found is None)
    ready = replace(
        begin,
        parent=parent,
        replaces=found.guid if found is not None else Guid(""),
        sections=merged(policies, given, own),
        expect=tuple(dict.fromkeys(expect)),
        anew=change.user is not None,
    )
    return ready, found


def _would_be(turn: ElementCall, place: LogicalName, policies: Sections) -> FoundEntry:
    """Return a new file as it would be with the policy of its collection."""
    entry = {"type": TYPE_FILE, "owner": turn.user.dn}
    return FoundEntry(place, StoredObject(ObjectId(""), 0, {"entry": entry, **policies}))


def _may_rule(
    turn: ElementCall, found: FoundEntry, rules: Mapping[str, str], above: tuple[StoredObject, ...]
) -> Expect:
    """Require the right to give a file these rules. `above`: the collections that a new file is in and inherits from.
    Raises: DENIED, BAD_REQUEST, TOO_LARGE."""
    accepted(rule_triples(rules), TYPE_FILE, "write.metadata")
    before, after = found.section("policy"), with_rules(found.section("policy"), rules)
    check_count({"policy": after})
    # No rights grow by rules that change nothing, or that omit grants which a new file would have. rclone sends
    # `private` with every upload, also with keys that may not change rights.
    is_new, left_out = not found.object.exists, before.keys() - after.keys()
    fewer = is_new and after.items() <= before.items() and not any("-" in before[identity] for identity in left_out)
    may = fewer or after == before or (is_new and turn.user.dn == ANONYMOUS and opens_nothing(after, before, *above))
    expect = versions(found) if may else Judge(turn.user, "write").require(Action.MODIFY_POLICY, found)
    return () if is_new else expect


def replaceable(place: LogicalName, found: FoundEntry) -> FoundEntry:
    """Return the entry there, if it is a file. Raises: NOT_A_FILE."""
    if found.type != TYPE_FILE:
        raise CheloniaError(Kind.NOT_A_FILE, subject=str(place), cause=f"there is a {found.type} of this name")
    return found


def record_type(sums: Checksums) -> str:
    """Return the type of the file's checksum of record: a declared one, else SHA-256."""
    if sums.sha256 or not (sums.md5 or sums.adler32):
        return "sha256"
    return "md5" if sums.md5 else "adler32"


async def copy(ports: Ports, turn: ElementCall, change: Clone) -> Done:
    """Give a file the bytes of another, if the caller may read that and write this, and both are as judged."""
    source, expect = await _readable(ports, turn, change)
    change = replace(change, user=source.section("metadata") if change.user is None else change.user)
    ready, replaced = await ready_to_write(ports, turn, change, unnamed(ports, turn, change.place, 0))
    ready = replace(ready, expect=tuple(dict.fromkeys((*ready.expect, *expect))))
    try:
        entry = await ports.librarian.copy_file(
            turn.service, CopyFile(source.guid, ready, change.policy, described=True)
        )
    except CheloniaError as error:
        error = await overtaken(ports, turn, change.place, error)
        raise error
    return done(entry, made=replaced is None)


async def _readable(ports: Ports, turn: ElementCall, change: Clone) -> tuple[FoundEntry, tuple[tuple[Guid, int], ...]]:
    """Return the source, and the versions decided on. Raises: NOT_FOUND, NOT_A_FILE, DENIED, PRECONDITION."""
    (walked,) = await ports.librarian.traverse(turn.service, (change.source,), (*DESCRIBED, Needed("metadata")))
    found = replaceable(change.source, existing(change.source, walked))
    expect = Judge(turn.user, "copy").require(Action.READ, found)
    change.of.require(change.source, attributes_of(found.object))
    return found, (*versions(found), *expect)
