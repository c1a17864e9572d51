"""Simulated users of a bucket that keeps versions, each with a front end of his own.

Its S3 door reaches Bartenders through the simulated network, and may die in the middle of a request.
`version_story.VersionStory` checks the answers about each key: no acknowledged version is lost, no live one loses its
bytes, and erased or hidden ones stay so.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field

from chelonia.core.errors import CheloniaError
from chelonia.hosting.net.http_messages import HttpResponse
from tests.sim.front_ends import DIES, DIES_WITHIN_MS, FrontEnd, tag, whole
from tests.sim.model import NOTHING, Violation
from tests.sim.users import OPEN_MAX, UNKNOWN, User, Users
from tests.sim.version_story import MARKER, VERSION, KeyOp, VersionStory
from tests.sim.world import World

BUCKET = "/versions"
KEYS = ("a", "b/c")
KINDS = {"put": 30, "remove": 16, "erase": 22, "restore": 8, "read": 12, "see": 12}
"""Users' operations, and how often each comes."""
ON = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"


@dataclass
class VersionedKey:
    """A key, its story, and its versions and markers in answers: operation -> (id, which)."""

    name: str
    story: VersionStory
    known: dict[int, tuple[str, str]] = field(default_factory=dict)


class Versioned:
    """The bucket and its users."""

    def __init__(self, world: World, users: Users, rng: random.Random) -> None:
        self._world, self._users, self._rng = world, users, rng
        self._contents: dict[int, int] = {}
        self._keys = [VersionedKey(name, VersionStory(self._contents)) for name in KEYS]
        self._settling: dict[asyncio.Task[None], None] = {}
        self._since: dict[str, tuple[str, bytes]] = {}

    async def prepare(self, user: User) -> None:
        for target, body in ((BUCKET, b""), (f"{BUCKET}?versioning", ON)):
            answer = await self._ask(user, 0, "PUT", target, body)
            assert answer.status == 200, answer

    async def work(self, user: User, rounds: int) -> None:
        for _ in range(rounds):
            await self._world.clock.sleep(self._rng.randint(0, 3_000))
            key = self._rng.choice(self._keys)
            if key.story.open < OPEN_MAX:
                await self._act(user, key, self._draw(key))

    def _draw(self, key: VersionedKey) -> KeyOp:
        rng = self._rng
        [kind] = rng.choices(list(KINDS), weights=list(KINDS.values()))
        which = [op for op, (_, what) in key.known.items() if kind == "erase" or what == VERSION]
        if kind in ("erase", "restore", "see") and not which:
            kind = "put"
        target = rng.choice(which) if kind in ("erase", "restore", "see") else NOTHING
        self._users.asked += 1
        op = KeyOp(self._users.asked, kind, self._users.contents.new(rng) if kind == "put" else NOTHING, target)
        if kind in ("put", "restore"):
            self._contents[op.id] = op.content if kind == "put" else self._contents[target]
        return op

    async def _act(self, user: User, key: VersionedKey, op: KeyOp) -> None:
        """Carry out an operation and note its answer: one of 5xx, or none, leaves its outcome open."""
        key.story.begin(op)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(self._tell(user, key, op))
        dies = self._rng.random() < DIES
        done, _ = await asyncio.wait({asking}, timeout=self._rng.randint(1, DIES_WITHIN_MS) / 1000 if dies else None)
        if not done:
            asking.cancel()
            await asyncio.wait({asking})
        told = UNKNOWN if asking.cancelled() else asking.result()
        self._world.note(f"KEY {key.name} #{op.id} {op} -> {told}")
        if told != UNKNOWN:
            return key.story.answered(op, told)  # type: ignore[arg-type]
        key.story.unknown(op)  # type: ignore[arg-type]
        settling = asyncio.ensure_future(self._settle(key, op))
        self._settling[settling] = None
        if self._rng.random() < 0.5:
            await settling

    async def _settle(self, key: VersionedKey, op: KeyOp) -> None:
        while self._world.network.flying(f"op{op.id}"):
            await self._world.clock.sleep(200)
        key.story.settled(op)  # type: ignore[arg-type]

    async def _tell(self, user: User, key: VersionedKey, op: KeyOp) -> str:
        """Send it to the door. Returns: `done`, the content read, `refused`, or UNKNOWN."""
        place = f"{BUCKET}/{key.name}"
        version = f"versionId={key.known[op.target][0]}" if op.target else ""
        match op.kind:
            case "put":
                data = self._users.contents.bytes_of(op.content)
                answer = await self._ask(user, op.id, "PUT", place, data, {"x-amz-meta-op": str(op.id)})
            case "restore":
                copied = {"x-amz-copy-source": f"{place}?{version}", "x-amz-metadata-directive": "REPLACE"}
                answer = await self._ask(user, op.id, "PUT", place, b"", {**copied, "x-amz-meta-op": str(op.id)})
            case "remove" | "erase":
                answer = await self._ask(user, op.id, "DELETE", f"{place}?{version}" if version else place)
            case _:
                return await self._seen(user, op, f"{place}?{version}" if version else place)
        if answer.status >= 500:
            return UNKNOWN
        if answer.status not in (200, 204):
            return "none" if op.kind == "restore" and answer.status == 404 else "refused"
        if op.kind != "erase":
            told = dict(answer.headers)["x-amz-version-id"]
            key.known[op.id] = told, MARKER if op.kind == "remove" else VERSION
            self._users.acknowledged += op.kind != "remove"
        return "done"

    async def _seen(self, user: User, op: KeyOp, target: str) -> str:
        answer = await self._ask(user, op.id, "GET", target)
        if answer.status == 404:
            return f"{op.kind} {NOTHING}"
        if answer.status != 200:
            return UNKNOWN
        try:
            data = await whole(answer)
        except CheloniaError:
            return UNKNOWN
        return f"{op.kind} {self._users.contents.number_of(data)}"

    # --- around a rebuild -------------------------------------------------------------------------------------------

    async def since(self, user: User) -> None:
        """Write a version of each key that no snapshot has."""
        for key in self._keys:
            data = self._users.contents.bytes_of(self._users.contents.new(self._rng))
            answer = await self._ask(user, 0, "PUT", f"{BUCKET}/{key.name}", data)
            if answer.status != 200:
                raise Violation(f"{key.name} cannot be written while all is well: {answer.status}")
            self._since[key.name] = dict(answer.headers)["x-amz-version-id"], data

    async def back(self, user: User) -> None:
        """Check that each has its key after the rebuild, and makes way for the earlier state. Raises: Violation."""
        for name, (version, data) in self._since.items():
            answer = await self._ask(user, 0, "GET", f"{BUCKET}/{name}")
            told = dict(answer.headers).get("x-amz-version-id")
            if answer.status != 200 or told != version or await whole(answer) != data:
                raise Violation(f"{name} is version {told} ({answer.status}) after the rebuild, and was {version}")
            await self._ask(user, 0, "DELETE", f"{BUCKET}/{name}?versionId={version}")
        self._since.clear()

    # --- at the end -------------------------------------------------------------------------------------------------

    async def rest(self, user: User) -> None:
        """Wait until nothing is under way any more."""
        del user
        for task in list(self._settling):
            await task
        self._settling.clear()

    def unjudged(self) -> None:
        """Check no answer from now on."""
        for key in self._keys:
            key.story.unjudged()

    async def check(self, user: User) -> None:
        """Check that earlier answers explain the listing, and that all versions have their bytes. Raises: Violation."""
        for key in self._keys:
            if not key.story.checked:
                continue
            answer = await self._ask(user, 0, "GET", f"{BUCKET}?versions&prefix={key.name}")
            shown = [
                (VERSION if kind == "Version" else MARKER, tag(text, "VersionId"))
                for kind, text in re.findall(r"<(Version|DeleteMarker)>(.*?)</\1>", (await whole(answer)).decode())
                if tag(text, "Key") == key.name
            ]
            found = [(await self._made_by(user, key, version, kind), kind) for kind, version in shown]
            has_key = await self._ask(user, 0, "GET", f"{BUCKET}/{key.name}")
            first = found[0][0] if has_key.status == 200 and found else NOTHING
            unknown = set(range(self._users.asked + 1)) - set(key.known)
            if not key.story.listed(first, found[1:] if first else found, unknown):
                raise Violation(f"{key.name} is {has_key.status}, {found}: {key.story.told()}")
            self._world.note(f"KEY {key.name} has {found}")

    async def _made_by(self, user: User, key: VersionedKey, version: str, kind: str) -> int:
        """The operation that has made a listed version, 0 of a marker that no answer named."""
        told = {each: op for op, (each, _) in key.known.items()}
        if kind == MARKER:
            return told.get(version, 0)
        answer = await self._ask(user, 0, "GET", f"{BUCKET}/{key.name}?versionId={version}")
        if answer.status != 200:
            raise Violation(f"{key.name}: version {version} is listed, and answers {answer.status}")
        op = int(dict(answer.headers)["x-amz-meta-op"])
        if self._users.contents.number_of(await whole(answer)) != self._contents[op]:
            raise Violation(f"{key.name}: version {version} has other bytes than were put")
        if told.get(version, op) != op:
            raise Violation(f"{key.name}: version {version} is that of another request")
        return op

    # --- the door ---------------------------------------------------------------------------------------------------

    async def _ask(
        self, user: User, op: int, method: str, target: str, body: bytes = b"", fields: dict[str, str] | None = None
    ) -> HttpResponse:
        return await FrontEnd(self._world, user, self._rng).ask(op, method, target, body, fields)
