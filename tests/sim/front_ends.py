"""Simulated front ends with the S3 door.

Each reaches Bartenders through the simulated network, as one of production does, and may die in the middle of a
request. A caller's machine is taken as his identity.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

from multidict import CIMultiDict

from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import IssuedKey
from chelonia.core.ports.bytes import put_failure
from chelonia.core.ports.files import Arrived, Placed
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import parts as plain_parts
from chelonia.hosting.doors.s3 import door as s3_door
from chelonia.hosting.doors.s3 import multipart, versions
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.doors.s3.signing import Verified, verified
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, Peer
from chelonia.hosting.net.rpc_client import AGAIN
from chelonia.wire import receipts
from chelonia.wire.s3.sigv4 import Signable
from tests.sim.users import User, dn_of
from tests.sim.world import World
from tests.support.door_parts import door_parts

TRIES = 5
DIES = 0.08
"""The share of requests during which their front end dies."""
DIES_WITHIN_MS = 400


class FrontEnd:
    """A user's front end. Its memory of buckets dies with it."""

    def __init__(self, world: World, user: User, rng: random.Random) -> None:
        self._world, self._user, self._rng = world, user, rng
        self._states: dict[tuple[Dn, LogicalName], tuple[int, str]] = {}

    async def answer(
        self, op: int, method: str, target: str, body: bytes = b"", fields: Mapping[str, str] | None = None
    ) -> HttpResponse | None:
        """Answer a request; None: the front end has died in the middle of it."""
        asking = asyncio.ensure_future(self.ask(op, method, target, body, fields))
        dies = self._rng.random() < DIES
        done, _ = await asyncio.wait({asking}, timeout=self._rng.randint(1, DIES_WITHIN_MS) / 1000 if dies else None)
        if not done:
            asking.cancel()
            await asyncio.wait({asking})
            self._states = {}
        return None if asking.cancelled() else asking.result()

    async def ask(
        self, op: int, method: str, target: str, body: bytes = b"", fields: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Answer a request without dying. The answer's body is whole."""

        async def chunks() -> AsyncIterator[bytes]:
            if body:
                yield body

        world, user, dn = self._world, self._user, dn_of(self._user.number)
        call = Call(dn=dn, request_id=f"op{op}")
        plain = door_parts(FilesFrom(world, user), BytesFrom(world, user, call), dn, 2)
        parts = S3Parts(plain, NoKeys(), world.clock, LogicalName(ROOT, ()), states=self._states)
        path, headers = unquote(target.partition("?")[0]), CIMultiDict({"Host": "se:1", **(fields or {})})
        request = HttpRequest(method, path, {}, headers, Peer(dn), chunks(), len(body), f"op{op}", target=target)
        return await S3Door(parts, Metrics()).serve(request)


class FilesFrom:
    """The port `Files` from a front end: by any Bartender, each call repeated under its request key."""

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
        del start
        data = b"".join([piece async for piece in body])
        assert len(data) == size
        try:
            uploaded = await self._world.put(placed.turl, data, self._user.node, self._call)
        except CheloniaError as error:
            error = put_failure(error)
            raise error
        return Arrived(placed.put, tuple(receipts.to_text(receipt) for receipt in uploaded.receipts))

    async def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        """Read from the first source that answers; all of a blob must match the checksum of the answer."""
        failed: CheloniaError | None = None
        for source in sources:
            try:
                read = [await self._world.download(source, self._user.node, self._call, span) for span in spans]
                if any(told not in ("", hashlib.sha256(data).hexdigest()) for data, told in read):
                    raise CheloniaError(Kind.CHECKSUM, "get", source)
            except CheloniaError as error:
                failed = error
                continue
            for data, _ in read:
                yield data
            return
        assert failed is not None
        raise failed


class NoKeys:
    """No keys: every caller is the person of his machine."""

    async def find(self, key_id: str) -> IssuedKey | None:
        """There is no key."""
        del key_id


class Drawn:
    """`secrets` from the run's own random source."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_hex(self, count: int) -> str:
        return self._rng.randbytes(count).hex()


@contextmanager
def front_ends(rng: random.Random) -> Iterator[None]:
    """Take a caller's machine as his identity, and draw secrets from the run's own source."""

    async def trusting(parts: S3Parts, request: HttpRequest, signable: Signable) -> Verified:
        known = await verified(parts, request, signable)
        return replace(known, call=replace(known.call, dn=Dn(request.peer.dn)))

    drawn = Drawn(rng)
    patches = [patch.object(s3_door, "verified", trusting)]
    patches += [patch.object(module, "secrets", drawn) for module in (versions, plain_parts)]
    patches += [patch.object(multipart, "PART_BYTES_MIN", 1)]
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def tag(text: str, name: str, otherwise: str | None = None) -> str:
    """The text of the first element of a name; without any, `otherwise`. Raises: IndexError, where that is None."""
    found = re.findall(f"<{name}>(.*?)</{name}>", text)
    return found[0] if found or otherwise is None else otherwise


async def whole(answer: HttpResponse) -> bytes:
    """All bytes of an answer. Raises: CheloniaError, when they do not come."""
    body = answer.body
    return body if isinstance(body, bytes) else b"".join([piece async for piece in body])
