"""Simulated users who upload files in parts, and the state that a rebuild of all metadata must leave of these.

Some uploads are sealed, some stay open or are given up, and some files are deleted. A sealed file in the snapshot has
its name and its bytes afterwards; the bytes of any other are one file in `/lost+found`. Files deleted long before the
snapshot stay deleted, even if a disk still has them.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.contents.parts import PartPlace, UploadId
from chelonia.core.contents.uploads import parse_part_name
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import CONTENT_PREFIX, ROOT, BlobId, ObjectId, blob_object, content_object
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, StoredObject
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.bartender import MakeRequest
from chelonia.core.ports.files import (
    NOTHING_ARRIVED,
    Change,
    Done,
    Drop,
    Open,
    Part,
    Placed,
    Placing,
    Remove,
    Removing,
    Seal,
)
from chelonia.librarian.metadata.blobs import locations_of
from chelonia.librarian.metadata.contents import OPEN, content_of, parse_extent
from chelonia.librarian.namespace.parts.decide import parse_part
from chelonia.librarian.namespace.tree import blobs_of, key_for, names_of, type_of
from chelonia.librarian.recovery.mends import LOST_FOUND
from chelonia.librarian.recovery.rebuild import decide
from tests.sim.front_ends import BytesFrom, FilesFrom
from tests.sim.model import Violation
from tests.sim.users import User, Users
from tests.sim.world import SimShepherd, World
from tests.support.namespace_snapshot import NamespaceSnapshot

COLLECTION = "/parted"
KINDS = {"seal": 10, "leave": 4, "give_up": 4, "remove": 3}
"""Users' operations, and how often each comes."""
PARTS_MAX = 4
AGAIN = 0.2
"""The share of parts that are sent a second time."""
LONG_MS = 100_000
"""In place of a day: a record so much older than a snapshot without it was deleted before. An upload has ended by
then."""
SLACK_MS = 20_000
"""In place of ten minutes: the last tries of a commit after its ticket has ended, with steady clocks."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An upload with the parts acknowledged: number, etag, blob."""

    place: LogicalName
    id: UploadId
    parts: tuple[tuple[int, str, BlobId], ...]


class Parted:
    """The collection and its users."""

    def __init__(self, world: World, users: Users, rng: random.Random) -> None:
        self._world, self._users, self._rng = world, users, rng
        self._sealed: dict[LogicalName, tuple[BlobId, ...]] = {}
        self._left: Sent | None = None
        self._checked = True

    async def prepare(self, user: User) -> None:
        port = self._world.bartender_port(user.node, user.dn_call)
        [made] = await port.make_collection(user.call(0, "parted"), (MakeRequest("0", COLLECTION),))
        assert not made.kind, made

    async def work(self, user: User, rounds: int) -> None:
        for _ in range(rounds):
            await self._world.clock.sleep(self._rng.randint(0, 4_000))
            if self._users.held is not None:
                await self._users.held.wait()
            self._users.acting += 1
            try:
                [kind] = self._rng.choices(list(KINDS), weights=list(KINDS.values()))
                await (self._remove(user) if kind == "remove" else self._upload(user, kind))
            finally:
                self._users.acting -= 1

    async def _upload(self, user: User, kind: str) -> None:
        upload = await self._sent(user)
        if upload is not None and kind == "give_up":
            await self._told(user, Drop(upload.place, upload.id))
        elif upload is not None and kind == "seal":
            await self._seal(user, upload)

    async def _sent(self, user: User) -> Sent | None:
        """Open an upload and send parts; None when it cannot be opened, or no part arrived."""
        place = parse_ln(f"{COLLECTION}/p{self._users.asked + 1}")
        opened = await self._told(user, Open(place, parse_ln(COLLECTION), wanted=self._rng.randint(2, 3)))
        if opened is None:
            return None
        sent = list[tuple[int, str, BlobId]]()
        for number in sorted(self._rng.sample(range(1, 2 * PARTS_MAX), self._rng.randint(1, PARTS_MAX))):
            part = None
            for _ in range(2 if self._rng.random() < AGAIN else 1):
                part = await self._part(user, Part(place, opened.upload, number, NOTHING_ARRIVED))
            if part is not None:
                sent.append((number, *part))
        return Sent(place, opened.upload, tuple(sent)) if sent else None

    async def _seal(self, user: User, upload: Sent) -> bool:
        """Seal it of all parts that arrived, or of all but the last."""
        chosen = upload.parts if self._rng.random() < 0.8 else upload.parts[:-1] or upload.parts
        order = tuple((number, etag) for number, etag, _ in chosen)
        told = await self._told(user, Seal(upload.place, upload.id, order))
        if told is not None:
            self._sealed[upload.place] = tuple(blob for *_, blob in chosen)
        return told is not None

    async def _part(self, user: User, part: Part) -> tuple[str, BlobId] | None:
        """Send bytes as a part, and repeat it until an answer acknowledges them. Returns: its etag and its blob."""
        for _ in range(3):
            data = self._users.contents.bytes_of(self._users.contents.new(self._rng, small=True))
            placing = Placing(part.place, len(data), piece=True, part=PartPlace(part.upload, part.number))
            self._users.asked += 1
            call = user.call(self._users.asked, self._world.ids.uuid())

            async def body(data: bytes = data) -> AsyncIterator[bytes]:
                yield data

            try:
                [placed] = await FilesFrom(self._world, user).place(call, (placing,))
                if not isinstance(placed, Placed):
                    return None
                arrived = await BytesFrom(self._world, user, call).put(placed, body(), len(data))
            except CheloniaError:
                continue
            done = await self._told(user, Part(part.place, part.upload, part.number, arrived))
            if done is not None:
                return done.etag, placed.blob
        return None

    async def _remove(self, user: User) -> None:
        if self._sealed:
            place = self._rng.choice(list(self._sealed))
            del self._sealed[place]
            await self._told(user, Remove(place, Removing.FILE))

    async def _told(self, user: User, change: Change) -> Done | None:
        """Request a change. None where it is refused, or its outcome is unknown and no part of it is under way any
        more."""
        self._users.asked += 1
        op = self._users.asked
        try:
            [told] = await FilesFrom(self._world, user).apply(user.call(op, self._world.ids.uuid()), (change,))
        except CheloniaError:
            told = None
        while self._world.network.flying(f"op{op}"):
            await self._world.clock.sleep(200)
        self._world.note(f"PARTED #{op} {type(change).__name__} {change.place} -> {told}")
        return told if isinstance(told, Done) else None

    # --- at the end -------------------------------------------------------------------------------------------------

    async def rest(self, user: User) -> None:
        """Wait for users' requests; open uploads stay so."""

    def unjudged(self) -> None:
        """Check no answer from now on."""
        self._checked = False

    async def check(self, user: User) -> None:
        """Do nothing: `check_sealed` reads the metadata."""

    def check_sealed(self, seen: NamespaceSnapshot) -> None:
        """Check that every file acknowledged as sealed is there, with the parts it was sealed of. Raises: Violation."""
        for place, blobs in self._sealed.items() if self._checked else ():
            within = ObjectId(seen.value(ObjectId(ROOT), "entries", key_for(COLLECTION[1:], TYPE_COLLECTION)))
            file = seen.get(ObjectId(seen.value(within, "entries", place.name)))
            if blobs_in(seen, file) != blobs:
                raise Violation(f"{place} was sealed of {blobs}, and is of {blobs_in(seen, file)}")

    async def since(self, user: User) -> None:
        """Seal one upload that no snapshot has, or has as open: the one left open before. Leave another open."""
        upload = self._left or await self._sent(user)
        self._left = await self._sent(user)
        if upload is None or self._left is None or not await self._seal(user, upload):
            raise Violation("no upload in parts while all is well")

    async def go_unheard(self, user: User, shepherd: SimShepherd) -> set[BlobId]:
        """Delete files and uploads while a Shepherd with some of their bytes is down. Returns: blobs that it still
        has."""
        uploads = [upload for upload in [await self._sent(user) for _ in range(4)] if upload is not None]
        sealed = [upload for upload in uploads[::2] if await self._seal(user, upload)]
        await self._world.clock.sleep(5_000)
        await self._world.crash(shepherd)
        held = {stored.facts.blob for stored in shepherd.disk.held() if stored.facts is not None}
        for upload in uploads:
            gone = Remove(upload.place, Removing.FILE) if upload in sealed else Drop(upload.place, upload.id)
            if await self._told(user, gone) is None:
                raise Violation(f"an upload in parts cannot be taken away while all is well: {gone}")
            self._sealed.pop(upload.place, None)
        return held & {blob for upload in uploads for *_, blob in upload.parts}


# --- what must come back --------------------------------------------------------------------------------------------


def blobs_in(seen: NamespaceSnapshot, file: StoredObject) -> tuple[BlobId, ...]:
    """The blobs of a file of several, in the order of its extents; none for any other entry."""
    content = content_of(file) if type_of(file) == TYPE_FILE else ""
    extents = seen.section(content_object(content), "extents") if content else {}
    return tuple(parse_extent(key, extents[key]).blob for key in sorted(extents))


class PartsJudging:
    """A rebuild, checked against the metadata `then`, and a snapshot.

    `reach`: whether good bytes of a blob were available.
    `written`: the records beside all replicas.
    `harmed`: blobs of which copies were damaged.
    """

    def __init__(
        self,
        then: NamespaceSnapshot,
        now: NamespaceSnapshot,
        knew: Callable[[ObjectId], StoredObject],
        reach: Callable[[BlobId], bool],
        written: Sequence[ReplicaFacts],
        harmed: Collection[BlobId] = (),
    ) -> None:
        self._then, self._now, self._knew, self._reach = then, now, knew, reach
        self._places = {facts.blob: place for facts in written if (place := parse_part_name(facts.name)) is not None}
        self._placeless = {facts.blob for facts in written if parse_part_name(facts.name) is None}
        self._written = {facts.blob: facts for facts in written if facts.blob in self._places.keys() - {*harmed}}
        files = [file for file in now.entries() if type_of(file) == TYPE_FILE]
        self._found = {file.id: blobs_in(now, file) or tuple(blobs_of(file)) for file in files}

    def findings(self) -> Iterator[str]:
        """Report every forbidden loss."""
        named = {blob for blobs in self._found.values() for blob in blobs}
        for content in (obj for key, obj in self._then.objects.items() if key.startswith(CONTENT_PREFIX)):
            blobs = [parse_part(*part).blob for part in sorted(content.sections.get("parts", {}).items())]
            if content.value("content", "state") == OPEN:
                yield from self._bytes(f"the open upload {content.id}", blobs, named)
        for file in self._then.entries():
            blobs = blobs_in(self._then, file)
            yield from self._bytes(file.id, blobs, named)
            if blobs and all(map(self._reach, blobs)):
                yield from self._whole(file, blobs)
        yield from self._in_order()

    def _bytes(self, what: str, blobs: Iterable[BlobId], named: Collection[BlobId]) -> Iterator[str]:
        for blob in blobs:
            if self._reach(blob) and not (blob in named and locations_of(self._now.get(blob_object(blob)))):
                yield f"{blob}, a part of {what}, was within reach, and no name leads to it"

    def _whole(self, file: StoredObject, blobs: Sequence[BlobId]) -> Iterator[str]:
        if content_of(self._knew(file.id)) == content_of(file) and self._knew(content_object(content_of(file))).exists:
            if self._found.get(file.id) != blobs:
                yield f"{file.id} was known to the snapshot with {blobs}, and is of {self._found.get(file.id)}"
        elif not (self._is_anew(blobs) or any(_within(blobs, each) for each in self._found.values())):
            yield f"{file.id}, sealed since the snapshot of {blobs}, is no file in /lost+found"

    def _is_anew(self, blobs: Iterable[BlobId]) -> bool:
        """Whether another blob may have the place of one of these. Its Shepherds may have reported it first; or a
        record of one has no place, as those of older software."""
        places = list(self._places.values())
        return any(blob in self._placeless or places.count(self._places.get(blob)) > 1 for blob in blobs)

    def _in_order(self) -> Iterator[str]:
        """Report assembled parts of several uploads, or out of order."""
        for file in self._now.entries():
            blobs = blobs_in(self._now, file)
            if all(parent != LOST_FOUND for parent, _ in names_of(file)) or not set(blobs) <= set(self._written):
                continue
            named = [parse_part_name(self._written[blob].name) for blob in blobs]
            places = [each[0] for each in named if each is not None]
            numbers = [place.number for place in places]
            if len({place.upload for place in places}) > 1 or sorted(set(numbers)) != numbers:
                yield f"{file.id} in /lost+found is put together of {places}"

    def gone(self, begun_ms: int) -> Iterator[str]:
        """Report blobs deleted long before a snapshot was begun, and back."""
        for blob, facts in self._written.items():
            obj = blob_object(blob)
            may_take_ms = max(decide.UPLOAD_MS, facts.commit_within_ms) + decide.COMMIT_SLACK_MS
            long_ago = facts.created_ms + may_take_ms < begun_ms
            if long_ago and self._now.get(obj).exists and not (self._then.get(obj).exists or self._knew(obj).exists):
                yield f"{blob} was gone long before the snapshot, and is back"


def _within(some: Sequence[BlobId], every: Sequence[BlobId]) -> bool:
    """Whether these are among those, in the same order."""
    rest = iter(every)
    return all(blob in rest for blob in some)
