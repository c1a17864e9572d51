"""Simulated users of a bucket that keeps versions: each asks the S3 door of his own front end, which reaches Bartenders
through the simulated network, and may die in the middle of a request.

What they are told of each key is held against `version_story.VersionStory`: no acknowledged version may be lost, none
that lives may lose its bytes, and what is erased or marked stays so.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

from multidict import CIMultiDict

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import IssuedKey
from chelonia.core.ports.files import Arrived, Placed
from chelonia.core.ports.shepherd import ByteRange
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import parts as plain_parts
from chelonia.hosting.doors.plain.parts import DoorParts
from chelonia.hosting.doors.s3 import door as s3_door
from chelonia.hosting.doors.s3 import versions
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.doors.s3.signing import Verified, verified
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, Peer
from chelonia.hosting.net.rpc_client import AGAIN
from chelonia.wire.s3.sigv4 import Signable
from tests.sim.model import NOTHING, Violation
from tests.sim.users import OPEN_MAX, UNKNOWN, User, Users, dn_of
from tests.sim.version_story import MARKER, VERSION, KeyOp, VersionStory
from tests.sim.world import World

BUCKET = "/versions"
KEYS = ("a", "b/c")
KINDS = {"put": 30, "remove": 16, "erase": 22, "restore": 8, "read": 12, "see": 12}
"""What users do, and how often."""
DIES = 0.08
"""The share of requests in whose middle their front end dies."""
DIES_WITHIN_MS = 400
TRIES = 5
ON = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"


@dataclass
class VersionedKey:
    """A key, what is told of it, and the versions and markers that somebody was told of: operation -> (id, which)."""

    name: str
    story: VersionStory
    known: dict[int, tuple[str, str]] = field(default_factory=dict)


class Versioned:
    """The bucket, and who works in it."""

    def __init__(self, world: World, users: Users, rng: random.Random) -> None:
        self._world, self._users, self._rng = world, users, rng
        self._contents: dict[int, int] = {}
        self._keys = [VersionedKey(name, VersionStory(self._contents)) for name in KEYS]
        self._settling: dict[asyncio.Task[None], None] = {}

    async def prepare(self, user: User) -> None:
        """Make the bucket."""
        for target, body in ((BUCKET, b""), (f"{BUCKET}?versioning", ON)):
            answer = await self._ask(user, 0, "PUT", target, body)
            assert answer.status == 200, answer

    async def work(self, user: User, rounds: int) -> None:
        """One operation after the other."""
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
        """Do one thing and remember what was told: an answer of 5xx, or none, says nothing of what was done."""
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
        """Ask the door. Returns: `done`, what was read, `refused`, or UNKNOWN."""
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
            data = await _whole(answer)
        except CheloniaError:
            return UNKNOWN
        return f"{op.kind} {self._users.contents.number_of(data)}"

    # --- at the end -------------------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Wait until nothing is under way any more."""
        for task in list(self._settling):
            await task
        self._settling.clear()

    def unjudged(self) -> None:
        """What is told from now on is not held against anything."""
        for key in self._keys:
            key.story.unjudged()

    async def check(self, user: User) -> None:
        """What is listed must be explained by what was told, and all versions have their bytes. Raises: Violation."""
        for key in self._keys:
            if not key.story.checked:
                continue
            answer = await self._ask(user, 0, "GET", f"{BUCKET}?versions&prefix={key.name}")
            shown = [
                (VERSION if kind == "Version" else MARKER, _tag(text, "VersionId"))
                for kind, text in re.findall(r"<(Version|DeleteMarker)>(.*?)</\1>", (await _whole(answer)).decode())
                if _tag(text, "Key") == key.name
            ]
            found = [(await self._made_by(user, key, version, kind), kind) for kind, version in shown]
            has_key = await self._ask(user, 0, "GET", f"{BUCKET}/{key.name}")
            first = found[0][0] if has_key.status == 200 and found else NOTHING
            unknown = set(range(self._users.asked + 1)) - set(key.known)
            if not key.story.listed(first, found[1:] if first else found, unknown):
                raise Violation(f"{key.name} is {has_key.status}, {found}: {key.story.told()}")
            self._world.note(f"KEY {key.name} has {found}")

    async def _made_by(self, user: User, key: VersionedKey, version: str, kind: str) -> int:
        """The operation that has made what is listed, 0 of a marker that nobody was told of."""
        told = {each: op for op, (each, _) in key.known.items()}
        if kind == MARKER:
            return told.get(version, 0)
        answer = await self._ask(user, 0, "GET", f"{BUCKET}/{key.name}?versionId={version}")
        if answer.status != 200:
            raise Violation(f"{key.name}: version {version} is listed, and answers {answer.status}")
        op = int(dict(answer.headers)["x-amz-meta-op"])
        if self._users.contents.number_of(await _whole(answer)) != self._contents[op]:
            raise Violation(f"{key.name}: version {version} has other bytes than were put")
        if told.get(version, op) != op:
            raise Violation(f"{key.name}: version {version} is that of another request")
        return op

    # --- the door ---------------------------------------------------------------------------------------------------

    async def _ask(
        self, user: User, op: int, method: str, target: str, body: bytes = b"", fields: dict[str, str] | None = None
    ) -> HttpResponse:
        async def chunks() -> AsyncIterator[bytes]:
            if body:
                yield body

        world = self._world
        call = Call(dn=dn_of(user.number), request_id=f"op{op}")
        plain = DoorParts(FilesFrom(world, user), BytesFrom(world, user, call), dn_of(user.number), 2)
        clock = world.clock
        door = S3Door(S3Parts(plain, NoKeys(), clock, LogicalName(ROOT, ())), Metrics())
        path, headers = unquote(target.partition("?")[0]), CIMultiDict({"Host": "se:1", **(fields or {})})
        request = HttpRequest(
            method, path, {}, headers, Peer(dn_of(user.number)), chunks(), len(body), f"op{op}", target=target
        )
        return await door.serve(request)


class FilesFrom:
    """The port `Files` as a front end reaches it: by any Bartender, each call repeated under its request key."""

    def __init__(self, world: World, user: User) -> None:
        self._world, self._user = world, user

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def repeated(call: Call, *args: Any) -> Any:
            for left in range(TRIES - 1, -1, -1):
                try:
                    port = self._world.bartender_port(self._user.node, self._user.dn_call, "files")
                    return await getattr(port, method)(call, *args)
                except CheloniaError as error:
                    if error.kind not in AGAIN or not left:
                        raise
                await self._world.clock.sleep(300)
            raise AssertionError

        return repeated


class BytesFrom:
    """The port `Bytes`, through the simulated network."""

    def __init__(self, world: World, user: User, call: Call) -> None:
        self._world, self._user, self._call = world, user, call

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int, start: int = 0) -> Arrived:
        """Nothing is as large."""
        raise AssertionError(f"{size} bytes go in the message")

    async def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        """From the first source that answers."""
        failed: CheloniaError | None = None
        for source in sources:
            try:
                data = await self._world.get(source, self._user.node, self._call)
            except CheloniaError as error:
                failed = error
                continue
            for span in spans:
                yield data[span.offset : span.offset + span.length]
            return
        assert failed is not None
        raise failed


class NoKeys:
    """Whoever asks is taken for who he is."""

    async def find(self, key_id: str) -> IssuedKey | None:
        """There is no key."""
        del key_id


class Drawn:
    """`secrets` from the run's own source."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_hex(self, count: int) -> str:
        """See `secrets.token_hex`."""
        return self._rng.randbytes(count).hex()


@contextmanager
def front_ends(rng: random.Random) -> Iterator[None]:
    """The door takes callers for who their machines are, and draws from the run's own source."""

    async def trusting(parts: S3Parts, request: HttpRequest, signable: Signable) -> Verified:
        known = await verified(parts, request, signable)
        return replace(known, call=Call(dn=Dn(request.peer.dn), request_id=request.request_id))

    drawn = Drawn(rng)
    patches = [patch.object(s3_door, "verified", trusting)]
    patches += [patch.object(module, "secrets", drawn) for module in (versions, plain_parts)]
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def _tag(text: str, name: str) -> str:
    return re.findall(f"<{name}>(.*?)</{name}>", text)[0]


async def _whole(answer: HttpResponse) -> bytes:
    body = answer.body
    return body if isinstance(body, bytes) else b"".join([piece async for piece in body])
