"""`core.ports.bytes.Bytes` over the pooled HTTP client: a front end that carries bytes for its clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Arrived, Placed
from chelonia.core.ports.shepherd import ByteRange
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.transfer.hedging import PATIENCE_MS, ReplicaChoice, opened
from chelonia.hosting.transfer.push import HttpTransfers
from chelonia.wire import receipts


class HttpBytes:
    """Bytes over HTTPS, with the node's own certificate."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._transfers = HttpTransfers(client)

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int) -> Arrived:
        """Send a body to where it was placed."""
        done = await self._transfers.push(placed.turl, body, size)
        if not done.complete:
            raise CheloniaError(
                Kind.INCOMPLETE, "PUT", cause=f"only {done.offset} bytes of it were kept; send it again"
            )
        return Arrived(placed.put, tuple(receipts.to_text(receipt) for receipt in done.receipts))

    async def get(self, sources: tuple[str, ...], span: ByteRange) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of `span`, from as many sources as it takes."""
        at, end = span.offset, span.offset + span.length
        failure = CheloniaError(Kind.NO_REPLICA, "get", cause="no Shepherd was named to read it from")
        for patience_ms in PATIENCE_MS:
            choice = ReplicaChoice(list(sources), patience_ms)
            while at < end and choice.turls:
                try:
                    async with contextlib.aclosing(self._from(choice, at, end)) as chunks:
                        async for chunk in chunks:
                            at += len(chunk)
                            yield chunk
                except CheloniaError as error:
                    failure = error
            if at >= end:
                return
        raise failure

    async def _from(self, choice: ReplicaChoice, at: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes from `at` on, from the first source that answers; never more than up to `end`."""
        async with opened(self._client, choice, at, end) as answer:
            skip = at if answer.status != 206 else 0
            async for chunk in answer.chunks():
                kept = chunk[skip:] if skip else chunk
                skip = max(0, skip - len(chunk))
                if kept:
                    yield kept[: end - at]
                    at += min(len(kept), end - at)
                if at >= end:
                    return
        raise CheloniaError(Kind.INCOMPLETE, "get", cause="a Shepherd sent less than it has")
