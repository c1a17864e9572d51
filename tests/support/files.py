"""A memory twin of the port `Files` with a byte store behind it: for the contract suite, and for tests of doors.

Entries are objects with names; `core.rights.policy` decides rights on the entry alone. Nothing is kept in a trash.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import Mapping

from msgspec import structs

from chelonia.bartender.client_metadata import check_volume
from chelonia.bartender.files.attributes import setting_triples
from chelonia.bartender.rights import check_within
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.quotas import QuotaUse
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange, Extent, laid
from chelonia.core.contents.parts import (
    NO_PART,
    PartPage,
    PartsUpload,
    UploadId,
    UploadPage,
    listing_mark,
    parse_mark,
    upload_id,
)
from chelonia.core.contents.parts import UploadedPart as Told
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, ROOT, BlobId, ContentId, Dn, Guid, Ms
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_MOUNTPOINT
from chelonia.core.names import LogicalName, check_name, entry_key, entry_name
from chelonia.core.ports.files import (
    ANY,
    MARK,
    TOP,
    Arrived,
    Attributes,
    Change,
    Clone,
    Content,
    Done,
    Drop,
    Failure,
    Inline,
    Listed,
    Listing,
    Look,
    Looked,
    Make,
    Move,
    Named,
    Open,
    Over,
    Part,
    Placed,
    Placing,
    Remove,
    Removing,
    Seal,
    Set,
    Setting,
    Space,
    Splice,
    UploadParts,
    Uploads,
    Want,
    Write,
    placed_part,
)
from chelonia.core.rights.locks import Lock, check_beside, check_held, check_new
from chelonia.core.rights.policy import Action, check_policy_rule, decide, with_rules
from chelonia.core.rights.scopes import Scope, Share, Shared
from chelonia.core.values import replace
from chelonia.wire.crcs import Crc
from chelonia.wire.shares import ShareToken, issue
from tests.support.files_entries import Node, Opened

S = 1_000_000_000
SHARE_KEY = bytes(range(32))


def _measured(node: Node, data: bytes) -> Checksums:
    crcs = {name: Crc(name) for name in ("crc32c", "crc64nvme")}
    for crc in crcs.values():
        crc.update(data)
    return replace(node.checksums, **{name: crc.digest().hex() for name, crc in crcs.items()})


class MemoryFiles:
    """`Files` over a dictionary. `arrive` stands for sending the bytes."""

    def __init__(self, owner: Dn) -> None:
        self.quotas: tuple[QuotaUse, ...] = ()
        self._numbers = itertools.count(1)
        self.nodes: dict[Guid, Node] = {ROOT: Node(Attributes(ROOT, TYPE_COLLECTION, 1, owner))}
        self._placed: dict[str, tuple[Placing, Dn]] = {}
        self._bytes: dict[str, bytes] = {}
        self._used: set[str] = set()
        self._uploads: dict[UploadId, Opened] = {}
        self._sums: dict[str, str] = {}

    def arrive(self, placed: Placed, data: bytes) -> Arrived:
        """Keep these bytes for the upload."""
        put = placed.put or placed.turl.removeprefix("memory:")
        self._bytes[put] = data
        arrived = Arrived(put, ("receipt",))
        ask, dn = self._placed.get(put, (None, None))
        if ask and ask.reserving:  # the name is reserved
            self._apply(Call(dn=dn), Write(ask.place, arrived, ask.reserving.setting))
        return arrived

    # --- the port ---------------------------------------------------------------------------------------------------

    async def look(self, call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        return tuple([_tried(self._look, call, ask) for ask in asks])

    async def list(self, call: Call, ask: Listing) -> Listed:
        check_within(call, "list", ask.place)
        return self._list(call, ask)

    async def place(self, call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        return tuple([_tried(self._place, call, ask) for ask in asks])

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        return tuple([_tried(self._apply, call, change) for change in changes])

    async def share(self, call: Call, ask: Share) -> Shared:
        check_within(call, "share", ask.place)
        if call.via or call.dn == ANONYMOUS:
            raise CheloniaError(Kind.DENIED)
        there, parent, rest = self._find(ask.place)
        if there is None:
            _parent(ask.place, parent, rest)
        _require(call, Action.ADD_ENTRY if there is None else ask.actions[0], there or parent, ask.place)
        now_ms, scope = Ms(int(time.time() * 1000)), Scope(ask.actions, ask.place.parts)
        expires_ms = Ms(now_ms + ask.lifetime_ms)
        token = issue(SHARE_KEY, ShareToken("link", call.dn, call.credential, scope, now_ms, expires_ms))
        return Shared(token, url := f"https://se:1{ask.place}", f"{url}?authz={token}", expires_ms)

    async def uploads(self, call: Call, ask: Uploads) -> UploadPage:
        node = self._existing(ask.place)
        if node.type != TYPE_COLLECTION:
            raise CheloniaError(Kind.NOT_A_COLLECTION)
        _require(call, Action.READ, node, ask.place)
        if ask.limit < 0:
            raise CheloniaError(Kind.BAD_REQUEST)
        marks = {
            listing_mark("/".join(each.change.place.parts[len(each.change.within.parts) :]), upload): each
            for upload, each in self._uploads.items()
            if each.within == node.attributes.guid
        }
        order = [mark for mark in sorted(marks, key=str.encode) if mark > ask.after and mark.startswith(ask.prefix)]
        page = order[: ask.limit or bounds.PAGE_ENTRIES_MAX]
        told = tuple(PartsUpload(*parse_mark(mark), marks[mark].owner, Ms(1)) for mark in page)
        return UploadPage(told, page[-1] if len(order) > len(page) else "")

    async def parts(self, call: Call, ask: UploadParts) -> PartPage:
        if min(ask.limit, ask.after) < 0:
            raise CheloniaError(Kind.BAD_REQUEST)
        found = self._upload(call, ask.upload, ask.place, Action.READ)
        numbers = [number for number in sorted(found.parts) if number > ask.after]
        page = numbers[: ask.limit or bounds.PAGE_ENTRIES_MAX]
        told = tuple(
            Told(n, len(found.parts[n][1]), found.etag(n), Ms(1), found.checksums.get(found.parts[n][0], ""))
            for n in page
        )
        after = page[-1] if len(numbers) > len(page) else 0
        return PartPage(told, after, found.change.place, found.owner, found.within, dict(found.change.user))

    async def space(self, call: Call, place: LogicalName = TOP) -> Space:
        used = sum(node.attributes.size for node in self.nodes.values())
        return Space(1 << 40, (1 << 40) - used, self.quotas)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _look(self, call: Call, ask: Look) -> Looked:
        node = self._existing(ask.place)
        _require(call, Action.READ, node, ask.place)
        if Want.WRITE in ask.want:
            _require(call, Action.DELETE, node, ask.place)
        blobs = {BlobId(node.attributes.etag): Extent(0, len(node.data), BlobId(node.attributes.etag))}
        sources: tuple[str, ...] = ()
        if Want.SOURCES in ask.want and node.type == TYPE_FILE and node.extents is None:
            sources = (f"memory:{node.attributes.etag}",)
        extents: tuple[Extent, ...] = ()
        told = node.attributes.size
        if ask.want & (Want.SOURCES | Want.EXTENTS) and node.extents is not None:
            span = ask.span or ByteRange(0, told)
            if min(span.offset, span.length) < 0:
                raise CheloniaError(Kind.BAD_REQUEST)
            told = min(told, span.offset + span.length)
            meets = [each for each in node.extents if each.end > span.offset and each.at < told]
            extents = tuple(meets[: bounds.EXTENTS_PAGE])
            told = extents[-1].end if len(extents) < len(meets) else told
        elif Want.EXTENTS in ask.want and node.data:
            extents = tuple(blobs.values())
        turls = {each.blob: (f"memory:{each.blob}",) for each in extents} if Want.SOURCES in ask.want else {}
        small = node.type == TYPE_FILE and node.extents is None and len(node.data) <= bounds.INLINE_BYTES_MAX
        data = node.data if small and Want.BYTES in ask.want else None
        return Looked(
            self._described(node),
            dict(node.user) if Want.USER in ask.want else {},
            dict(node.policy) if Want.POLICY in ask.want else {},
            _measured(node, self._data(node))
            if Want.MEASURED in ask.want
            else node.checksums
            if Want.CHECKSUMS in ask.want
            else Checksums(),
            () if data is not None else sources,
            extents,
            told,
            turls if node.extents is not None else {},
            self._covering(ask.place) if Want.LOCKS in ask.want else (),
            data,
            self._sums_of(extents) if Want.CHECKSUMS in ask.want and node.extents is not None else {},
        )

    def _data(self, node: Node) -> bytes:
        laid = node.extents or ()
        return node.data or b"".join(self._bytes[each.blob][each.skip : each.skip + each.length] for each in laid)

    def _sums_of(self, extents: tuple[Extent, ...]) -> dict[BlobId, dict[str, str]]:
        known = {each.blob: self._sums.get(each.blob, "") for each in extents}
        return {blob: dict([kept.split(":")]) for blob, kept in known.items() if kept}

    def _list(self, call: Call, ask: Listing) -> Listed:
        if ask.limit < 0:
            raise CheloniaError(Kind.BAD_REQUEST)
        node = self._existing(ask.place)
        _require(call, Action.READ, node, ask.place)
        if node.type != TYPE_COLLECTION:
            kind = Kind.IN_MOUNTPOINT if node.type == TYPE_MOUNTPOINT else Kind.NOT_A_COLLECTION
            raise CheloniaError(kind, subject=str(ask.place))
        known = {path: self.nodes[guid] for path, guid in self._paths(call, node, ask)}
        summed: dict[str, bool] = {}
        for path in sorted(known, key=str.encode):
            rest = path.removeprefix(ask.prefix)
            head, found, _ = rest.partition(ask.delimiter) if ask.delimiter else (rest, "", "")
            answer = ask.prefix + head + found if found else path
            if path.startswith(ask.prefix) and answer.encode() > ask.after.encode():
                summed[answer] = bool(found)
        order = list(summed)
        page = order[: ask.limit or bounds.PAGE_ENTRIES_MAX]
        entries = [self._named(call, entry_name(path), known[path], ask) for path in page if not summed[path]]
        prefixes = tuple(path for path in page if summed[path])
        return Listed(tuple(entries), page[-1] if len(order) > len(page) else "", prefixes)

    def _paths(self, call: Call, node: Node, ask: Listing, above: str = "") -> list[tuple[str, Guid]]:
        """Every path below a collection that the caller may know of."""
        found = []
        for name, guid in node.inside.items():
            child = self.nodes[guid]
            path = above + entry_key(name, child.type == TYPE_COLLECTION)
            found.append((path, guid))
            enters = ask.below and child.type == TYPE_COLLECTION
            if enters and _may(call, Action.READ, child, _inside(ask.place, path)):
                found += self._paths(call, child, ask, path)
        return found

    def _named(self, call: Call, name: str, node: Node, ask: Listing) -> Named:
        known = self._described(node)
        if not _may(call, Action.READ, node, _inside(ask.place, name)):
            public = Attributes(known.guid, known.type, known.version, Dn(""), known.size)
            times = {t: getattr(known, t) for t in ("modified_ns", "changed_ns", "accessed_ns", "created_ns")}
            return Named(name, structs.replace(public, **times))
        locks = tuple(node.locks.values()) if Want.LOCKS in ask.want else ()
        return Named(name, known, dict(node.user) if Want.USER in ask.want else {}, locks)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _place(self, call: Call, ask: Placing) -> Placed:
        there, parent, rest = self._find(ask.place)
        when = ask.reserving.when if ask.reserving is not None else ask.when
        when.require(ask.place, there.attributes if there else None)
        if ask.reserving is not None:
            if when.tokens is not None:
                self._check_locks(call, Write(ask.place, when=when), when.tokens)
            if ask.piece or ask.parents:
                raise CheloniaError(Kind.BAD_REQUEST)
        if there is not None:
            if there.type != TYPE_FILE:
                raise CheloniaError(Kind.NOT_A_FILE, subject=str(ask.place))
            _require(call, Action.DELETE, there, ask.place)
        else:
            _parent(ask.place, parent, rest[-1:] if ask.parents else rest)
            _require(call, Action.ADD_ENTRY, parent, ask.place)
        put = f"put-{next(self._numbers)}"
        self._placed[put] = (ask, call.dn)
        return Placed(f"memory:{put}", "" if ask.reserving else put, BlobId(put))

    def _apply(self, call: Call, change: Change) -> Done:
        when = ANY if isinstance(change, Open | Part | Drop) else change.when
        check_volume({"metadata": {n: text for n, text in (getattr(change, "user", None) or {}).items() if text}})
        if when.tokens is not None:
            self._check_locks(call, change, when.tokens)
        before = {guid: dict(node.inside) for guid, node in self.nodes.items()}
        try:
            done = self._changed(call, change)
        except CheloniaError:  # collections that were made on the way go again
            self.nodes = {guid: self.nodes[guid] for guid in before}
            for guid, inside in before.items():
                self.nodes[guid].inside = inside
            raise
        for guid, node in self.nodes.items():
            if node.inside != before.get(guid, {}):
                node.names_changed += 1
                node.attributes = structs.replace(node.attributes, modified_ns=next(self._numbers))
        return done

    def _changed(self, call: Call, change: Change) -> Done:
        match change:
            case Make():
                return self._make(call, change)
            case Write() | Splice():
                return self._write(call, change)
            case Clone():
                return self._copy(call, change)
            case Open():
                return self._open(call, change)
            case Part():
                return self._part(call, change)
            case Seal():
                return self._seal(call, change)
            case Drop():
                self._upload(call, change.upload, change.place, Action.REMOVE_ENTRY)
                del self._uploads[change.upload]
                return Done()
            case Set():
                return self._set(call, change)
            case Move():
                return self._move(call, change)
            case Remove():
                return self._remove(call, change)

    def _copy(self, call: Call, change: Clone) -> Done:
        source = self._existing(change.source)
        if source.type != TYPE_FILE:
            raise CheloniaError(Kind.NOT_A_FILE)
        _require(call, Action.READ, source, change.source)
        change.of.require(change.source, self._described(source))
        there, parent = self._ready(call, change.place, parents=change.parents)
        change.when.require(change.place, self._described(there) if there else None)
        if there is source:
            raise CheloniaError(Kind.BAD_REQUEST)
        if there is not None:
            _require(call, Action.DELETE, there, change.place)
            if there.type != TYPE_FILE:
                raise CheloniaError(Kind.NOT_A_FILE)
        node, known = there or self._new(call, TYPE_FILE, change.setting), source.attributes
        self._rule(call, change, node)
        _settle(node, change.setting)
        parent.inside[check_name(change.place.name)] = node.attributes.guid
        node.data, node.extents, node.checksums, node.etag = source.data, source.extents, source.checksums, source.etag
        node.user = dict(source.user if change.user is None else change.user)
        node.attributes = structs.replace(node.attributes, size=known.size, etag=known.etag, wanted=known.wanted)
        return Done(self._bumped(node), made=there is None)

    def _open(self, call: Call, change: Open) -> Done:
        if len(change.user) > bounds.UPLOAD_USER_METADATA_MAX:
            raise CheloniaError(Kind.TOO_LARGE)
        depth = len(change.within.parts)
        if depth >= len(change.place.parts) or change.place.parts[:depth] != change.within.parts:
            raise CheloniaError(Kind.BAD_REQUEST)
        self._place(call, Placing(change.place, -1, parents=change.parents))
        within = self._existing(change.within)
        content = ContentId(f"00000000-0000-4000-8000-{next(self._numbers):012x}")
        upload = upload_id(Ms(next(self._numbers)), content)
        self._uploads[upload] = Opened(change, call.dn, within.attributes.guid)
        return Done(upload=upload)

    def _upload(self, call: Call, upload: UploadId, place: LogicalName, action: Action | None) -> Opened:
        """An upload, to its opener or, of `action`, who has that right where it is listed."""
        found = self._uploads.get(upload)
        if found is None or found.change.place != place or (found.owner != call.dn and action is None):
            raise CheloniaError(Kind.NOT_FOUND)
        if found.owner != call.dn and action is not None:
            _require(call, action, self.nodes[found.within], place)
        uses = (action, Action.ADD_ENTRY)
        if call.scopes and not any(scope.covers(each, place) for scope in call.scopes for each in uses if each):
            raise CheloniaError(Kind.DENIED)
        return found

    def _part(self, call: Call, change: Part) -> Done:
        if not 1 <= change.number <= bounds.PARTS_MAX:
            raise CheloniaError(Kind.BAD_REQUEST)
        put = change.content.put
        self._arrived(call, change, change.content, piece=True)
        found = self._upload(call, change.upload, change.place, None)
        if put in self._used:
            raise CheloniaError(Kind.BAD_REQUEST)
        self._used.add(put)
        if not re.fullmatch(r"([a-z0-9]{1,16}:[0-9a-f]{8,64})? ([0-9a-f]{32})?", f"{change.checksum} {change.etag}"):
            raise CheloniaError(Kind.BAD_REQUEST)
        found.parts[change.number] = (put, self._bytes[put])
        found.etags[put] = change.etag
        found.checksums[put] = self._sums[put] = change.checksum
        return Done(etag=found.etag(change.number))

    def _seal(self, call: Call, change: Seal) -> Done:
        numbers = [number for number, _ in change.order]
        there, _ = self._ready(call, change.place, parents=change.parents)
        change.when.require(change.place, self._described(there) if there else None)
        if len(numbers) > bounds.PARTS_MAX:
            raise CheloniaError(Kind.TOO_LARGE)
        if not numbers or numbers != sorted(set(numbers)) or not 1 <= numbers[0] <= numbers[-1] <= bounds.PARTS_MAX:
            raise CheloniaError(Kind.BAD_REQUEST, subject=f"part {numbers}")
        if change.upload not in self._uploads:
            raise CheloniaError(Kind.NOT_FOUND)
        found = self._upload(call, change.upload, self._uploads[change.upload].change.place, None)
        for number, etag in change.order:
            if number not in found.parts or found.etag(number) != etag:
                raise CheloniaError(Kind.INCOMPLETE)
        chosen = [found.parts[number] for number in numbers]
        if any(len(data) < change.least for _, data in chosen[:-1]):
            raise CheloniaError(Kind.BAD_REQUEST, subject=f"part {numbers}")
        extents, at = [], 0
        for put, data in chosen:
            extents += [Extent(at, len(data), BlobId(put))] if data else []
            at += len(data)
        self._used -= {put for put, _ in chosen}
        self._placed |= {
            put: (Placing(change.place, -1, wanted=found.change.wanted, piece=True), call.dn) for put, _ in chosen
        }
        arrived = tuple(Arrived(put, ()) for put, data in chosen if data)
        content = Content(tuple(extents), arrived, whole=True)
        opened = found.change
        if there is not None:
            self._rule(call, change, there)
        user = {**opened.user, **change.user}
        write = Splice(change.place, content, opened.setting, user, change.parents, change.when)
        done = self._write(call, write)
        node = self._existing(change.place)
        self._rule(call, change, node)
        joined = b"".join(bytes.fromhex(etag) for _, etag in change.order)
        etag = f"{hashlib.md5(joined).hexdigest()}-{len(chosen)}"
        node.attributes = structs.replace(node.attributes, etag=etag, wanted=opened.wanted)
        del self._uploads[change.upload]
        return replace(done, attributes=self._described(node))

    def _make(self, call: Call, change: Make) -> Done:
        there, parent = self._ready(call, change.place, parents=change.parents)
        change.when.require(change.place, self._described(there) if there else None)
        if there is not None:
            raise CheloniaError(Kind.EXISTS, subject=str(change.place))
        node = self._new(call, change.type, change.setting)
        node.attributes = structs.replace(node.attributes, target=change.target)
        node.user = dict(change.user)
        parent.inside[check_name(change.place.name)] = node.attributes.guid
        return Done(self._described(node), made=True)

    def _arrived(self, call: Call, change: Write | Splice | Part, arrived: Arrived, *, piece: bool) -> Placing:
        ask, owner = self._placed.get(arrived.put, (None, Dn("")))
        if ask is None or owner != call.dn:
            raise CheloniaError(Kind.BAD_TICKET)
        if ask.place != change.place or ask.piece is not piece or ask.part not in (NO_PART, placed_part(change)):
            raise CheloniaError(Kind.BAD_REQUEST)
        return ask

    def _pieces(self, call: Call, change: Write | Splice, content: Content) -> Placing:
        asks = [self._arrived(call, change, each, piece=True) for each in content.blobs]
        if any(each.put in self._used for each in content.blobs):
            raise CheloniaError(Kind.BAD_REQUEST)
        sizes = {each.put: len(self._bytes[each.put]) for each in content.blobs}
        fits = all(each.skip + each.length <= sizes.get(each.blob, -1) for each in content.extents)
        if not fits or {each.blob for each in content.extents} != set(sizes):
            raise CheloniaError(Kind.BAD_REQUEST)
        return max(asks, key=lambda ask: ask.wanted, default=Placing(change.place, -1))

    def _write(self, call: Call, change: Write | Splice) -> Done:
        content = change.content
        change.check()
        if isinstance(content, Content):
            content = self._laid_inline(call, change, content)
            ask = self._pieces(call, change, content)
        elif isinstance(change, Write) and change.inline is not None:
            ask, content = self._inlined(call, change, change.inline)
        else:
            ask = self._arrived(call, change, content, piece=False)
        there, parent = self._ready(call, change.place, parents=change.parents)
        change.when.require(change.place, self._described(there) if there else None)
        if there is not None and there.type != TYPE_FILE:
            raise CheloniaError(Kind.NOT_A_FILE, subject=str(change.place))
        node = there or self._new(call, TYPE_FILE, change.setting)
        if there is not None:
            _require(call, Action.DELETE, there, change.place)
        if isinstance(change, Write):
            self._rule(call, change, node)
        _settle(node, change.setting)
        if change.place.parts:
            parent.inside[check_name(change.place.name)] = node.attributes.guid
        etag, size = content.put if isinstance(content, Arrived) else f"content-{next(self._numbers)}", 0
        if isinstance(content, Content):
            size = self._lay(node, content, made=there is None)
            etag = etag if size or there is not None else f"{node.attributes.guid}-0"
        else:
            node.data, node.extents = self._bytes[content.put], None
            size = len(node.data)
        kept = isinstance(content, Content) and node.attributes.wanted
        node.attributes = structs.replace(node.attributes, size=size, etag=etag, wanted=kept or ask.wanted)
        node.etag = change.etag if isinstance(change, Write) else ""
        node.checksums = Checksums(hashlib.sha256(node.data).hexdigest()) if node.extents is None else Checksums()
        node.user = dict(change.user) if change.user is not None else node.user
        return Done(self._bumped(node), made=there is None)

    def _rule(self, call: Call, change: Write | Clone | Seal, node: Node) -> None:
        if change.policy is not None:
            for who, actions in change.policy.items():
                check_policy_rule(who, actions)
            if (policy := with_rules(node.policy, change.policy)) != node.policy:
                _require(call, Action.MODIFY_POLICY, node, change.place)
            node.policy = policy

    def _laid_inline(self, call: Call, change: Write | Splice, content: Content) -> Content:
        """A content whose bytes came in the message, as if they had arrived before."""
        if content.inline is not None:
            ask, arrived = self._inlined(call, change, content.inline)
            self._placed[arrived.put] = (replace(ask, piece=True), call.dn)
            extents = tuple(replace(each, blob=BlobId(arrived.put)) for each in content.extents)
            content = replace(content, extents=extents, blobs=(arrived,))
        self._sums.update({each.put: f"{MARK}:{content.mark}" for each in content.blobs if content.mark})
        return content

    def _inlined(self, call: Call, change: Write | Splice, inline: Inline) -> tuple[Placing, Arrived]:
        """Bytes that came in the message, as if they had arrived before."""
        if len(inline.data) > bounds.INLINE_BYTES_MAX:
            raise CheloniaError(Kind.TOO_LARGE)
        sums = Checksums(hashlib.sha256(inline.data).hexdigest(), hashlib.md5(inline.data).hexdigest())
        if inline.checksums.conflicts(sums):
            raise CheloniaError(Kind.CHECKSUM)
        ask = Placing(change.place, len(inline.data), inline.checksums, inline.wanted)
        return ask, self.arrive(Placed("", f"put-{next(self._numbers)}"), inline.data)

    def _lay(self, node: Node, content: Content, *, made: bool) -> int:
        """Lay extents over a file; returns its size."""
        size, old = (0, ()) if content.whole or made else (node.attributes.size, node.extents)
        if old is None:
            blob = BlobId(node.attributes.etag)
            self._bytes[blob] = node.data
            old = (Extent(0, len(node.data), blob),) if node.data else ()
        self._used |= {each.put for each in content.blobs}
        after = content.size if content.size >= 0 else max([size, *(each.end for each in content.extents)])
        node.extents, node.data = laid(old, content.extents, after), b""
        if len(node.extents) > bounds.CONTENT_EXTENTS_MAX:
            raise CheloniaError(Kind.TOO_LARGE)
        return after

    def bytes_of(self, source: str) -> bytes:
        """The bytes that a source leads to."""
        name = source.removeprefix("memory:")
        whole = [node.data for node in self.nodes.values() if node.attributes.etag == name and node.extents is None]
        return whole[0] if whole else self._bytes[name]

    def _set(self, call: Call, change: Set) -> Done:
        node = self._existing(change.place)
        change.when.require(change.place, self._described(node))
        if change.policy:
            _require(call, Action.MODIFY_POLICY, node, change.place)
        if change.user or change.setting != Setting():
            _require(call, Action.MODIFY_METADATA, node, change.place)
        wanted = {**node.user, **change.user}, {**node.policy, **change.policy}
        user, policy = ({name: text for name, text in each.items() if text is not None} for each in wanted)
        check_volume({"metadata": user, "policy": policy})
        for lock in change.locks:
            self._lock(call, change, node, lock)
        _settle(node, change.setting)
        node.attributes, node.user, node.policy = structs.replace(node.attributes, implied=False), user, policy
        return Done(self._bumped(node))

    def _move(self, call: Call, change: Move) -> Done:
        check_name(change.target.name)
        node, source = self._existing(change.source), self._holder(change.source)
        change.when.require(change.source, self._described(node))
        if change.parents:
            self._ready(call, change.target, parents=True)
        there, target, rest = self._find(change.target)
        if there is node and change.over is not Over.REFUSE:
            return Done(self._described(node))
        if not change.keep and not _may(call, Action.REMOVE_ENTRY, source, change.source):
            _require(call, Action.DELETE, node, change.source)
        if there is None:
            if change.over is Over.EXCHANGE:
                raise CheloniaError(Kind.NOT_FOUND, subject=str(change.target))
            _parent(change.target, target, rest)
        elif change.over is Over.REFUSE:
            raise CheloniaError(Kind.EXISTS, subject=str(change.target))
        else:
            target = self._holder(change.target)
        _require(call, Action.ADD_ENTRY, target, change.target)
        self._check_over(change, node, there, target)
        if not change.keep:
            del source.inside[change.source.name]
            node.locks = {}
        if there is not None and change.over is Over.EXCHANGE:
            _require(call, Action.ADD_ENTRY, source, change.source)
            source.inside[change.source.name], there.locks = there.attributes.guid, {}
        target.inside[check_name(change.target.name)] = node.attributes.guid
        return Done(self._bumped(node), made=there is None)

    def _check_over(self, change: Move, node: Node, there: Node | None, target: Node) -> None:
        if node.type == TYPE_COLLECTION and target.attributes.guid in self._below(node):
            raise CheloniaError(Kind.INVALID_TARGET, subject=str(change.target))
        if there is None or change.over is Over.EXCHANGE:
            return
        if node.type == TYPE_COLLECTION and there.type != TYPE_COLLECTION:
            raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(change.target))
        if there.type == TYPE_COLLECTION and node.type != TYPE_COLLECTION:
            raise CheloniaError(Kind.NOT_A_FILE, subject=str(change.target))
        if there.inside:
            raise CheloniaError(Kind.NOT_EMPTY, subject=str(change.target))

    def _remove(self, call: Call, change: Remove) -> Done:
        node = self._existing(change.place)
        change.when.require(change.place, self._described(node))
        _require(call, Action.DELETE, node, change.place)
        if change.what is Removing.NAME and not change.place.parts:
            raise CheloniaError(Kind.NOTHING_TO_UNLINK, subject=str(change.place))
        if change.what is Removing.COLLECTION and node.type != TYPE_COLLECTION:
            raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(change.place))
        if change.what is Removing.FILE and node.type == TYPE_COLLECTION:
            raise CheloniaError(Kind.NOT_A_FILE, subject=str(change.place))
        if change.what in (Removing.KEY, Removing.MARK):
            return self._let_go(change, node)
        if node.inside:
            raise CheloniaError(Kind.NOT_EMPTY, subject=str(change.place))
        self._uploads = {u: each for u, each in self._uploads.items() if each.within != node.attributes.guid}
        if change.what is Removing.NAME:
            del self._holder(change.place).inside[change.place.name]
        else:
            for other in self.nodes.values():
                other.inside = {n: g for n, g in other.inside.items() if g != node.attributes.guid}
        if not any(node.attributes.guid in other.inside.values() for other in self.nodes.values()):
            del self.nodes[node.attributes.guid]
        return Done()

    def _let_go(self, change: Remove, node: Node) -> Done:
        """Take a key away, or the mark of a collection, and what is implied above it."""
        if (node.type == TYPE_COLLECTION) is not (change.what is Removing.MARK):
            raise CheloniaError(Kind.NOT_FOUND, subject=str(change.place))
        place = change.place
        if change.what is Removing.KEY:
            del self._holder(place).inside[place.name]
            place = place.parent
        else:
            node.attributes = structs.replace(node.attributes, implied=True)
        while place.parts and self._existing(place).attributes.implied and not self._existing(place).inside:
            del self._holder(place).inside[place.name]
            place = place.parent
        return Done()

    # --- locks ------------------------------------------------------------------------------------------------------

    def _covering(self, place: LogicalName) -> tuple[Lock, ...]:
        there, _, rest = self._find(place)
        own = tuple(there.locks.values()) if there else ()
        above = [self._find(LogicalName(place.start, place.parts[:n]))[0] for n in range(len(place.parts) - len(rest))]
        return (*own, *(lock for node in above if node for lock in node.locks.values() if lock.deep))

    def _check_locks(self, call: Call, change: Change, tokens: tuple[str, ...]) -> None:
        if isinstance(change, Set) and not (change.user or change.policy or change.setting != Setting()):
            return
        for place in (change.source, change.target) if isinstance(change, Move) else (change.place,):
            covering = self._covering(place)
            there, at, rest = self._find(place)
            if there is not None:
                check_held(covering, tokens, call.dn)
            if isinstance(change, Make | Remove | Move) or there is None:
                collection = at if there is None else self._holder(place)
                own = {} if there is None and len(rest) > 1 else collection.locks
                deep = [lock for lock in covering if lock.deep and (not there or lock.root != place)]
                check_held([*own.values(), *deep], tokens, call.dn)

    def _lock(self, call: Call, change: Set, node: Node, lock: Lock) -> None:
        known = node.locks.get(lock.token)
        if known and known.owner != call.dn and (lock.lasts_ms or node.attributes.owner != call.dn):
            raise CheloniaError(Kind.DENIED)
        writes = node.type == TYPE_FILE and _may(call, Action.MODIFY_METADATA, node, change.place)
        if known and call.scopes and not writes:
            _require(call, Action.DELETE, node, change.place)
        if not lock.lasts_ms:
            if known is None:
                raise CheloniaError(Kind.PRECONDITION)
            del node.locks[lock.token]
            return
        check_new(lock)
        check_beside(lock, self._covering(change.place))
        if known is None and not writes:
            _require(call, Action.DELETE, node, change.place)
        if known is None and len(node.locks) >= bounds.LOCKS_PER_ENTRY_MAX:
            raise CheloniaError(Kind.TOO_LARGE)
        node.locks[lock.token] = replace(lock, owner=call.dn, root=change.place)

    # --- names ------------------------------------------------------------------------------------------------------

    def _find(self, place: LogicalName) -> tuple[Node | None, Node, tuple[str, ...]]:
        """The entry, or None; the last entry on the way; what is left of the name."""
        if place.start not in self.nodes:
            return None, self.nodes[ROOT], ("",)
        at = self.nodes[place.start]
        for n, part in enumerate(place.parts):
            if part not in at.inside:
                return None, at, place.parts[n:]
            at = self.nodes[at.inside[part]]
        return at, at, ()

    def _existing(self, place: LogicalName) -> Node:
        there, at, _ = self._find(place)
        if there is None:
            raise CheloniaError(
                Kind.IN_MOUNTPOINT if at.type == TYPE_MOUNTPOINT else Kind.NOT_FOUND, subject=str(place)
            )
        return there

    def _holder(self, place: LogicalName) -> Node:
        return self._existing(place.parent)

    def _ready(self, call: Call, place: LogicalName, *, parents: bool) -> tuple[Node | None, Node]:
        """What has the name, and the collection; with `parents` the missing ones are made."""
        there, parent, rest = self._find(place)
        if there is not None:
            return there, self._holder(place)
        while parents and len(rest) > 1:
            _require(call, Action.ADD_ENTRY, parent, place)
            made = self._new(call, TYPE_COLLECTION, Setting())
            made.attributes = structs.replace(made.attributes, implied=True, owner=parent.attributes.owner)
            made.policy = dict(parent.policy)
            parent.inside[check_name(rest[0])] = made.attributes.guid
            parent, rest = made, rest[1:]
        _parent(place, parent, rest)
        _require(call, Action.ADD_ENTRY, parent, place)
        return None, parent

    def _below(self, node: Node) -> set[Guid]:
        found = {node.attributes.guid}
        for child in node.inside.values():
            found |= self._below(self.nodes[child])
        return found

    def _new(self, call: Call, kind: str, setting: Setting) -> Node:
        guid = Guid(f"00000000-0000-4000-8000-{next(self._numbers):012x}")
        node = Node(Attributes(guid, kind, 1, call.dn, created_ns=S, modified_ns=S, accessed_ns=S, changed_ns=S))
        self.nodes[guid] = node
        _settle(node, setting)
        return node

    def _described(self, node: Node) -> Attributes:
        guid = node.attributes.guid
        links = sum(list(other.inside.values()).count(guid) for other in self.nodes.values())
        etag = node.etag or node.attributes.etag or f"{guid}-{node.attributes.version}-{node.names_changed}"
        return structs.replace(node.attributes, links=max(1, links), etag=etag)

    def _bumped(self, node: Node) -> Attributes:
        node.attributes = structs.replace(node.attributes, version=node.attributes.version + 1)
        return self._described(node)


def _parent(place: LogicalName, parent: Node, rest: tuple[str, ...]) -> None:
    if parent.type == TYPE_MOUNTPOINT:
        raise CheloniaError(Kind.IN_MOUNTPOINT, subject=str(place))
    if not place.parts:
        raise CheloniaError(Kind.INVALID_TARGET, subject=str(place))
    if (blocked := parent.type != TYPE_COLLECTION) or len(rest) != 1:
        raise CheloniaError(Kind.NOT_A_COLLECTION if blocked else Kind.NO_PARENT, subject=str(place))


def _settle(node: Node, setting: Setting) -> None:
    setting_triples(setting)  # the same bounds
    values = {name: getattr(setting, name) for name in Setting.__struct_fields__}
    known: Mapping[str, int] = {name: value for name, value in values.items() if value is not None}
    node.attributes = structs.replace(node.attributes, **known)


def _may(call: Call, action: Action, node: Node, place: LogicalName) -> bool:
    within = not call.scopes or any(scope.covers(action, place) for scope in call.scopes)
    decision = decide(action, call.dn, call.attributes, owner=node.attributes.owner, policy=node.policy)
    return within and (call.has(Role.ADMINISTRATOR) or decision.allowed)


def _inside(place: LogicalName, path: str) -> LogicalName:
    return LogicalName(place.start, (*place.parts, *path.removesuffix("/").split("/")))


def _require(call: Call, action: Action, node: Node, place: LogicalName) -> None:
    if not _may(call, action, node, place):
        raise CheloniaError(Kind.DENIED, subject=str(place), cause=f"{call.dn} lacks {action.value}")


def _tried(act, call, ask):  # type: ignore[no-untyped-def]
    try:
        for place in (ask.source, ask.target) if isinstance(ask, Move) else (ask.place,):
            check_within(call, "", place)
        return act(call, ask)
    except CheloniaError as error:
        return Failure(error.kind, error.subject, error.cause)
