"""The A-Hash as its clients see it: alone, as three replicas, at the master and through another, beside etcd.

Every system is one process or three on this machine, with durable writes and mutual TLS. The client is one Python
process with 1, 8 or 64 requests at once and 500-byte values. It sends SOAP, as anybody may, and the compact encoding,
as Librarians do: the bars of one writer and one reader hold for both. All systems run throughout, and are measured in
turn within each block.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import ahash_faults
import cluster
import etcd
import in_process
from ahash_group import Doors, roles, urls
from experiment import SHORT_TIMES, Outcome, Setup
from intervals import Check, check
from slices import Sample, medians, sampled

from chelonia.core.caller import Call
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.metadata import Needed
from chelonia.core.ports.ahash import AHash, ChangeType, Element

AT_ONCE = (1, 8, 64)
VALUE = "v" * 500
SLICE_S, QUICK_SLICE_S = 0.3, 0.2
READ = (Needed("bench", "value"),)

Act = Callable[[str], Awaitable[Any]]
"""One operation on one key."""


@dataclass(frozen=True, slots=True)
class System:
    """One system and its requests: a write, a read of the newest value, and a read of one member's own value."""

    name: str
    pids: tuple[int, ...]
    write: Act
    strong: Act
    local: Act

    @property
    def operations(self) -> Mapping[str, Act]:
        return {"write": self.write, "strong": self.strong, "local": self.local}


Samples = dict[tuple[str, str, int], list[Sample]]
"""By system, operation and how many at once; one sample a block."""


async def run(setup: Setup) -> Outcome:
    """Measure rates in turn, then those of writers in the master's own process, then outages."""
    skipped: list[str] = []
    async with AsyncExitStack() as stack:
        systems = await _systems(stack, setup, skipped)
        samples = await _blocks(setup, systems)
    checks, results = _bars(samples), _figures(samples)
    for line in checks:
        setup.say(f"  {line}")
    inside, faults = await in_process.run(setup), await ahash_faults.run(setup)
    results = {"rates": results, **inside.results, **faults.results}
    return Outcome(results, [*checks, *inside.checks, *faults.checks], faults.charts, skipped)


async def _systems(stack: AsyncExitStack, setup: Setup, skipped: list[str]) -> list[System]:
    alone = await stack.enter_async_context(cluster.dev(setup.scratch, 0, replicas=1))
    group = await stack.enter_async_context(cluster.dev(setup.scratch, 0, replicas=3))
    door = await stack.enter_async_context(Doors(group))
    master, others = await roles(group, door)
    single = await stack.enter_async_context(Doors(alone))
    [only] = urls(alone)
    systems: list[System] = []
    for encoding, soap in (("compact", False), ("soap", True)):
        systems.append(_chelonia(f"alone, {encoding}", alone, single.at(only, soap=soap), soap=soap))
        systems.append(_chelonia(f"three at the master, {encoding}", group, door.at(master, soap=soap), soap=soap))
        systems.append(_chelonia(f"three through another, {encoding}", group, door.at(others[0], soap=soap), soap=soap))
    try:
        systems.append(await _etcd(stack, setup, alone))
    except etcd.NoEtcd as error:
        skipped.append(f"ahash: NOT COMPARED WITH etcd: {error}")
    return systems


def _chelonia(name: str, running: cluster.Running, ahash: AHash, *, soap: bool) -> System:
    async def write(key: str) -> None:
        element = Element(ObjectId(f"bench:{key}"), ChangeType.SET, "bench", "value", VALUE)
        if soap:  # which has the original's operations alone
            await ahash.change(Call(), (element,))
        else:
            await ahash.transact(Call(), RequestKey(""), (element,))

    def reading(call: Call) -> Act:
        async def read(key: str) -> None:
            (found,) = await ahash.get(call, (ObjectId(f"bench:{key}"),), READ)
            assert found.value("bench", "value") == VALUE

        return read

    return System(name, running.pids(), write, reading(Call().strongly()), reading(Call()))


async def _etcd(stack: AsyncExitStack, setup: Setup, alone: cluster.Running) -> System:
    certs = alone.description.parent / "certs"
    ca = next(path for path in sorted((certs / "certificates").iterdir()) if path.suffix == ".0")
    told = json.loads(alone.description.read_text())
    credentials = etcd.Credentials(Path(told["service_cert"]), Path(told["service_key"]), ca)
    group = stack.enter_context(etcd.group(setup.scratch, credentials))
    member = await stack.enter_async_context(etcd.client(group, await etcd.leader(group)))

    async def read(key: str, *, strong: bool) -> None:
        assert VALUE.encode() in await member.get(key.encode(), strong=strong)

    return System(
        "etcd, three at the leader",
        group.pids(),
        lambda key: member.put(key.encode(), VALUE.encode()),
        lambda key: read(key, strong=True),
        lambda key: read(key, strong=False),
    )


async def _blocks(setup: Setup, systems: list[System]) -> Samples:
    samples: Samples = {}
    for system in systems:
        for number in range(max(AT_ONCE)):
            await system.write(str(number))
    seconds = QUICK_SLICE_S if setup.quick else SLICE_S
    for block in range(setup.blocks if setup.quick else setup.blocks * SHORT_TIMES):
        for operation, at_once in product(systems[0].operations, AT_ONCE):  # what is compared stands side by side
            for system in systems[:: 1 if block % 2 == 0 else -1]:
                sample = await sampled(system.operations[operation], system.pids, at_once, seconds)
                samples.setdefault((system.name, operation, at_once), []).append(sample)
        told = ", ".join(f"{system.name} {samples[system.name, 'write', 1][-1].per_s:.0f}" for system in systems)
        setup.say(f"  block {block + 1}: one writer: {told} /s")
    return samples


def _bars(samples: Samples) -> list[Check]:
    def ratio(above: tuple[str, str, int], below: tuple[str, str, int], of: str) -> list[float]:
        return [getattr(a, of) / getattr(b, of) for a, b in zip(samples[above], samples[below], strict=True)]

    checks: list[Check] = []
    for encoding in ("soap", "compact"):
        alone, master, other = (
            f"{who}, {encoding}" for who in ("alone", "three at the master", "three through another")
        )
        for what, operation, system, bar in (
            ("write, p50: three at the master / alone", "write", master, 2.0),
            ("write, p50: three through another / alone", "write", other, 2.6),
            ("read, p50: three at the master / alone", "local", master, 1.25),
            ("read, p50: three at another / alone", "local", other, 1.25),
        ):
            waits = ratio((system, operation, 1), (alone, operation, 1), "p50_ms")
            checks.append(check(f"{encoding}: {what}", "at most", bar, waits))
    master = "three at the master, compact"
    soap = "three at the master, soap"
    for at_once, bar in ((8, 2.0), (64, 2.0)):
        rates = ratio((soap, "write", at_once), (soap, "write", 1), "per_s")
        checks.append(check(f"SOAP, {at_once} writers / 1, rate", "at least", bar, rates))
    rival = "etcd, three at the leader"
    if (rival, "write", 1) in samples:
        for operation, bars in (("write", (1.0, 2.0, 2.0)), ("strong", (2.0,) * 3), ("local", (3.0,) * 3)):
            for at_once, bar in zip(AT_ONCE, bars, strict=True):
                rates = ratio((master, operation, at_once), (rival, operation, at_once), "per_s")
                what = f"{operation}, {at_once} at once: three at the master / etcd, rate"
                checks.append(check(what, "at least", bar, rates))
    return checks


def _figures(samples: Samples) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for (system, operation, at_once), parts in samples.items():
        found = {name: str(interval) for name, interval in medians(parts).items()}
        out.setdefault(system, {}).setdefault(operation, {})[at_once] = found
    return out
