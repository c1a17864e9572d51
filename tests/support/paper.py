"""Fake Shepherds without bytes, and their Librarian, in virtual time: healing alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.drills import DrillAction, ShepherdDrill
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ReferenceId, ServiceId
from chelonia.core.ports.ahash import AHash, Position
from chelonia.core.ports.librarian import Arriving
from chelonia.core.ports.shepherd import (
    Authority,
    Challenge,
    CopyOrder,
    DeleteOutcome,
    PutRequest,
    ReplicaStatOutcome,
    TurlOutcome,
)
from chelonia.librarian.settings import LibrarianSettings
from tests.support.clocks import VirtualClock
from tests.support.librarian import SUMS, Bench, bench

FILE_BYTES = 7


@dataclass
class PaperShepherd:
    """A Shepherd that keeps references instead of bytes."""

    cluster: "Paper"
    id: ServiceId
    replicas: dict[ReferenceId, BlobId] = field(default_factory=dict)
    up: bool = True
    broken: str = ""
    erased: list[ReferenceId] = field(default_factory=list)
    authorities: list[Position] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    copy_s: float = 0.05
    put_calls: int = 0
    asked_for: int = 0
    """Replicas requested by `stat`."""
    proven: list[ReferenceId] = field(default_factory=list)
    scrubbed: list[ReferenceId] = field(default_factory=list)
    drilled: list[ShepherdDrill] = field(default_factory=list)
    silent_until_s: float = 0.0
    obeys_s: float = 0.0
    """Seconds until it obeys a drill."""
    tells: Callable[[float, float], int] = lambda passed_s, copy_s: int(FILE_BYTES * passed_s / copy_s)
    """Bytes of a copy that it reports as arrived, after so many seconds of a copy that takes so long."""
    taking: dict[ReferenceId, tuple[BlobId, float, float]] = field(default_factory=dict)
    reports_s: float = 0.0
    """Seconds from the beginning of a copy until it reports it by itself; 0: never."""
    compared: int = 1
    """The generation of metadata that it claims to have compared its disk with; 0: not yet."""
    compares_in_doubt: bool = False
    """Whether a request for an absent copy makes it compare its disk and report the absence."""
    copies_at_once_max: int = 0
    """Copies at once that it claims to bear; 0: no claim."""

    def _check(self, call: Call) -> None:
        assert call.roles == (Role.LIBRARIAN,)
        if not self.up:
            raise CheloniaError(Kind.NETWORK, subject=self.id)
        if self.silent:
            raise CheloniaError(Kind.UNAVAILABLE, subject=self.id)

    @property
    def silent(self) -> bool:
        return asyncio.get_running_loop().time() < self.silent_until_s

    async def drill(self, call: Call, order: ShepherdDrill) -> int:
        assert call.roles == (Role.LIBRARIAN,)
        assert order.position.cluster
        self.drilled.append(order)
        await asyncio.sleep(self.obeys_s)
        if self.broken == "order of a drill":
            raise CheloniaError(Kind.NETWORK, "drill", self.id, "the connection broke")
        if self.broken == "drill":
            raise CheloniaError(Kind.CONFLICT, "drill", self.id, "it is not sound")
        if order.action is DrillAction.CORRUPT:
            assert self.replicas[order.reference] == order.blob
            told = (order.blob, order.reference, ReplicaState.INVALID)
            asyncio.get_running_loop().call_later(0.2, lambda: self.cluster.reports.append((self.id, told)))
            return 0
        ends = order.action is DrillAction.STOP
        self.silent_until_s = 0.0 if ends else asyncio.get_running_loop().time() + order.duration_ms / 1000
        if self.broken == "answer of a drill":
            raise CheloniaError(Kind.NETWORK, "drill", self.id, "the connection broke")
        return 0 if ends else order.duration_ms

    async def put(self, call: Call, requests: tuple[PutRequest, ...]) -> tuple[TurlOutcome, ...]:
        self.put_calls += 1
        await asyncio.sleep(0.01)
        self._check(call)
        if self.broken == "busy taking":
            raise CheloniaError(Kind.BUSY, "put", self.id)
        if self.broken == "put":
            return tuple(TurlOutcome(r.request_id, error="not enough space", kind="no-space") for r in requests)
        if self.broken == "has it":
            return tuple(TurlOutcome(r.request_id, error="already have this file", kind="exists") for r in requests)
        return tuple(
            TurlOutcome(r.request_id, f"{self.id} {r.reference} {r.facts.blob}", "http", r.reference) for r in requests
        )

    async def stat(self, call: Call, references: tuple[tuple[str, ReferenceId], ...]) -> tuple[ReplicaStatOutcome, ...]:
        await asyncio.sleep(0.01)
        self._check(call)
        self.asked_for += len(references)
        if self.broken == "frozen":
            await asyncio.sleep(3600)
        for _, absent in references:
            if self.compares_in_doubt and absent not in self.replicas and absent not in self.taking:
                self.cluster.reports.append((self.id, (BlobId(""), absent, ReplicaState.DELETED)))
        state = "invalid" if self.broken == "rot" else "alive"
        return tuple(
            ReplicaStatOutcome(name, ref, ref in self.replicas, state, "md5", SUMS.md5, size=7)
            for name, ref in references
        )

    async def prove(self, call: Call, challenge: Challenge) -> tuple[str, ...]:
        await asyncio.sleep(0.01)
        self._check(call)
        asked = [question.reference for question in challenge.questions]
        self.proven += asked
        if self.broken == "lies":  # it says that it has what it has not
            return tuple(f"made up by {self.id}" for _ in asked)
        return tuple(f"{challenge.nonce} {self.replicas[ref]}" if ref in self.replicas else "" for ref in asked)

    async def scrub(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        self._check(call)
        self.scrubbed += references
        return 0

    async def copy(self, call: Call, order: CopyOrder):  # type: ignore[no-untyped-def]
        self._check(call)
        if self.broken == "busy sending":
            raise CheloniaError(Kind.BUSY, "copy", self.id)
        shepherd, reference, blob = order.turl.split(" ")
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.cluster.shepherds[ServiceId(shepherd)].takes(ReferenceId(reference), BlobId(blob), self.copy_s)
        try:
            await asyncio.sleep(self.copy_s)
        finally:
            self.in_flight -= 1
            self.cluster.shepherds[ServiceId(shepherd)].taking.pop(ReferenceId(reference), None)
        self._check(call)
        assert self.replicas[order.reference] == blob
        if self.broken == "copy":
            raise CheloniaError(Kind.NOT_ALIVE, subject=order.reference)
        if self.broken == "cut off, and rotten":
            self.cluster.reports.append((self.id, (BlobId(blob), order.reference, ReplicaState.INVALID)))
            raise CheloniaError(Kind.NETWORK, subject=shepherd)
        target = self.cluster.shepherds[ServiceId(shepherd)]
        target._check(call)
        target.replicas[ReferenceId(reference)] = BlobId(blob)
        return self.cluster.b.receipt(BlobId(blob), target.id, reference)

    def takes(self, reference: ReferenceId, blob: BlobId, copy_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.taking[reference] = (blob, loop.time(), copy_s)
        if self.reports_s:
            self.replicas[reference] = blob
            told = (blob, reference, ReplicaState.ALIVE)
            loop.call_later(self.reports_s, lambda: self.cluster.reports.append((self.id, told)))

    @property
    def arriving(self) -> tuple[Arriving, ...]:
        now = asyncio.get_running_loop().time()
        flights = self.taking.items()
        return tuple(Arriving(ref, blob, self.tells(now - since, copy_s)) for ref, (blob, since, copy_s) in flights)

    async def delete(
        self, call: Call, references: tuple[tuple[str, ReferenceId], ...], authority: Authority | None
    ) -> tuple[DeleteOutcome, ...]:
        self._check(call)
        assert authority is not None
        assert call.strong, "outbox and authority are read for this very call"
        self.authorities.append(authority.position)
        if self.broken == "delete":
            return tuple(DeleteOutcome(name, "nosuchfile: an older authority") for name, _ in references)
        if self.broken == "void":
            return tuple(DeleteOutcome(name, "nosuchfile: no UUID", "bad-request") for name, _ in references)
        for _, reference in references:
            self.replicas.pop(reference, None)
            self.erased.append(reference)
        return tuple(DeleteOutcome(name, "deleted") for name, _ in references)


@dataclass
class Paper:
    """Fake Shepherds without bytes, and their Librarian."""

    shepherds: dict[ServiceId, PaperShepherd] = field(default_factory=dict)
    b: Bench = field(init=False)
    reports: list[tuple[ServiceId, tuple[BlobId, str, ReplicaState]]] = field(default_factory=list)
    """Reports that Shepherds will send by themselves."""
    disk_bytes: int = 0
    """Size of every disk; 0: so large that it never fills."""

    def shepherd(self, service: ServiceId) -> PaperShepherd:
        return self.shepherds[service]

    async def hearts(self) -> None:
        while True:
            for shepherd in self.shepherds.values():
                if shepherd.up and not shepherd.silent:
                    facts: dict[str, object] = {"replicas": len(shepherd.replicas), "compared": shepherd.compared}
                    facts |= {"arriving": shepherd.arriving, **self.space(shepherd)}
                    facts |= {"copies_at_once_max": shepherd.copies_at_once_max}
                    try:
                        await self.b.beat(shepherd.id, **facts)
                    except CheloniaError as error:
                        if error.kind is not Kind.NETWORK:  # out of reach are the metadata: it beats again
                            raise
            while self.reports:
                own, told = self.reports.pop(0)
                await self.b.report(own, told)
            await asyncio.sleep(0.3)

    def space(self, shepherd: PaperShepherd) -> dict[str, int]:
        used = len(shepherd.replicas) * FILE_BYTES
        return {"total_bytes": self.disk_bytes, "free_bytes": self.disk_bytes - used} if self.disk_bytes else {}

    async def upload(self, name: str, copies: int = 2, **facts: object):  # type: ignore[no-untyped-def]
        guid, blob = await self.b.file(name, copies=copies, **facts)
        for shepherd in self.b.shepherds[:copies]:
            self.shepherds[shepherd].replicas[ReferenceId(f"{blob}@{shepherd}")] = blob
        return guid, blob

    async def until(self, what: Callable[[], Awaitable[bool]], limit_ms: int = 20_000) -> int:
        """Virtual milliseconds until `what` holds."""
        begun = asyncio.get_running_loop().time()
        while not await what():
            spent = (asyncio.get_running_loop().time() - begun) * 1000
            assert spent < limit_ms, await self.b.everything()
            await asyncio.sleep(0.02)
        return round((asyncio.get_running_loop().time() - begun) * 1000)

    def holding(self, blob: BlobId) -> list[ServiceId]:
        return [s.id for s in self.shepherds.values() if s.up and blob in s.replicas.values()]

    async def states(self, blob: BlobId) -> list[str]:
        return sorted((await self.b.locations(blob)).values())

    async def held_twice(self, *blobs: BlobId) -> bool:
        return all(len(self.holding(blob)) == 2 for blob in blobs)

    async def settled(self, *blobs: BlobId, copies: int) -> bool:
        return all([await self.states(blob) == ["alive"] * copies for blob in blobs])


@asynccontextmanager
async def paper(
    shepherds: int = 5, settings: LibrarianSettings | None = None, wrap: Callable[[AHash], AHash] | None = None
) -> AsyncIterator[Paper]:
    cluster = Paper()
    async with bench(shepherds, settings, VirtualClock(), cluster, wrap) as b:
        cluster.b = b
        cluster.shepherds = {s: PaperShepherd(cluster, s) for s in b.shepherds}
        tasks = [asyncio.create_task(work) for work in (b.service.run(), cluster.hearts())]
        try:
            yield cluster
        finally:
            await b.service.stop()
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [e for e in done if e is not None and not isinstance(e, asyncio.CancelledError)] == []
