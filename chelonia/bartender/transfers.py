"""Transfers: putFile, getFile, addReplica, and the parts that all uploads have in common.

An upload for which too few Shepherds have room is refused before anything is written, so no name is left behind.
putFile reserves a *pending* name that nobody sees and that expires with its tickets, or at once if it gets none.
"""

from __future__ import annotations

from collections.abc import Mapping

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.client_metadata import FileFacts, accepted, file_facts, merged
from chelonia.bartender.names import check_opens_nothing, giving, inherited
from chelonia.bartender.ports import Ports
from chelonia.bartender.put_token import PutToken
from chelonia.bartender.rights import RIGHTS, FoundEntry, Judge, existing, is_visible, parent_of_new
from chelonia.bartender.shepherds import UploadPlan
from chelonia.core import bounds, status
from chelonia.core.cluster.placement import Demand
from chelonia.core.cluster.replicas import PROTOCOL_HTTP, Checksums, Location, Receipt, ReplicaFacts, ReplicaState
from chelonia.core.contents.attributes import is_empty
from chelonia.core.contents.extents import ByteRange
from chelonia.core.contents.uploads import BeginPut, Begun
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, RequestKey, ServiceId, parse_guid
from chelonia.core.metadata import TYPE_FILE, Needed, Sections, StoredObject
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.bartender import (
    AddReplicaRequest,
    GetFileRequest,
    PutFileRequest,
    TransferOutcome,
)
from chelonia.core.ports.librarian import MakeEntry, Traversal
from chelonia.core.ports.shepherd import Purpose, TurlOutcome
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace
from chelonia.wire import receipts

LOCATED = (*RIGHTS, Needed("locations"), Needed("content"), Needed("blobs"))
"""Sections that a read or a copy of a file needs besides its rights."""

_UNKNOWN = Checksums()
_NO_FILE = Guid("")
_AWAY = (ReplicaState.OFFLINE.value,)
_HELD = (ReplicaState.ALIVE.value, ReplicaState.CREATING.value, ReplicaState.THIRDWHEEL.value)


async def put_file(ports: Ports, turn: ElementCall, request: PutFileRequest) -> TransferOutcome:
    """Begin an upload the original's way: reserve the name, answer with a TURL for the first Shepherd."""
    ln = parse_ln(request.ln)
    facts = file_facts(request.metadata)
    given = accepted(request.metadata, TYPE_FILE, "putFile.metadata")
    _need_http(request.protocols)
    begin = await _begin(ports, turn, ln, facts, given, replace_file=request.replace)
    begin = replace(begin, sections=merged(begin.sections, {"states": facts.states()}), named=True)
    if facts.needed == 0:
        return await _name_only(ports, turn, request, begin)
    turl, _ = await tickets(ports, turn, begin, Purpose.PENDING)
    return TransferOutcome(request.request_id, status.success("putFile"), turl, PROTOCOL_HTTP)


def checked_receipts(ports: Ports, turn: ElementCall, token: PutToken, texts: tuple[str, ...]) -> tuple[Receipt, ...]:
    """Return the receipts of an upload, enough of them for its bytes to be durable.

    Raises: BAD_TICKET (another user's upload), EXPIRED, BAD_REQUEST, INCOMPLETE (too few Shepherds).
    """
    begin = token.begin
    if begin.owner != turn.user.dn:
        raise CheloniaError(Kind.BAD_TICKET, subject="put", cause="this upload was begun by somebody else")
    if not 1 <= len(texts) <= bounds.RECEIPTS_MAX:
        cause = f"1 to {bounds.RECEIPTS_MAX} receipts are needed, from the answer to the PUT"
        raise CheloniaError(Kind.BAD_REQUEST, subject="receipts", cause=cause)
    held = tuple(receipts.from_text(text) for text in texts)
    arrived_ms = min(receipt.issued_ms for receipt in held)  # from then on Shepherds keep them for `put_lifetime_ms`
    if ports.clock.now_ms() >= max(begin.expires_ms, arrived_ms + ports.settings.put_lifetime_ms):
        cause = "the bytes have waited for their name for too long; send them again"
        raise CheloniaError(Kind.EXPIRED, subject="put", cause=cause)
    durable = min(ports.settings.durable_copies, begin.wanted)
    if len({receipt.location.shepherd for receipt in held}) < durable:
        cause = f"receipts of {durable} Shepherds are needed; PUT the bytes again"
        raise CheloniaError(Kind.INCOMPLETE, subject="receipts", cause=cause)
    return held


async def get_file(ports: Ports, turn: ElementCall, request: GetFileRequest) -> TransferOutcome:
    """Answer with TURLs of whole replicas, nearest first, bound to the caller."""
    ln = parse_ln(request.ln)
    # A ticket outlives the decision: a strong read, so that no revoked policy gives one.
    (walked,) = await ports.librarian.traverse(turn.service.strongly(), (ln,), LOCATED)
    found = existing(ln, walked)
    Judge(turn.user, "getFile").require(Action.READ, found)
    if found.type != TYPE_FILE:
        raise CheloniaError(Kind.NOT_A_FILE, subject=str(ln), cause=f"it is a {found.type}")
    _need_http(request.protocols)
    if found.object.value("content", "id") or is_empty(found.object):
        door = f"the plain HTTPS door {ports.settings.files_url}".rstrip()
        cause = f"it is not made of one blob, so no one TURL leads to it; GET it at {door}"
        raise CheloniaError(Kind.NOT_SUPPORTED, subject=str(ln), cause=cause)
    first, *others = await read_turls(ports, turn, found)
    size = found.object.value("states", "size")
    return TransferOutcome(
        request.request_id,
        status.success("getFile"),
        turl=first.turl,
        protocol=PROTOCOL_HTTP,
        turls=tuple(answer.turl for answer in others),
        size=int(size) if size.isdigit() else -1,
        checksum=found.object.value("states", "checksum") or first.checksum,
        checksum_type=found.object.value("states", "checksumType") or first.checksum_type,
    )


async def read_turls(
    ports: Ports, turn: ElementCall, found: FoundEntry, spans: tuple[ByteRange, ...] = ()
) -> tuple[TurlOutcome, ...]:
    """Return TURLs of whole replicas, nearest first, bound to the carrier of the bytes, for `spans` or, if empty, all
    bytes. Raises: NO_REPLICA."""
    alive = await readable(ports, turn, found)
    if not alive:
        cause = f"none of its {len(found.section('locations'))} replicas is reachable and whole now"
        raise CheloniaError(Kind.NO_REPLICA, subject=str(found.ln), cause=cause)
    return await ports.shepherds.read_turls(turn.service, alive, turn.user, spans)


async def readable(ports: Ports, turn: ElementCall, found: FoundEntry) -> list[Location]:
    """Return the live replicas; if there are none, those on disks in trouble."""
    alive = locations(found.object, (ReplicaState.ALIVE.value,))
    return alive or await ports.shepherds.in_trouble(turn.service, locations(found.object, _AWAY))


async def add_replica(
    ports: Ports, protocols: tuple[str, ...], turn: ElementCall, request: AddReplicaRequest
) -> TransferOutcome:
    """Answer a Shepherd with a TURL on another that has no replica of the file (the guard admits only Shepherds)."""
    guid = parse_guid(request.guid)
    _need_http(protocols)
    (stored,) = await ports.librarian.get(turn.service, (guid,), LOCATED)
    if not is_visible(stored):
        raise CheloniaError(Kind.NOT_FOUND, subject=guid, cause="there is no such file")
    if stored.value("entry", "type") != TYPE_FILE:
        raise CheloniaError(Kind.NOT_A_FILE, subject=guid, cause="only files have replicas")
    if stored.value("content", "id") or is_empty(stored):
        cause = "it is not made of one blob; repair copies each of them"
        raise CheloniaError(Kind.NOT_SUPPORTED, subject=guid, cause=cause)
    holders = tuple(dict.fromkeys(location.shepherd for location in locations(stored, _HELD)))
    exclude = (turn.user.service_id,) if turn.user.service_id else ()
    facts = _replica_facts(ports, stored)
    # Three candidates: one that has gone away since the last heartbeat must not make the answer "none".
    demand = Demand(count=3, size=facts.size, holders=holders, exclude=exclude)
    candidates = await ports.shepherds.candidates(turn.service, demand, 1)
    plan = UploadPlan(facts, Purpose.REPLICA, turn.user.dn, durable=1, spares=0)
    turl = await ports.shepherds.replica_turl(turn.service, plan, candidates)
    return TransferOutcome(request.request_id, status.success("addReplica"), turl, PROTOCOL_HTTP)


async def _begin(
    ports: Ports, turn: ElementCall, ln: LogicalName, facts: FileFacts, given: Sections, *, replace_file: bool
) -> BeginPut:
    """Return an upload to a place for a file, if the caller may put one. Raises: EXISTS, DENIED, NO_PARENT, ..."""
    judge = Judge(turn.user, "putFile")
    begin = unnamed(ports, turn, LogicalName(ln.start, ln.parts), facts.needed, facts.size, facts.checksums)
    (walked,) = await ports.librarian.traverse(turn.service, (ln,), RIGHTS)
    if replace_file and ln.parts and walked.complete and walked.last.value("entry", "type") == TYPE_FILE:
        expect = judge.require(Action.DELETE, FoundEntry(ln, walked.last))
        return replace(begin, parent=holder(walked), replaces=walked.guid, sections=given, expect=expect)
    parent = parent_of_new(ln, walked)
    expect = judge.require(Action.ADD_ENTRY, parent)
    giver = await giving(ports, turn, walked)
    check_opens_nothing(judge, parent, giver, given)
    policies, rests = inherited(giver, TYPE_FILE)
    sections, expect = merged(policies, given), tuple(dict.fromkeys((*expect, *rests)))
    return replace(begin, parent=parent.guid, sections=sections, expect=expect)


def unnamed(
    ports: Ports, turn: ElementCall, place: LogicalName, wanted: int,
    size: int = -1, checksums: Checksums = _UNKNOWN,
) -> BeginPut:  # fmt: skip
    """Return an upload of the caller's before its name is walked."""
    expires = Ms(ports.clock.now_ms() + ports.settings.put_lifetime_ms)
    return BeginPut(Guid(""), place.name, place, turn.user.dn, {}, wanted, size, checksums, expires, named=False)


def holder(walked: Traversal) -> Guid:
    """Return the collection that holds the name a walk followed, "" for a bare start."""
    return walked.steps[-2].guid if len(walked.steps) > 1 else Guid("")


async def tickets(ports: Ports, turn: ElementCall, begin: BeginPut, purpose: Purpose) -> tuple[str, Begun]:
    """Choose Shepherds, begin the upload, get its tickets. A name reserved in vain is released."""
    durable = min(ports.settings.durable_copies, begin.wanted)
    demand = Demand(count=max(durable + ports.settings.spares, begin.wanted), size=begin.size)
    candidates = await ports.shepherds.candidates(turn.service, demand, durable)
    try:
        begun = await ports.librarian.begin_put(turn.service, begin)
    except CheloniaError as error:
        error = await overtaken(ports, turn, begin.ln, error, begin.replaces)
        raise error
    facts = begun.facts(begin, ports.clock.now_ms())
    bearer = turn.user.carrier or turn.user.dn
    plan = UploadPlan(facts, purpose, bearer, durable, ports.settings.spares, turn.user.until_ms)
    try:
        return await ports.shepherds.upload_turl(turn.service, plan, demand, candidates), begun
    except CheloniaError:
        if begin.named:
            await _release(ports, turn, begin)
        raise


async def overtaken(
    ports: Ports, turn: ElementCall, place: LogicalName, error: CheloniaError, before: Guid = _NO_FILE
) -> CheloniaError:
    """Return the meaning of a failure to reserve or commit. If another caller has made or removed the file or its
    collection since the walk, it is CONFLICT, so that all is decided anew. `before`: the file that the walk found."""
    if error.kind in (Kind.NOT_FOUND, Kind.NO_PARENT):
        return CheloniaError(Kind.CONFLICT, subject=str(place), cause=error.cause)
    if error.kind is not Kind.EXISTS:
        return error
    (walked,) = await ports.librarian.traverse(turn.service, (place,), RIGHTS)
    if before == (walked.guid if walked.complete and is_visible(walked.last) else _NO_FILE):
        return error  # another's pending upload holds the name
    return CheloniaError(Kind.CONFLICT, subject=str(place), cause="somebody else made it at the same time")


async def _release(ports: Ports, turn: ElementCall, begin: BeginPut) -> None:
    """Supersede a pending name that gets no bytes by an expired one; if that fails, it expires by itself."""
    service = turn.service.keyed(RequestKey(""))
    try:
        await ports.librarian.begin_put(service, replace(begin, expires_ms=ports.clock.now_ms(), expect=()))
    except CheloniaError:
        return


async def _name_only(ports: Ports, turn: ElementCall, request: PutFileRequest, begin: BeginPut) -> TransferOutcome:
    """Make the name at once, without bytes and without a TURL, as the original does for `neededReplicas` 0."""
    if begin.replaces:
        cause = "replacing a file needs at least one replica"
        raise CheloniaError(Kind.BAD_REQUEST, subject="states/neededReplicas", cause=cause)
    made = MakeEntry(begin.parent, begin.name, TYPE_FILE, begin.owner, begin.sections, begin.expect)
    await ports.librarian.make_entry(turn.service, made)
    return TransferOutcome(request.request_id, status.success("putFile"))


def file_checksum(token: PutToken) -> str:
    """Return the declared checksum of the type of record, "" where none was declared."""
    sums = token.begin.checksums
    return {"md5": sums.md5, "adler32": sums.adler32}.get(token.checksum_type, sums.sha256)


def _replica_facts(ports: Ports, stored: StoredObject) -> ReplicaFacts:
    states: Mapping[str, str] = stored.sections.get("states", {})
    digits = {name: states.get(name, "") for name in ("size", "neededReplicas")}
    facts = FileFacts(
        int(digits["size"]) if digits["size"].isdigit() else -1,
        states.get("checksum", ""),
        states.get("checksumType", ""),
        int(digits["neededReplicas"]) if digits["neededReplicas"].isdigit() else 1,
    )
    return ReplicaFacts(
        blob=BlobId(next((blob for _, blob in sorted(stored.sections.get("blobs", {}).items())), "")),
        guid=Guid(stored.id),
        name="",
        owner=Dn(stored.value("entry", "owner")),
        size=facts.size,
        checksums=facts.checksums,
        wanted=facts.needed,
        created_ms=ports.clock.now_ms(),
    )


def locations(stored: StoredObject, states: tuple[str, ...]) -> list[Location]:
    """Return the file's replicas in these states, without malformed locations."""
    located = []
    for text, state in sorted(stored.sections.get("locations", {}).items()):
        shepherd, _, reference = text.partition(" ")
        if state in states and shepherd and reference and " " not in reference:
            located.append(Location(ServiceId(shepherd), ReferenceId(reference)))
    return located


def _need_http(protocols: tuple[str, ...]) -> None:
    if PROTOCOL_HTTP not in protocols:
        cause = f"{status.NO_SUPPORTED_PROTOCOL}; {PROTOCOL_HTTP} is what every Shepherd speaks"
        raise CheloniaError(Kind.NO_PROTOCOL, cause=cause)
