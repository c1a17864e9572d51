"""The invariants of a simulated cluster, checked with a view of every disk and every commit.

`Watch` receives each commit of the A-Hash and each erasure on a disk, and checks the whole now and then. Nothing is
trimmed while short, no listed copy is erased, no file is lost while a good copy lived. `left` returns what is not whole
yet. `librarian.invariants` checks the metadata by themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from chelonia.ahash.store import layout, meta
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.ids import (
    BLOB_PREFIX,
    ROOT,
    SHEPHERD_PREFIX,
    SNAPSHOTS_OBJECT,
    BlobId,
    ObjectId,
    ReferenceId,
    ServiceId,
    blob_object,
    shepherd_object,
)
from chelonia.core.metadata import StoredObject
from chelonia.librarian.metadata.blobs import blob_of, facts_of, locations_of
from chelonia.librarian.metadata.elements import outbox_reference
from chelonia.librarian.namespace.tree import names_of
from chelonia.librarian.repair.plan.decide import SURPLUS
from tests.sim.disk import SimStore, facts_now
from tests.sim.dump import Dump
from tests.sim.model import Violation
from tests.sim.world import LIBRARIAN_SETTINGS, SimShepherd, World
from tests.support import namespace_snapshot
from tests.support.namespace_snapshot import NamespaceSnapshot

STALE_MS = 50_000
"""Time that a Librarian may act on an old belief: leases of node and leader, and calls repeated and late."""
ASKED_WITHIN_MS = 4 * LIBRARIAN_SETTINGS.lease_ms
"""Time until the cluster checks a copy that its Shepherd had lost before it was listed: requests may be lost."""
TIDYING = ("surplus", "invalid", "stalled")
"""Reasons of removals that only a whole blob allows."""
_HEADER = b"H\0" + BLOB_PREFIX.encode()
_WIDE = b"W\0" + SHEPHERD_PREFIX.encode()
_S = ReplicaState
Located = tuple[tuple[Location, ReplicaState], ...]


class Watch:
    """The checks of one run. `check` raises each finding as a Violation, because they come in the middle of a commit,
    where nothing may fail."""

    def __init__(self, world: World, *, steady_clocks: bool = False) -> None:
        self._world = world
        self.steady_clocks = steady_clocks
        self._dump = Dump()
        self._located: dict[ObjectId, tuple[StoredObject, Located]] = {}
        self._found: list[str] = []
        self._lost_before: dict[Location, int] = {}
        self._ordered_away: set[ReferenceId] = set()
        self._gone_before: set[BlobId] = set()
        self._of_snapshots: dict[BlobId, int] = {}
        self._known_then: set[BlobId] | None = None
        self._kept: dict[tuple[ServiceId, ReferenceId], BlobId] = {}
        self._ordered_then: set[Location] = set()
        self._rebuilding = False
        self._uploading = True
        world.store.watch = self._committing
        world.on_erased = self._erasing

    @contextmanager
    def not_looking(self) -> Iterator[None]:
        """While held, a namespace comes back piece by piece: no commit counts as a decision, and no erasure may be
        ordered."""
        self._rebuilding = True
        try:
            yield
        finally:
            self._rebuilding = False

    @contextmanager
    def nobody_uploading(self) -> Iterator[None]:
        """While held, new blobs come from no acknowledged upload: a Shepherd reports the only copy of one."""
        self._uploading = False
        try:
            yield
        finally:
            self._uploading = True

    # --- now and then -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises: Violation for the first finding since the last call, or of this one."""
        if self._world.bugs:
            raise Violation(f"a service broke: {self._world.bugs[0]}")
        seen = self._seen()
        for finding in namespace_snapshot.broken(seen):
            self._found.append(str(finding))
        self._count_copies(seen)
        for blob in self._without_copy(seen):
            if not self._may_be_lost(blob):
                self._found.append(f"{blob.id} is lost: {blob.sections.get('locations')}, {self._harmed(blob)} harmed")
        self._found += self._listed_without_bytes(seen)
        self._found += self._told_otherwise(seen)
        self._found += self._erased_though_newer()
        if self._found:
            raise Violation("; ".join(self._found[:4]))

    def _count_copies(self, seen: NamespaceSnapshot) -> None:
        """Note the copies of snapshots: there is one when only one Shepherd has room."""
        for blob in seen.blobs():
            if blob.value("blob", "file") == SNAPSHOTS_OBJECT:
                copies = sum(state is _S.ALIVE for _, state in self._locations(blob))
                self._of_snapshots[blob_of(blob)] = max(self._of_snapshots.get(blob_of(blob), 1), copies)

    def restored(self, before: NamespaceSnapshot) -> None:
        """Note that older metadata were put back. Blobs that they name and no disk has any more are excused. Blobs that
        only the metadata `before` had must not be erased, but by an order of theirs whose Shepherd cannot know
        better."""
        self._gone_before = {blob_of(blob) for blob in self._without_copy(self._seen(), unproven=False)}
        self._came_back(before)

    def rebuilt(self, before: NamespaceSnapshot) -> None:
        """Note that the namespace was rebuilt. Blobs that it names and `before` no longer did may be gone; bytes that
        only `before` had must not be erased."""
        self.loses(before)
        self.names_more()
        self._came_back(before)

    def names_more(self) -> None:
        """Note that a rebuild has ended. Blobs that it names, and the lost metadata no longer did, may be gone."""
        assert self._known_then is not None, "a rebuild follows a loss"
        self._gone_before |= {blob_of(blob) for blob in self._without_copy(self._seen())} - self._known_then

    def loses(self, last: NamespaceSnapshot) -> None:
        """Note that all metadata are lost, of which these are the `last`. No answer promised what only a rebuild
        finds."""
        self._known_then = {blob_of(blob) for blob in last.blobs()}

    def _came_back(self, before: NamespaceSnapshot) -> None:
        known = {blob_of(blob) for blob in self._seen().blobs()}
        newer = {blob_of(blob) for blob in before.blobs()} - known
        self._kept = {
            (shepherd.service_id, stored.reference): stored.facts.blob
            for shepherd in self._world.shepherds
            for stored in shepherd.disk.held()
            if stored.committed and stored.facts is not None and stored.facts.blob in newer
        }
        self._ordered_then = {
            Location(ServiceId(shepherd.id.removeprefix(SHEPHERD_PREFIX)), outbox_reference(key))
            for shepherd in before.shepherds()
            for key in shepherd.sections.get("erase", {})
        }

    def in_snapshot(self) -> bool:
        """Whether there is a snapshot of the namespace."""
        return bool(self._seen().section(SNAPSHOTS_OBJECT, "snapshot"))

    def known(self) -> NamespaceSnapshot:
        return self._seen()

    def _erased_though_newer(self) -> Iterator[str]:
        for shepherd in self._world.shepherds:
            kept = {reference for service, reference in self._kept if service == shepherd.service_id}
            gone = kept - references_on(shepherd) if kept else ()
            for reference in sorted(gone):
                if (shepherd.service_id, reference) not in self._world.taken:
                    yield f"{shepherd.node.name} has erased {reference}, which only newer metadata knew"

    def _seen(self) -> NamespaceSnapshot:
        self._look()
        with self._world.store.watched():
            return self._dump.snapshot(self._world.store)

    def _look(self) -> None:
        """Check a group first: an answer, and acts on it, may come before its basis has been seen."""
        if self._world.group is not None:
            self._world.group.look_all()

    def _locations(self, blob: StoredObject) -> Located:
        """As `locations_of`, cached for a blob that has not changed."""
        known = self._located.get(blob.id)
        if known is None or known[0] is not blob:
            known = self._located[blob.id] = blob, locations_of(blob)
        return known[1]

    def lost(self) -> set[BlobId]:
        """Blobs of which disasters have taken every copy."""
        return {blob_of(blob) for blob in self._without_copy(self._seen()) if self._may_be_lost(blob)}

    def left(self) -> str:
        """The parts that are not whole yet, "" for none."""
        seen, lost = self._seen(), self.lost()
        findings = [
            f for f in namespace_snapshot.unsettled(seen) if f.object not in {blob_object(blob) for blob in lost}
        ]
        if findings:
            return "; ".join(map(str, findings[:4]))
        told = [f"{blob} is lost, and not told so" for blob in sorted(lost) if _hoped_for(seen.get(blob_object(blob)))]
        disks = filter(None, (self._disk_left(shepherd, seen, lost) for shepherd in self._world.shepherds))
        return "; ".join([*told, *disks][:4])

    def _listed_without_bytes(self, seen: NamespaceSnapshot) -> Iterator[str]:
        """Copies that the metadata count as alive, that no disaster took, and that are not there. A report under way
        while its copy is erased by order lists it again for a moment: the next one takes that back."""
        held = {shepherd.service_id: references_on(shepherd) for shepherd in self._world.shepherds}
        for blob in seen.blobs():
            for place, state in self._locations(blob):
                taken = (place.shepherd, place.reference) in self._world.taken or place.reference in self._ordered_away
                excused = place.shepherd in self._world.liars or taken or place.shepherd not in held
                if state in (_S.ALIVE, _S.THIRDWHEEL) and not excused and place.reference not in held[place.shepherd]:
                    yield f"{place} of {blob.id} is {state.value}, and its disk has nothing of it"

    def _told_otherwise(self, seen: NamespaceSnapshot) -> Iterator[str]:
        """Copies that the metadata count as alive, but their Shepherd has reported as gone or damaged. Its open
        reports, and an unfinished comparison of its disk, count as not reported."""
        generation, liars = _generation(self._world.store), self._world.liars
        heard = {
            s.service_id: s for s in self._world.shepherds if s.compared == generation and s.service_id not in liars
        }
        for blob in seen.blobs():
            for place, state in self._locations(blob):
                vouched = state in (_S.ALIVE, _S.THIRDWHEEL) and place.shepherd in heard
                told = heard[place.shepherd].told(place.reference) if vouched else None
                if told not in (None, _S.ALIVE) and not self._unasked(place, heard[place.shepherd]):
                    yield f"{place} of {blob.id} is {state.value}, though its Shepherd has told that it is {told.value}"

    def _unasked(self, place: Location, shepherd: SimShepherd) -> bool:
        """Whether its Shepherd had lost a copy, or set it aside, before a receipt of it was committed, and cannot know
        that yet."""
        lost_ms, now_ms = self._lost_before.get(place, -ASKED_WITHIN_MS), self._world.clock.monotonic_ms()
        return place.reference not in shepherd.relied_on and now_ms - lost_ms < ASKED_WITHIN_MS

    def _without_copy(self, seen: NamespaceSnapshot, *, unproven: bool = True) -> Iterator[StoredObject]:
        good = {blob for shepherd in self._world.shepherds for blob in _good(shepherd, unproven=unproven)}
        return (blob for blob in seen.blobs() if blob_of(blob) not in good)

    def _harmed(self, blob: StoredObject) -> int:
        return len(self._world.harmed.get(blob_of(blob), ()))

    def _may_be_lost(self, blob: StoredObject) -> bool:
        """Whether disasters hit at least as many copies of it as there certainly were, or liars threw them away."""
        taken = self._world.harmed.get(blob_of(blob), set())
        thrown = {shepherd.service_id for shepherd in self._world.shepherds if blob_of(blob) in shepherd.disk.thrown}
        certain = min(2, facts_of(blob).wanted, self._of_snapshots.get(blob_of(blob), 2))
        certain = min(1, certain) if self._is_found(blob) else certain
        return blob_of(blob) in self._gone_before or len(taken | thrown) >= certain

    def _is_found(self, blob: StoredObject) -> bool:
        """Whether a rebuild has found it though its owner had let it go. It is of an abandoned upload that was not
        swept yet, or of an old snapshot that an old disk has brought back."""
        is_let_go = blob.value("blob", "file") in (blob_of(blob), SNAPSHOTS_OBJECT)
        return is_let_go and self._known_then is not None and blob_of(blob) not in self._known_then

    def _disk_left(self, shepherd: SimShepherd, seen: NamespaceSnapshot, lost: set[BlobId]) -> str:
        """The surplus and missing replicas of a disk, against its locations; quarantine is left to administrators."""
        platter = shepherd.disk.platter
        wanted = {
            location.reference: facts_of(blob).checksums.sha256
            for blob in seen.blobs()
            for location, _ in self._locations(blob)
            if location.shepherd == shepherd.service_id and blob_of(blob) not in lost
        }
        held = {
            reference: sha256(platter.data(reference))
            for reference in platter.references()
            if reference in wanted or not _of(platter, reference, lost)
        }
        odd = [reference for reference in sorted({*wanted, *held}) if wanted.get(reference) != held.get(reference)]
        aside = [stored.reference for stored in platter.aside() if not stored.committed]
        kept = platter.kept_uploads()
        if not (odd or aside or kept):
            return ""
        return f"{shepherd.node.name}: {odd} differ, {aside} set aside though nobody's, {kept} left over"

    # --- every commit -----------------------------------------------------------------------------------------------

    def _committing(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        del deletes
        if self._rebuilding:
            self._found += [f"{place} is to be erased ({why}) amid a rebuild" for place, why in _ordered(puts).items()]
            return
        for key, value in puts.items():
            if key.startswith(_HEADER):
                before = self._world.store.get(key)
                if before is None:
                    self._born(_blob(key, value))
                else:
                    self._changing(_blob(key, before), _blob(key, value), puts)

    def _born(self, blob: StoredObject) -> None:
        """Check a new file: two copies are durable, or as many as wanted, before any answer names it. A snapshot may
        have one."""
        homes = {place.shepherd for place, _ in locations_of(blob)}
        held = {s.service_id: s.disk.platter.references() for s in self._world.shepherds if s.service_id in homes}
        for place, _ in locations_of(blob):
            there = place.reference in held.get(place.shepherd, ())
            if not there or self._bytes_of(place) != facts_of(blob).checksums.sha256:
                self._lost_before[place] = self._world.clock.monotonic_ms()
        least = 1 if facts_of(blob).guid == SNAPSHOTS_OBJECT else min(2, facts_of(blob).wanted)
        if len(homes) < least and self._uploading:
            self._found.append(f"{blob.id} is acknowledged with {len(homes)} copies, wanted {facts_of(blob).wanted}")

    def _changing(self, before: StoredObject, after: StoredObject, puts: Mapping[bytes, bytes]) -> None:
        old, new = dict(locations_of(before)), dict(locations_of(after))
        gone = [location for location in old if location not in new]
        reasons = _ordered(puts) if gone else {}
        for location in gone:
            reason = reasons.get(location, "")
            if reason in TIDYING:
                self._removed(location, reason, after, new)
        for location, state in new.items():
            if state is _S.CREATING and location not in old:
                self._claimed(location, after, old)

    def _removed(
        self, location: Location, reason: str, after: StoredObject, new: Mapping[Location, ReplicaState]
    ) -> None:
        wanted = max(facts_of(after).wanted, 1)
        homes = {place.shepherd for place, state in new.items() if state is _S.ALIVE}
        heard = {home for home in homes if self._heard_lately(home)}
        if len(homes) < wanted:
            self._found.append(f"{location} of {after.id} trimmed ({reason}) while short: {len(homes)} of {wanted}")
        elif len(heard) < wanted:
            self._found.append(
                f"{location} of {after.id} trimmed ({reason}) for copies on {sorted(homes - heard)}, long away"
            )
        if reason == SURPLUS:
            self._given_up(location, after, new)

    def _given_up(self, location: Location, after: StoredObject, new: Mapping[Location, ReplicaState]) -> None:
        """Check that a good copy goes only for others that are there: a report of them may lie. Disasters may have come
        since."""
        digest = facts_of(after).checksums.sha256
        there = {
            place.shepherd for place, state in new.items() if state is _S.ALIVE and self._bytes_of(place) == digest
        }
        least = max(facts_of(after).wanted, 1) - self._harmed(after)
        if digest and len(there) < least:
            homes = sorted({place.shepherd for place, state in new.items() if state is _S.ALIVE} - there)
            self._found.append(f"{location} of {after.id} trimmed (surplus) for copies on {homes} that are not there")

    def _bytes_of(self, place: Location) -> str:
        """The checksum of a copy's bytes on its disk, "" without any."""
        platter = self._world.find(place.shepherd).disk.platter
        if place.reference not in platter.references():
            return ""
        return sha256(platter.data(place.reference))

    def _claimed(self, location: Location, after: StoredObject, old: Mapping[Location, ReplicaState]) -> None:
        claims = after.sections.get("claims", {})
        twins = [
            place
            for place, state in old.items()
            if place.shepherd == location.shepherd
            and (state in (_S.ALIVE, _S.THIRDWHEEL) or self._both_run(claims, place, location, state))
        ]
        if twins:
            self._found.append(f"a second copy of {after.id} is made on {location.shepherd}")

    def _both_run(self, claims: Mapping[str, str], old: Location, new: Location, state: ReplicaState) -> bool:
        """Whether a claim is made beside one that has not expired. Only equal clocks can show it."""
        if not self.steady_clocks or state is not _S.CREATING:
            return False
        return (
            0
            <= int(claims.get(str(new), "0")) - int(claims.get(str(old), "0"))
            < self._world.librarian_settings.claim_ms
        )

    def sites(self, name: str) -> list[str]:
        """The sites of the live copies of a file on Shepherds that run."""
        [blob] = [blob for blob in self._seen().blobs() if facts_of(blob).name == name]
        homes = [self._world.find(place.shepherd) for place, state in locations_of(blob) if state is _S.ALIVE]
        return sorted(home.domain.split("/")[0] for home in homes if home.node.up)

    def homes(self, name: str) -> list[SimShepherd]:
        """The Shepherds with a live copy of a file."""
        [blob] = [blob for blob in self._seen().blobs() if facts_of(blob).name == name]
        return [self._world.find(place.shepherd) for place, state in locations_of(blob) if state is _S.ALIVE]

    def reserved(self, name: str) -> bool:
        """Whether an upload that is not complete holds a Logical Name of the form `/<collection>/<name>`."""
        _, collection, last = name.split("/")
        entries = self._seen().entries()
        parents = [entry.id for entry in entries if (ROOT, collection) in names_of(entry)]
        return any(entry.value("pending", last) for entry in entries if entry.id in parents)

    def state_of(self, shepherd: SimShepherd) -> str:
        """A Shepherd's state in the metadata: `alive`, `offline` or ""."""
        return self._node(shepherd, "state")

    def store_of(self, shepherd: SimShepherd) -> str:
        """The store on record for a Shepherd, which may lag behind its real one."""
        return self._node(shepherd, "store")

    def _node(self, shepherd: SimShepherd, prop: str) -> str:
        if self._world.group is not None:
            self._world.group.look_all()
        key = layout.header_key(shepherd_object(shepherd.service_id))
        with self._world.store.watched():
            header = self._world.store.get(key)
        return _blob(key, header).value("node", prop) if header is not None else ""

    def listed_on(self, shepherd: ServiceId) -> list[str]:
        """The copies that the metadata list on a Shepherd."""
        listed = (place for blob in self._seen().blobs() for place, _ in self._locations(blob))
        return [place.reference for place in listed if place.shepherd == shepherd]

    def keeps_only_lost(self, shepherd: ServiceId) -> bool:
        """Whether the metadata list copies on a Shepherd, and all of them are of lost files."""
        listed = {blob_of(blob) for blob in self._seen().blobs() if self._is_on(shepherd, blob)}
        return bool(listed) and listed <= self.lost()

    def _is_on(self, shepherd: ServiceId, blob: StoredObject) -> bool:
        return any(place.shepherd == shepherd for place, _ in self._locations(blob))

    def named(self) -> str:
        """The traces of forgotten Shepherds in the metadata."""
        for shepherd in self._world.lost:
            listed = self.listed_on(shepherd.service_id)
            if listed or self._seen().get(shepherd_object(shepherd.service_id)).exists:
                return f"{shepherd.node.name} is forgotten, and named by the metadata with {len(listed)} copies"
        return ""

    def _heard_lately(self, shepherd: ServiceId) -> bool:
        """Whether a Shepherd was heard of when the commit was written: a group without a master decides it later."""
        group = self._world.group
        written_ms = group.decided.written_ms if group is not None else self._world.clock.monotonic_ms()
        heard_ms = self._world.network.heard_ms.get(self._world.find(shepherd).node.name, 0)
        return written_ms - heard_ms <= STALE_MS

    # --- every erasure ----------------------------------------------------------------------------------------------

    def _erasing(self, shepherd: SimShepherd, reference: ReferenceId, heard: int) -> None:
        facts = facts_now(shepherd.disk.platter, reference)
        if facts is None or reference not in shepherd.disk.platter.references():
            return
        self._look()
        with self._world.store.watched():
            header = self._world.store.get(layout.header_key(blob_object(facts.blob)))
        self._ordered_away.add(reference)
        place = Location(shepherd.service_id, reference)
        unheard = heard < _generation(self._world.store)  # that older metadata were put back: it obeys
        if unheard and place in self._ordered_then:
            self._kept.pop((shepherd.service_id, reference), None)
        if header is None:
            return
        if unheard:
            self._gone_before.add(facts.blob)
            return
        state = _blob(b"H\0" + blob_object(facts.blob).encode(), header).value("locations", str(place))
        if state == _S.ALIVE.value and _is_good(shepherd, reference):
            self._found.append(f"{shepherd.node.name} erases {reference} of {facts.blob}, which is listed as alive")


@lru_cache(maxsize=10_000)
def sha256(data: bytes) -> str:
    """The checksum of these bytes, cached as most are checked over and over."""
    return hashlib.sha256(data).hexdigest()


def _generation(store: SimStore) -> int:
    with store.watched():
        return meta.read_number(store, layout.META_GENERATION)


def _hoped_for(blob: StoredObject) -> bool:
    """Whether the metadata still promise a copy."""
    return any(state in (_S.ALIVE, _S.CREATING, _S.THIRDWHEEL) for _, state in locations_of(blob))


def _good(shepherd: SimShepherd, *, unproven: bool = True) -> Iterator[BlobId]:
    """Blobs of which this disk has right bytes, known to the metadata or not. `unproven`: also those set aside without
    word of their commit. They come back with it, and otherwise expire."""
    platter = shepherd.disk.platter
    for reference in platter.references():
        if _is_good(shepherd, reference):
            facts = facts_now(platter, reference)
            assert facts is not None
            yield facts.blob
    for stored in platter.aside():
        facts = stored.facts if unproven or stored.committed else None
        if facts is not None and sha256(platter.data(stored.reference)) == facts.checksums.sha256:
            yield facts.blob


def references_on(shepherd: SimShepherd) -> set[ReferenceId]:
    """The replicas on its disk, set aside or not."""
    platter = shepherd.disk.platter
    return {*platter.references(), *(stored.reference for stored in platter.aside())}


def _is_good(shepherd: SimShepherd, reference: ReferenceId) -> bool:
    facts = facts_now(shepherd.disk.platter, reference)
    data = shepherd.disk.platter.data(reference)
    return facts is not None and sha256(data) == facts.checksums.sha256


def _of(platter: object, reference: ReferenceId, blobs: set[BlobId]) -> bool:
    facts = facts_now(platter, reference)
    return facts is None or facts.blob in blobs


def _blob(key: bytes, header: bytes) -> StoredObject:
    version, sections = layout.decode_header(header)
    return StoredObject(layout.header_id(key), version, sections)


def _ordered(puts: Mapping[bytes, bytes]) -> dict[Location, str]:
    """The erasures ordered in a commit, and why."""
    orders = {}
    for key, value in puts.items():
        if key.startswith(_WIDE) and b"\0erase\0" in key:
            shepherd = ServiceId(key.split(b"\0")[1].decode().removeprefix(SHEPHERD_PREFIX))
            location = Location(shepherd, outbox_reference(layout.wide_name(key)[1]))
            orders[location] = layout.decode_value(value).partition(" ")[2]
    return orders
