"""The permitted losses of a rebuild: its result is checked against the lost metadata, the snapshots and its report.

It may lose names, policies and notes since the snapshot it used, and data that only Shepherds in its report hold. It
may lose no bytes. A file's bytes stay that file's, or lie in `/lost+found`, unless newer bytes of the same file are
there. Files deleted in the snapshot, or older than it and not in it, get no name of their own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.ids import (
    ROOT,
    SNAPSHOTS_OBJECT,
    BlobId,
    Dn,
    ObjectId,
    ReferenceId,
    ServiceId,
    blob_object,
)
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_PENDING, TYPE_TRASHED, StoredObject
from chelonia.core.ports.librarian import RebuildStatus
from chelonia.core.timing.clock import stamp
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import blob_of, facts_of, locations_of
from chelonia.librarian.namespace.tree import blobs_of, key_for, names_of, type_of
from chelonia.librarian.recovery.mends import LOST_FOUND
from chelonia.librarian.recovery.rebuild.naming import staged_version
from chelonia.wire.s3 import keys, versions
from chelonia.wire.snapshots import decode_manifest, decode_page, parse_snapshot_name
from tests.sim.disk import facts_now, run_now
from tests.sim.model import NOTHING, File, Story, Tree, Violation
from tests.sim.parted import PartsJudging, blobs_in
from tests.sim.users import NAMES, Contents, dn_of
from tests.sim.watch import references_on
from tests.sim.world import ADMIN_DN, SimShepherd, World
from tests.support.namespace_snapshot import NamespaceSnapshot

KEPT = ("entry", "policy", "defaultPolicy", "metadata", "mountpoint")
"""Sections of an entry that come back as in the snapshot."""
_USED = re.compile(r"the snapshot used was begun at (\S+ \S+Z): ")
_PAGE_LOST = "a page of the snapshot is lost"
_MISSED = (" is away: ", " stopped answering ", " does not come to the end ", " was withdrawn ")

Places = tuple[tuple[ServiceId, ReferenceId], ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot as the disks had it. `blobs`: its manifest and segments."""

    number: int
    begun_ms: int
    objects: Mapping[ObjectId, StoredObject]
    blobs: tuple[BlobId, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """The state when all metadata were lost: the metadata, the places of good bytes of each blob, and the snapshots by
    their beginnings. `written`: the records beside all replicas, as older bytes go meanwhile."""

    then: NamespaceSnapshot
    places: Mapping[BlobId, Places]
    taken: Mapping[int, Taken]
    written: tuple[ReplicaFacts, ...]

    def reach(self, away: SimShepherd | None) -> Callable[[BlobId], bool]:
        """Whether good bytes of a blob were on any Shepherd but this one."""
        name = away.service_id if away is not None else ""
        return lambda blob: any(service != name for service, _ in self.places.get(blob, ()))


def loss(world: World, then: NamespaceSnapshot, record_key: str) -> Loss:
    """Read every disk."""
    places: dict[BlobId, Places] = {}
    bodies: dict[BlobId, bytes] = {}
    manifests: dict[BlobId, int] = {}
    for shepherd in world.shepherds:
        for reference in shepherd.disk.platter.references():
            facts, data = facts_now(shepherd.disk.platter, reference), shepherd.disk.platter.data(reference)
            if facts is None or hashlib.sha256(data).hexdigest() != facts.checksums.sha256:
                continue
            places[facts.blob] = (*places.get(facts.blob, ()), (shepherd.service_id, reference))
            if ObjectId(facts.guid) == SNAPSHOTS_OBJECT:
                bodies[facts.blob] = data
                name = parse_snapshot_name(facts.name)
                if name is not None and name[0] == "manifest":
                    manifests[facts.blob] = name[1]
    taken = [_read(blob, number, bodies, record_key) for blob, number in manifests.items()]
    return Loss(then, places, {each.begun_ms: each for each in taken if each is not None}, tuple(facts_held(world)))


def _read(blob: BlobId, number: int, bodies: Mapping[BlobId, bytes], record_key: str) -> Taken | None:
    manifest = decode_manifest(bodies[blob], record_key)
    if not all(segment in bodies for segment in manifest.segments):
        return None
    pages = (
        decode_page(bodies[manifest.segments[p.segment]][p.offset : p.offset + p.length], p.digest)
        for p in manifest.pages
    )
    objects = dict[ObjectId, StoredObject]()
    for obj in (obj for page in pages for obj in page):  # a content comes in parts
        before = objects[obj.id].sections if obj.id in objects else {}
        objects[obj.id] = replace(obj, sections={**before, **obj.sections})
    return Taken(number, manifest.begun_ms, objects, (blob, *manifest.segments))


class Judging:
    """One rebuild, checked against its loss. `without`: the Shepherds that an administrator did without."""

    def __init__(
        self,
        world: World,
        was: Loss,
        now: NamespaceSnapshot,
        status: RebuildStatus,
        without: Collection[ServiceId],
        record_key: str,
    ) -> None:
        self._world, self._was, self._now, self._notes = world, was, now, status.notes
        begun = [found[1] for found in map(_USED.match, status.notes) if found is not None]
        late = loss(world, was.then, record_key).taken if begun else {}  # its last bytes may have come since
        used = {stamp(each.begun_ms): each for each in (late | was.taken).values()}
        self._used = used.get(begun[-1]) if begun else None
        self._unknown = bool(begun) and self._used is None
        self._whole = not any(note.startswith(_PAGE_LOST) for note in status.notes)
        named = {ServiceId(note.partition(" ")[0]) for note in status.notes if any(word in note for word in _MISSED)}
        self._missed = named | {*without}

    @property
    def names_known(self) -> bool:
        """Whether names and policies came from a snapshot that was read whole."""
        return self._used is not None and self._whole

    def findings(self) -> Iterator[str]:
        """Report everything forbidden that is lost or back."""
        yield from self._choice()
        yield from self._bytes()
        yield from self._told()
        if self._used is not None and self._whole:
            yield from self._as_in(self._used)
            yield from self._since(self._used)
            yield from self._sheltered(self._used)
            yield from self._parts(self._used)

    def _within_reach(self, blob: BlobId) -> tuple[SimShepherd, ...]:
        """The Shepherds that the report does not name, with good bytes of this blob then and now."""
        world = self._world
        homes = []
        for service, reference in self._was.places.get(blob, ()):
            home = world.find(service)
            lost = service in self._missed or (service, reference) in world.taken or service in world.liars
            if not lost and reference in references_on(home):
                homes.append(home)
        return tuple(homes)

    def _choice(self) -> Iterator[str]:
        """Check that the newest readable snapshot is used, and all of it."""
        if self._unknown:
            yield "a snapshot was used that lay on no disk"
        registered = self._was.then.section(SNAPSHOTS_OBJECT, "snapshot")
        newest = self._used.number if self._used is not None else 0
        for number, uses in registered.items():
            blobs = [BlobId(blob) for blob in uses.split(" ")]
            better = int(number) > newest or (int(number) == newest and not self._whole)
            if better and all(self._within_reach(blob) for blob in blobs):
                homes = [sorted(home.node.name for home in self._within_reach(blob)) for blob in blobs]
                yield f"the snapshot {number} was within reach on {homes}, and not used: {self._about('snapshot')}"

    def _bytes(self) -> Iterator[str]:
        """Check that every reachable blob of a file of then is listed under some name, or gave way to newer bytes."""
        for file in self._was.then.entries():
            for blob in blobs_of(file) if type_of(file) == TYPE_FILE else ():
                homes = [home.node.name for home in self._within_reach(blob)]
                known = self._now.get(blob_object(blob))
                if homes and known.exists and not locations_of(known):
                    yield f"{known.id} is on {homes}, and listed nowhere"
                elif homes and not known.exists and self._newest(file.id) < self._created(blob):
                    yield f"{blob} of {file.id} is on {homes}, and no name leads to it: {self._about(blob)}"

    def _newest(self, file: ObjectId) -> int:
        blobs = (self._now.get(blob_object(blob)) for blob in blobs_of(self._now.get(file)))
        return max((facts_of(blob).created_ms for blob in blobs if blob.exists), default=-1)

    def _created(self, blob: BlobId) -> int:
        return facts_of(self._was.then.get(blob_object(blob))).created_ms

    def _told(self) -> Iterator[str]:
        for blob in self._now.blobs():
            if not locations_of(blob) and not any(blob.id in note for note in self._notes):
                yield f"{blob.id} has come back without bytes, and the report does not say so"

    def _as_in(self, used: Taken) -> Iterator[str]:
        """Check that entries are as in the snapshot, under the names they had."""
        claimed = [(parent, name) for obj in used.objects.values() for parent, name in _names(obj)]
        for obj in used.objects.values():
            now = self._now.get(obj.id)
            if type_of(obj) == TYPE_TRASHED:
                if type_of(now) not in ("", TYPE_TRASHED):
                    yield f"{obj.id} was deleted, and is a {type_of(now)} now"
            elif type_of(obj) and _kept(now) != _kept(obj):
                yield f"{obj.id} is {_kept(now)} after the rebuild, and was {_kept(obj)} in the snapshot"
            for parent, name in _names(obj):
                now_there = self._leads(ObjectId(parent), name, obj)
                if claimed.count((parent, name)) == 1 and now_there != obj.id and not self._is_version(now_there, used):
                    yield f"{name!r} in {parent} was {obj.id} in the snapshot, and is not"
            if type_of(obj) == TYPE_FILE and type_of(now) == TYPE_FILE and self._newest(obj.id) < _dated(obj, used):
                yield f"{obj.id} has older bytes than it had in the snapshot"

    def _is_version(self, guid: str, used: Taken) -> bool:
        """Whether this is a version of an object that the snapshot does not have: it takes the name of its object."""
        names = [self._now.value(blob_object(blob), "blob", "name") for blob in blobs_of(self._now.get(ObjectId(guid)))]
        return guid not in used.objects and any(staged_version(name) for name in names)

    def _leads(self, parent: ObjectId, name: str, obj: StoredObject) -> str:
        return self._now.value(parent, "entries", key_for(name, type_of(obj)))

    def _since(self, used: Taken) -> Iterator[str]:
        """Check that files outside the snapshot are newer, with the path and owner that they were sealed with."""
        for entry in self._now.entries():
            kind = type_of(entry)
            if entry.id in used.objects or kind == TYPE_PENDING or self._in_lost_found(entry):
                continue
            if kind != TYPE_FILE:
                if not self._made_for(entry):
                    yield f"{entry.id}, a {kind}, has come to be by the rebuild"
                continue
            [blob] = [self._now.get(blob_object(blob)) for blob in blobs_of(entry)]
            facts, [(parent, _)] = facts_of(blob), names_of(entry)
            default = self._now.section(ObjectId(parent), "defaultPolicy")
            if facts.created_ms < used.begun_ms:
                yield f"{entry.id} is back as {facts.name}, and was deleted before the snapshot, or never there"
            path, owner = self._path(entry), entry.value("entry", "owner")
            known = *self._was.written, *facts_held(self._world)
            written = {(f.name, f.owner) for f in known if f.guid == entry.id}
            known_so = any(by == owner and _may_be(path, name) for name, by in written)
            if not known_so and blob_of(blob) not in self._world.harmed:
                yield f"{entry.id}, written as {written}, is {path} of {owner}"
            if entry.sections.get("policy", {}) != default and staged_version(facts.name) is None:
                yield f"{entry.id} has the policy {entry.sections.get('policy')}, its collection's is {default}"

    def _made_for(self, entry: StoredObject) -> bool:
        """Whether it is a collection outside the snapshot, for administrators alone, made for the files in it. The
        report names it, or that of an earlier run whose process died. Versions in it may have gone to their keys."""
        is_theirs = entry.value("entry", "owner") == ADMIN_DN and not entry.sections.get("policy")
        has_use = self._now.section(entry.id, "entries") or versions.COLLECTION in self._path(entry).split("/")
        return type_of(entry) == TYPE_COLLECTION and is_theirs and bool(has_use)

    def _sheltered(self, used: Taken) -> Iterator[str]:
        """Check that `/lost+found` has only files outside the snapshot, or replaced by newer bytes; for
        administrators."""
        known = NamespaceSnapshot(used.objects.values())
        for entry in self._now.entries():
            if not self._in_lost_found(entry) or entry.id in used.objects:
                continue
            if entry.value("entry", "owner") != ADMIN_DN or entry.sections.get("policy"):
                yield f"{entry.id} in /lost+found is {entry.sections.get('entry')}, {entry.sections.get('policy')}"
            for blob in blobs_in(self._now, entry) or blobs_of(entry):
                file = ObjectId(used.objects.get(blob_object(blob), _NOTHING).value("blob", "file"))
                replaced = self._newest(file) > facts_of(used.objects.get(blob_object(blob), _NOTHING)).created_ms
                was = known.get(file)
                has_it = blob in (blobs_in(known, was) or blobs_of(was))
                if type_of(was) == TYPE_FILE and has_it and not replaced:
                    yield f"{blob} is in /lost+found, and the snapshot knows it as the bytes of {file}"

    def _parts(self, used: Taken) -> Iterator[str]:
        def knew(obj: ObjectId) -> StoredObject:
            return used.objects.get(obj, _NOTHING)

        was, harmed = self._was, self._world.harmed
        judging = PartsJudging(
            was.then, self._now, knew, lambda blob: bool(self._within_reach(blob)), was.written, harmed
        )
        yield from (*judging.findings(), *judging.gone(used.begun_ms))

    def _in_lost_found(self, entry: StoredObject) -> bool:
        return entry.id == LOST_FOUND or any(parent == LOST_FOUND for parent, _ in names_of(entry))

    def _path(self, entry: StoredObject) -> str:
        if entry.id == ROOT:
            return ""
        [(parent, name)] = names_of(entry)
        return f"{self._path(self._now.get(ObjectId(parent)))}/{name}"

    def _about(self, word: str) -> list[str]:
        return [note for note in self._notes if word in note]


def facts_held(world: World) -> Iterator[ReplicaFacts]:
    """The records beside all replicas."""
    for shepherd in world.shepherds:
        every = (*shepherd.disk.held(), *run_now(shepherd.disk.platter.quarantined()))
        yield from (stored.facts for stored in every if stored.facts is not None)


def _may_be(path: str, name: str) -> bool:
    """Whether a file written under this name may stand there: a version has its key, or another place of that."""
    staged, now = staged_version(name), staged_version(path.removesuffix("-"))
    if staged is None or path == name:
        return path == name
    places = keys.home_of(staged.bucket, staged.key), keys.apart_of(staged.bucket, staged.key)
    return path in map(str, places) or (now is not None and now[:2] == staged[:2])


def _names(obj: StoredObject) -> list[tuple[str, str]]:
    return [(str(parent), name) for parent, name in names_of(obj)] if type_of(obj) != TYPE_TRASHED else []


def _kept(obj: StoredObject) -> Mapping[str, Mapping[str, str]]:
    return {name: dict(obj.sections[name]) for name in KEPT if obj.sections.get(name)}


def _dated(file: StoredObject, used: Taken) -> int:
    blobs = [used.objects[blob_object(blob)] for blob in blobs_of(file) if blob_object(blob) in used.objects]
    return max((facts_of(blob).created_ms for blob in blobs), default=-1)


_NOTHING = StoredObject(ObjectId("-"), 0)


# --- what users find afterwards -------------------------------------------------------------------------------------


def story_of(seen: NamespaceSnapshot, path: str, contents: Contents, users: int) -> Story:
    """The story of a collection's users after all metadata were rebuilt: its present state. Raises: Violation."""
    collection = ObjectId(seen.value(ObjectId(ROOT), "entries", key_for(path.removeprefix("/"), TYPE_COLLECTION)))
    if not collection:
        raise Violation(f"{path} is gone")
    ids = [seen.value(collection, "entries", name) for name in NAMES]
    numbers = {guid: 1_000_000 + number for number, guid in enumerate(dict.fromkeys(filter(None, ids)))}
    files = [(number, _file(seen, ObjectId(guid), contents, users)) for guid, number in numbers.items()]
    return Story.since(Tree(tuple(numbers.get(guid, NOTHING) for guid in ids), tuple(files)))


def _file(seen: NamespaceSnapshot, guid: ObjectId, contents: Contents, users: int) -> File:
    entry = seen.get(guid)
    [blob] = blobs_of(entry)
    facts = facts_of(seen.get(blob_object(blob)))
    owner = [number for number in range(users) if dn_of(number) == entry.value("entry", "owner")]
    policy = entry.sections.get("policy", {})
    barred = tuple(number for number in range(users) if "-delete" in policy.get(Dn(dn_of(number)), ""))
    note, wanted = entry.value("metadata", "note"), int(entry.value("states", "neededReplicas"))
    return File(contents.number_with(facts.checksums.sha256), owner[0], wanted, note, barred)
