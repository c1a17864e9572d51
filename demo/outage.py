"""The A-Hash loses its master while a client writes: the client's wait, and a check that nothing is lost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from cluster import Cluster

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import Client

SETTLE_S = 30.0
BEFORE_S, AFTER_S = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class Outage:
    """The experience of a writing client, in seconds: an ordinary write (median), and the longest wait after the kill.
    `errors`: failures of its writes; `lost`: acknowledged ones that are not there afterwards."""

    killed: int
    successor: int
    ordinary_s: float
    longest_s: float
    writes: int
    errors: tuple[str, ...]
    lost: int


async def kill_master(cluster: Cluster) -> Outage:
    """Kill the master under a writing client, watch, and start it again."""
    async with connect.administrator_from_environment() as admin, connect.from_environment() as client:
        old = await _master(admin, 0)
        writer = _Writer(client)
        writing = asyncio.create_task(writer.run())
        await asyncio.sleep(BEFORE_S)
        began = time.monotonic()
        cluster.kill_core(old)
        new = await _master(admin, old)
        await asyncio.sleep(AFTER_S)
        writer.stopping = True
        await writing
        cluster.start_core(old)
        await _whole(admin)
        return await writer.judge(began, old, new)


class _Writer:
    """One client that makes one collection after the other."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.stopping = False
        self._acknowledged: list[tuple[str, float, float]] = []
        self._errors: list[str] = []

    async def run(self) -> None:
        if not await self._client.exists("/outage"):
            await self._client.make_collection("/outage")
        number = 0
        while not self.stopping:
            ln, began = f"/outage/{number}", time.monotonic()
            try:
                await self._client.make_collection(ln)
                self._acknowledged.append((ln, began, time.monotonic()))
            except CheloniaError as error:
                self._errors.append(f"{ln}: {error}")
            number += 1

    async def judge(self, killed_at: float, old: int, new: int) -> Outage:
        before = sorted(end - begin for _, begin, end in self._acknowledged if end < killed_at)
        after = [end - begin for _, begin, end in self._acknowledged if end >= killed_at]
        lost = [ln for ln, _, _ in self._acknowledged if not await self._client.exists(ln)]
        return Outage(
            old, new, before[len(before) // 2], max(after), len(self._acknowledged), tuple(self._errors), len(lost)
        )  # fmt: skip


async def _master(admin: Administrator, beside: int) -> int:
    """The replica that is master, another than `beside`. Raises: SystemExit when there is none for long."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        for ahash in admin.ahashes.values():
            try:
                status = await ahash.status(Call())
            except CheloniaError:
                continue
            if status.role == "master" and status.replica != beside:
                return status.replica
        await asyncio.sleep(0.02)
    raise SystemExit("the A-Hash has no master")


async def _whole(admin: Administrator) -> None:
    """Wait until every replica follows again."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        try:
            status = await next(iter(admin.ahashes.values())).status(Call().strongly())
            if all(view.role in ("master", "follower") for view in status.replicas):
                return
        except CheloniaError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the replica that was killed did not come back")
