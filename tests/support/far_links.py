"""Connections between distant processes: relays that pass bytes on in order, and late.

For machines whose kernel has no netem. No packet is ever lost, and so none is resent by TCP.
"""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

CHUNK_BYTES = 64 << 10


class FarLinks:
    """Relays in this event loop. Bytes in either direction arrive after `low_ms` to `high_ms`."""

    def __init__(self, low_ms: int, high_ms: int, seed: int = 1) -> None:
        self._late_ms = (low_ms, high_ms)
        self._chance = random.Random(seed)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    async def relay(self, port: int, onward: int) -> None:
        """From now on `port` leads to the port `onward`."""

        def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._ends.append(writer)
            self._begin(self._connect(reader, writer, onward))

        self._servers.append(await asyncio.start_server(met, "127.0.0.1", port))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, onward: int) -> None:
        await asyncio.sleep(self._late_s() + self._late_s())  # there and back, as any connection takes
        try:
            further, drain = await asyncio.open_connection("127.0.0.1", onward)
        except OSError:
            writer.close()
            return
        self._ends.append(drain)
        for source, end in ((reader, drain), (further, writer)):
            road: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
            self._begin(self._take(source, road))
            self._begin(self._give(road, end))

    async def _take(self, source: asyncio.StreamReader, road: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(CHUNK_BYTES)
            except OSError:
                data = b""
            road.put_nowait((asyncio.get_running_loop().time() + self._late_s(), data))

    async def _give(self, road: asyncio.Queue[tuple[float, bytes]], drain: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                due, data = await road.get()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                if not data:
                    break
                drain.write(data)
                await drain.drain()
        drain.close()

    def _late_s(self) -> float:
        return self._chance.uniform(*self._late_ms) / 1000
