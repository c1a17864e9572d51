"""Objects by the S3 door: GET and HEAD, PUT, DELETE, copy, tags.

An object is a file. An object without bytes, whose key ends in a slash, is a collection made for its own sake. The
etag is the MD5 of the body, as clients compare it. Collections above a key come with it and go with the last key in
them. Keys that cannot be names are kept apart (`wire.s3.apart`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.ports.files import (
    ANY,
    UNSHARED,
    Arrived,
    Clone,
    Done,
    Failure,
    Look,
    Looked,
    Make,
    Placing,
    Remove,
    Removing,
    Set,
    Want,
    When,
    Write,
    good,
)
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import apply, apply_all, carrying, look, own_call, reader
from chelonia.hosting.doors.plain.sending import KEPT_BYTES_MAX, for_write, kept_sent
from chelonia.hosting.doors.ranged import Headers, ranged_file
from chelonia.hosting.doors.s3 import acls, narrowed, object_parts, versions
from chelonia.hosting.doors.s3.parts import (
    AGAIN_MAX,
    Ask,
    S3Parts,
    apply_again,
    check_bucket,
    check_unsigned,
    found,
    homes,
    in_own_name,
    no_key,
    note_facts,
    read_xml,
    seen,
    seen_to_change,
    xml_answer,
)
from chelonia.hosting.net.http_messages import HttpResponse, Whole, joined, nothing, read_whole
from chelonia.hosting.transfer.file_reader import FileReader
from chelonia.wire.s3 import answers, checksums, facts, keys, requests
from chelonia.wire.s3 import versions as wire_versions
from chelonia.wire.s3.answers import KeyRemoved
from chelonia.wire.s3.checksums import Measured, kind_of
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import Facts
from chelonia.wire.s3.keys import Target
from chelonia.wire.web.conditions import http_date, is_fresh, quoted, range_asked, when_of
from chelonia.wire.web.ranges import unsatisfied_range

SANDBOX: Final = (("Content-Security-Policy", "sandbox"), ("X-Content-Type-Options", "nosniff"))
"""Header fields that let a browser run nothing in a user's bytes, of whatever type, least of all as this server's."""
_ALL: Final = Want.USER | Want.SOURCES | Want.BYTES
_COPIED: Final = Want.USER | Want.POLICY
NEW: Final = When(absent=True)
"""Condition of a version that waits for its key: a late message finds the key's former version in that place."""
SOURCE_OWNER: Final = "x-amz-source-expected-bucket-owner"
"""The field of `check_owner` for the source of a copy."""
COPIED_BYTES_MAX: Final = 5 * 1024**3
"""S3's largest object of one copy: as much is read for a requested checksum."""
RACES: Final = (Kind.CONFLICT, Kind.EXISTS, Kind.NO_PARENT, Kind.NOT_A_COLLECTION)
_BLOCKED: Final = (Kind.NO_PARENT, Kind.NOT_A_COLLECTION, Kind.NOT_A_FILE, Kind.EXISTS, Kind.PRECONDITION)
GONE: Final = (Kind.NOT_FOUND, Kind.NOT_A_FILE, Kind.NOT_A_COLLECTION)
"""Errors of a removal where there is nothing to remove."""


async def get(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET or HEAD of an object."""
    request, is_head = ask.exchange.request, ask.exchange.request.method == "HEAD"
    ask, entry = await found(parts, ask, Want.USER if is_head else _ALL)
    attributes = entry.attributes
    when_of(_stated(ask, "If-Match", "If-Unmodified-Since")).require(ask.place, attributes)
    headers = described(ask, entry)
    if is_fresh(request.headers, attributes.etag, attributes.modified_ns):
        # Without a body a client has nothing to compare a checksum with.
        return HttpResponse(304, tuple(field for field in headers if not field[0].startswith("x-amz-checksum")))
    if ask.marks:
        return HttpResponse(200, headers, b"", 0)
    wanted = range_asked(request.headers, attributes.etag, attributes.modified_ns)
    if "partNumber" in ask.query:
        if wanted:
            raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
        wanted, headers = await object_parts.one_part(parts, ask, entry, headers)
    try:
        answer = ranged_file(_reader(parts, ask, entry), entry, headers, wanted)
    except CheloniaError as error:
        if error.kind is Kind.BAD_RANGE:
            whole = unsatisfied_range(attributes.size)
            error = S3Error("InvalidRange", f"The requested range is not satisfiable ({whole})")
        raise error
    return replace(answer, body=b"") if is_head else answer


def _stated(ask: Ask, *names: str, prefix: str = "") -> dict[str, str]:
    """Return the fields of these names that a request has, without their prefix there."""
    headers = ask.exchange.request.headers
    return {name: headers[prefix + name] for name in names if prefix + name in headers}


def _reader(parts: S3Parts, ask: Ask, entry: Looked) -> FileReader:
    return reader(parts.plain, ask.exchange.call, ask.itself(entry))


def described(ask: Ask, entry: Looked) -> Headers:
    """Return the header fields of an object, with those that a signed request overrides by `response-*`."""
    file, kept = entry.attributes, facts.facts_of(entry.user)
    fields = dict(facts.header_fields(kept))
    overrides = {name.removeprefix("response-"): value for name, value in ask.query.items()
                 if name.startswith("response-")}  # fmt: skip
    if overrides and ask.exchange.call.dn == ANONYMOUS:
        raise S3Error("InvalidRequest", "Request specific response headers cannot be used for anonymous GET requests.")
    allowed = {name.lower(): name for name in facts.KEPT}
    if not all(facts.is_field(*each) for each in overrides.items()):
        raise S3Error("InvalidArgument", "a response- parameter holds what no header field can")
    fields |= {allowed[name]: value for name, value in overrides.items() if name in allowed}
    if (
        ask.header("x-amz-checksum-mode").upper() == "ENABLED"
        and kept.checksum[0]
        and kept.etag == file.etag
        and not ask.header("Range")
    ):
        fields[f"x-amz-checksum-{kept.checksum[0]}"] = kept.checksum[1]
        fields["x-amz-checksum-type"] = kind_of(kept.checksum[1])
    if kept.tags:
        fields["x-amz-tagging-count"] = str(len(kept.tags))
    own = (("ETag", quoted(file.etag)), ("Last-Modified", http_date(file.modified_ns)), ("Accept-Ranges", "bytes"))
    return (*own, *versions.version_fields(ask, entry), *SANDBOX, *fields.items())


async def put(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT of an object, which readers see once enough copies are on stable storage."""
    request = ask.exchange.request
    if request.length < 0:
        raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
    kept = facts.facts_from(request.headers.items(), requests.tags_of(ask.header("x-amz-tagging")))
    return await stored(parts, ask, kept)


async def stored(parts: S3Parts, ask: Ask, kept: Facts) -> HttpResponse:
    """Store the body of a request as its object, with the facts that are kept beside it."""
    request = ask.exchange.request
    prepared = await ready(parts, ask)
    ask, when = prepared.ask, prepared.when
    if ask.marks:
        first = await anext(aiter(request.body), b"") if request.length else b""
        if not first:
            await read_whole(request, Whole(1))
            await _mark(parts, ask, kept, when)
            return HttpResponse(200, (("ETag", quoted(ask.measured.etag)),), b"", 0)
        request, prepared = replace(request, body=joined(first, request.body)), prepared.with_bytes
        ask, when = prepared.ask, prepared.when
        ask = replace(ask, exchange=replace(ask.exchange, request=request))
    ask = await versions.staged(parts, ask, prepared.entry)
    rules = await acls.rules(parts, ask, prepared.entry, acls.header_grants(ask))
    placing = Placing(ask.place, request.length, wanted=prepared.copies, parents=True, within=ask.bucket)
    try:
        arrived, inline = await for_write(parts.plain, ask.exchange, placing)
    except CheloniaError as error:
        error = await raced(parts, ask, error)
        raise error
    if not ask.versioning and (inline is None or parts.state(ask.exchange.call, ask.bucket) != ""):
        await check_unversioned(parts, ask)
    measured = ask.measured
    kept = structs.replace(kept, version=ask.version)
    if measured.checksum:
        kept = structs.replace(kept, checksum=(measured.checksum, measured.value), etag=measured.etag)
    write = Write(ask.place, arrived, user=facts.stored(kept), parents=True, etag=measured.etag, inline=inline)
    write = replace(write, when=NEW if ask.final else when, policy=rules, default_of=ask.default_of)
    done = await applied(parts, ask, replace(write, within=ask.bucket))
    version = await versions.settled(parts, versions.stored_as(ask, done), when, prepared.entry)
    sums = ((f"x-amz-checksum-{measured.checksum}", measured.value),) if measured.checksum else ()
    kind = (("x-amz-checksum-type", "FULL_OBJECT"),) if sums else ()
    return HttpResponse(200, (("ETag", quoted(measured.etag)), *sums, *kind, *version), b"", 0)


async def check_unversioned(parts: S3Parts, ask: Ask) -> None:
    """Refuse bytes on their way to a name, where the bucket now keeps versions: they could overwrite one. Raises:
    ServiceUnavailable."""
    if await versions.state_of(parts, ask):
        cause = "the bucket keeps versions since these bytes were on their way: send them again, as a version"
        raise S3Error("ServiceUnavailable", cause)


async def _mark(parts: S3Parts, ask: Ask, kept: Facts, when: When) -> Done:
    """Make a collection for its own sake: the object that some clients show as a directory."""
    grants = acls.header_grants(ask)
    done = await _marked(parts, ask, facts.stored(kept), when)
    if grants is not None:
        await acls.apply_grants(parts, ask, grants)
    return done


async def _marked(parts: S3Parts, ask: Ask, user: Mapping[str, str], when: When) -> Done:
    """Make the collection, or mark the one that is there; try again while others make or remove it."""
    # Arrow makes those above each of its files, several at a time.
    new = replace(when, absent=False)
    made = Make(ask.place, TYPE_COLLECTION, user=user, parents=True, when=new, within=ask.bucket)
    marked = Set(ask.place, user=user)
    for left in range(AGAIN_MAX, -1, -1):
        try:
            return await apply_again(parts, ask, made, _crossed)
        except CheloniaError as error:
            if error.kind is not Kind.EXISTS:
                raise
            there = error
        try:
            return await apply_again(parts, ask, replace(marked, when=await _there(parts, ask, when)), _crossed)
        except CheloniaError as gone:
            if isinstance(gone, S3Error) or gone.kind not in (Kind.NOT_FOUND, Kind.PRECONDITION):
                raise
            if not left:  # an upload that is not complete holds the name
                raise there from gone
    raise AssertionError("the last try returns or raises")


async def _there(parts: S3Parts, ask: Ask, when: When) -> When:
    """Return the condition on the collection that is there; that it is only a part of keys, where there may be no
    object. Raises: PreconditionFailed, NOT_FOUND; ServiceUnavailable of another key's file."""
    there = (await look(parts.plain, own_call(parts.plain, ask.exchange.call), ask.place)).attributes
    if there.type != TYPE_COLLECTION:
        raise _in_the_way()
    if not when.absent:
        return replace(when, guid=there.guid)
    if not there.implied:
        raise S3Error("PreconditionFailed", "there is an object of this key")
    return When(version=there.version, guid=there.guid)


async def _crossed(error: CheloniaError) -> bool:
    """Return whether a change failed because others changed the same entries."""
    return error.kind in (Kind.CONFLICT, Kind.NO_PARENT)


@dataclass(frozen=True, slots=True)
class WriteReady:
    """A request with the place of its new object, the number of copies, and the entry there with its conditions."""

    ask: Ask
    copies: int
    when: When = ANY
    entry: Looked | None = None

    @property
    def with_bytes(self) -> WriteReady:
        """The same for an object with bytes. Beside a collection of its key it is kept apart, where there is none."""
        if not self.ask.marks:
            return self
        return WriteReady(self.ask.at(self.ask.apart), self.copies, ANY if self.when == ANY else NEW)


async def ready(parts: S3Parts, ask: Ask) -> WriteReady:
    """Prepare the write of an object."""
    await check_unsigned(parts, ask)
    ask, entry = await seen_to_change(parts, ask, writes=True)
    copies = entry.attributes.wanted if entry and entry.attributes.wanted else parts.plain.copies
    return WriteReady(ask, copies, await conditions(parts, ask, entry), entry)


async def conditions(parts: S3Parts, ask: Ask, entry: Looked | None) -> When:
    """Return the conditions on the present entry, which hold now. Raises: NoSuchKey, PRECONDITION."""
    when = when_of(_stated(ask, "If-Match", "If-None-Match"))
    if entry is None and (when.etags or when.present):
        raise no_key(ask.target.key)
    when.require(ask.exchange.place, entry.attributes if entry else None)
    return when


async def applied(parts: S3Parts, ask: Ask, change: Write | Clone) -> Done:
    """Apply a change of an object; try again while others change the same name. Raises: as it fails."""
    # NOT_FOUND may be of the file to be overwritten, removed meanwhile; of a copy it may be of the source.
    races = (*RACES, Kind.NOT_FOUND) if isinstance(change, Write) and not change.when.etags else RACES

    async def again(error: CheloniaError) -> bool:
        return error.kind in races

    try:
        return await apply_again(parts, ask, change, again)
    except CheloniaError as error:
        error = await raced(parts, ask, error)
        raise error


async def raced(parts: S3Parts, ask: Ask, error: CheloniaError) -> CheloniaError:
    """Return the error of a failed write: ServiceUnavailable when another request took its place meanwhile."""
    if error.kind not in _BLOCKED or ask.final:
        return error
    now, _ = await seen(parts, in_own_name(parts, ask), writes=True)  # a caller who may write may not always look
    return _in_the_way() if now.place != ask.place else error


def _in_the_way() -> S3Error:
    cause = "another request has just made an object whose name is in the way of this one: send it again"
    return S3Error("ServiceUnavailable", cause)


async def delete(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE of an object; a missing one is gone already."""
    state = await versions.state_of(parts, ask)
    when = when_of(_stated(ask, "If-Match"))
    done = await removed(parts, ask, state, ask.query.get("versionId", ""), when)
    return HttpResponse(204, versions.removal_fields(done))


async def removed(parts: S3Parts, ask: Ask, versioning: str, version: str, when: When) -> KeyRemoved:
    """Remove a key, or one of its versions. `versioning`: the bucket's state; `when`: the etag that it must have.
    Raises: NoSuchBucket; on a condition NoSuchKey, NoSuchVersion, PRECONDITION."""
    if version and (versioning or version != wire_versions.NULL):
        return await versions.version_removed(parts, ask, version, when)
    if versioning:
        return await versions.removed(parts, ask, when)
    changes, behind = await _removals_on(parts, ask, when)
    answers = await apply_all(parts.plain, ask.exchange.call, changes)
    for answer in answers:
        if isinstance(answer, Failure) and answer.kind not in GONE:
            raise answer.error(ask.operation)
    if behind and isinstance(answers[0], Done):  # a failure: it stays, as if it had come since
        await apply_all(parts.plain, ask.exchange.call, behind)
    if all(isinstance(answer, Failure) for answer in answers):
        await check_bucket(parts, ask)
        if when != ANY:  # of several at once one has removed it
            raise no_key(ask.target.key)
    return KeyRemoved(ask.target.key)


async def _removals_on(parts: S3Parts, ask: Ask, when: When) -> tuple[tuple[Remove, ...], tuple[Remove, ...]]:
    """Return the changes that remove the request's key, on a condition. And those that then remove what is in its other
    place now, where no reader sees it. Raises: NoSuchKey, PRECONDITION."""
    changes = removals(ask, ask.target.key)
    if when == ANY:
        return changes, ()
    ask, entry = await seen(parts, ask)
    if entry is None:
        raise no_key(ask.target.key)
    when.require(ask.exchange.place, entry.attributes)
    others = [change for change in changes if change.place != ask.place]
    looks = tuple([Look(each.place) for each in others])
    answers = await parts.plain.files.look(ask.exchange.call, looks) if looks else ()
    behind = [
        replace(change, when=When(version=there.attributes.version, guid=there.attributes.guid))
        for change, there in zip(others, answers, strict=True)
        if isinstance(there, Looked)
    ]
    return tuple([replace(change, when=when) for change in changes if change.place == ask.place]), tuple(behind)


def removals(ask: Ask, key: str) -> tuple[Remove, ...]:
    """Return the changes that remove a key from each place where it may be."""
    home, by_name = keys.home_of(ask.bucket, key), Removing.MARK if key.endswith("/") else Removing.OBJECT
    places = homes(ask.exchange.call, ask.bucket, key)
    return tuple([Remove(place, by_name if place == home else Removing.OBJECT) for place in places])


async def copy(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT with `x-amz-copy-source`. Bytes and facts are of one state of the source, even while it changes."""
    await narrowed.check_owner(parts, source_of(parts, ask), SOURCE_OWNER)
    source, entry = await found(parts, source_of(parts, ask), _COPIED)
    for left in range(AGAIN_MAX, -1, -1):
        check_source(ask, entry)
        try:
            return await _copied(parts, ask, source, entry)
        except CheloniaError as error:
            if error.kind not in (Kind.NOT_FOUND, Kind.PRECONDITION) or not left:
                raise
            before = entry.attributes
            source, entry = await found(parts, source_of(parts, ask), _COPIED)
            if (entry.attributes.guid, entry.attributes.etag) == (before.guid, before.etag):
                raise  # it is the object's own condition that does not hold
    raise AssertionError("the last try returns or raises")


async def _copied(parts: S3Parts, ask: Ask, source: Ask, entry: Looked) -> HttpResponse:
    """Copy the state that was seen. Raises: PRECONDITION, also when the source has changed since."""
    anew = _anew(ask)
    kept = await _summed(parts, ask, entry, replace_facts(ask, entry, anew=anew))
    ready_to = await ready(parts, ask)
    ask, when = ready_to.ask, ready_to.when
    if ask.marks and ask.place != source.place:
        if not entry.attributes.size:
            made = await _mark(parts, ask, structs.replace(kept, version=""), when)
            return xml_answer(answers.copied(*_stamp(made, entry)))
        ready_to = ready_to.with_bytes
        ask, when = ready_to.ask, ready_to.when
    itself = ask.place == source.place
    ask = ask if ask.marks else await versions.staged(parts, ask, ready_to.entry)
    rules = await acls.rules(parts, ask, ready_to.entry, acls.header_grants(ask))
    place, version = ask.place, versions.Headers()
    changes = anew or ask.header("x-amz-storage-class") or ask.header("x-amz-checksum-algorithm")
    if itself and not source.query and not changes:
        cause = "This copy request is illegal because it is trying to copy an object to itself without changing "
        raise S3Error("InvalidRequest", cause + "the object's metadata")
    if itself and not ask.final:
        still = replace(when, etags=(entry.attributes.etag,), guid=entry.attributes.guid)
        change = Set(place, user=facts.stored(kept), policy=acls.instead(rules, entry), when=still)
        done = await apply(parts.plain, ask.exchange.call, change)
    else:
        user = facts.stored(structs.replace(kept, version=ask.version))
        clone = Clone(place, source.itself(entry), user=user, parents=True, when=NEW if ask.final else when)
        clone = replace(clone, policy=rules, default_of=ask.default_of, within=ask.bucket)
        clone = replace(clone, of=When(etags=(entry.attributes.etag,)))
        done = await _cloned(parts, ask, clone, ready_to.copies)
        version = await versions.settled(parts, versions.stored_as(ask, done), when, ready_to.entry)
    checksum = kept.checksum if kept.etag == entry.attributes.etag else ("", "")
    copied = answers.copied(*_stamp(done, entry), checksum=checksum)
    return xml_answer(copied, *version, *versions.copied_fields(source, entry))


async def _summed(parts: S3Parts, ask: Ask, entry: Looked, kept: Facts) -> Facts:
    """Return the facts of a copy with the requested checksum; read the source if that one is not known of it.
    Raises: S3Error; PRECONDITION when the source has changed since it was seen."""
    field, etag = "x-amz-checksum-algorithm", entry.attributes.etag
    name, whole = checksums.asked_for(field, ask.header(field)), kind_of(kept.checksum[1]) == "FULL_OBJECT"
    if not name or (kept.etag == etag and kept.checksum[0] == name and whole):
        return kept
    measured = Measured(checksum=name)
    source, entry = await found(parts, source_of(parts, ask), _ALL)
    When(etags=(etag,)).require(source.place, entry.attributes)
    if entry.attributes.size > COPIED_BYTES_MAX:
        cause = f"a copy of more than {COPIED_BYTES_MAX} bytes gets no checksum that its source has not; copy it in "
        raise S3Error("InvalidRequest", cause + "parts, or without one")
    if entry.attributes.size:
        async for data in _reader(parts, source, entry).get(entry, ByteRange(0, entry.attributes.size)):
            measured.update(data)
    return structs.replace(kept, checksum=(name, measured.value), etag=etag)


async def _cloned(parts: S3Parts, ask: Ask, clone: Clone, copies: int) -> Done:
    """Copy an object by reference, or else its bytes."""
    try:
        return await applied(parts, ask, clone)
    except CheloniaError as error:
        if error.kind not in UNSHARED:
            raise
    source, entry = await found(parts, source_of(parts, ask), Want.USER | Want.SOURCES)
    clone.of.require(source.place, entry.attributes)
    size, etag = entry.attributes.size, entry.attributes.etag
    placing = Placing(clone.place, size, wanted=copies, parents=True, within=clone.within)
    arrived = await carried(parts, source, entry, ByteRange(0, size), placing)
    if not ask.versioning:
        await check_unversioned(parts, ask)
    write = Write(clone.place, arrived, user=clone.user, parents=True, when=clone.when, etag=etag, policy=clone.policy)
    return await applied(parts, ask, replace(write, default_of=clone.default_of, within=clone.within))


def _stamp(done: Done, entry: Looked) -> tuple[str, int]:
    """Return etag and time (ns) of a copy."""
    return entry.attributes.etag, (done.attributes or entry.attributes).modified_ns


def source_of(parts: S3Parts, ask: Ask) -> Ask:
    """Return the same request, about the source of a copy. Raises: S3Error."""
    bucket, key, version = requests.copy_source(ask.header("x-amz-copy-source"))
    place, query = parts.root.child(keys.check_bucket(bucket)), {"versionId": version} if version else {}
    return replace(ask, target=Target(bucket, keys.check_key(key)), bucket=place, query=query)


def _anew(ask: Ask) -> bool:
    directive = ask.header("x-amz-metadata-directive").upper() or "COPY"
    if directive not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", "Unknown metadata directive: COPY or REPLACE")
    return directive == "REPLACE"


def replace_facts(ask: Ask, entry: Looked, *, anew: bool) -> Facts:
    """Return the facts that a copy keeps beside its bytes."""
    before = facts.facts_of(entry.user)
    tags = before.tags
    if ask.header("x-amz-tagging-directive").upper() == "REPLACE":
        tags = requests.tags_of(ask.header("x-amz-tagging"))
    if not anew:
        return structs.replace(before, tags=tags)
    given = facts.facts_from(ask.exchange.request.headers.items(), tags)
    return structs.replace(before, headers=given.headers, user=given.user, tags=tags)


def check_source(ask: Ask, entry: Looked) -> None:
    """Check the conditions on the source. Raises: PRECONDITION."""
    names = ("If-Match", "If-None-Match", "If-Unmodified-Since", "If-Modified-Since")
    given = _stated(ask, *names, prefix="x-amz-copy-source-")
    when_of(given).require(ask.exchange.place, entry.attributes)
    if is_fresh(given, entry.attributes.etag, entry.attributes.modified_ns):
        raise S3Error("PreconditionFailed", "the source is what it was")


async def carried(
    parts: S3Parts, source: Ask, entry: Looked, span: ByteRange, placing: Placing, measured: Measured | None = None
) -> Arrived:
    """Store bytes of an object in a new place, `measured`. This node keeps a small body, to try other Shepherds."""
    body = _reader(parts, source, entry).get(entry, span) if span.length else nothing()
    body = _measuring(body, measured) if measured is not None else body
    if span.length <= KEPT_BYTES_MAX:
        kept = b"".join([chunk async for chunk in body])
        return (await kept_sent(parts.plain, source.exchange, placing, kept))[1]
    (answer,) = await parts.plain.files.place(carrying(parts.plain, source.exchange.call), (placing,))
    return await parts.plain.bytes.put(good(answer, source.operation), body, span.length)


async def _measuring(body: AsyncIterator[bytes], measured: Measured) -> AsyncIterator[bytes]:
    async for chunk in body:
        measured.update(chunk)
        yield chunk


async def get_tags(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of an object's tags."""
    ask, entry = await found(parts, ask, Want.USER)
    return xml_answer(answers.tags(facts.facts_of(entry.user).tags), *versions.version_fields(ask, entry))


async def put_tags(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT of an object's tags."""
    tags = await read_xml(ask, requests.tagging)
    return await _tagged(parts, ask, tags, 200)


async def delete_tags(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE of an object's tags."""
    return await _tagged(parts, ask, {}, 204)


async def _tagged(parts: S3Parts, ask: Ask, tags: dict[str, str], status: int) -> HttpResponse:
    now, entry = await note_facts(parts, ask, tags=tags)
    return HttpResponse(status, versions.version_fields(now, entry), b"", 0)
