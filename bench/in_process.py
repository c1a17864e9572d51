"""Writers in the process of the master itself: the gain when many commit together, without a client's share.

Two of three replicas are processes of `cheloniad dev`. This process serves the third, which hosts nothing else, from
that replica's own configuration and over the same mutual TLS, as `cheloniad run` would. It is made the master.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import cluster
from ahash_group import SETTLED_S, Doors, Victims, roles, urls
from experiment import SHORT_TIMES, Outcome, Setup
from intervals import Check, check
from slices import Ask, Sample, medians, sampled

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ObjectId, RequestKey, ServiceId
from chelonia.core.ports.ahash import AHashStatus, ChangeType, Element
from chelonia.hosting.ahash_replica import HostedPeer, PeerSurroundings, host_replica, page_scrub, settings_of
from chelonia.hosting.cheloniad import COLLECT_AFTER, SWITCH_S
from chelonia.hosting.config import load_config
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.tls import TlsSettings, TlsStore

AT_ONCE = (1, 8, 64)
VALUE = "v" * 500
SLICE_S, QUICK_SLICE_S = 0.3, 0.2
HOSTED = 2
"""Which of the three is served here: in a cluster of `cheloniad dev` the last has no Librarian and no Bartender."""


async def run(setup: Setup) -> Outcome:
    """Measure the rates of 1, 8 and 64 writers in turn."""
    samples: dict[int, list[Sample]] = {at_once: [] for at_once in AT_ONCE}
    async with cluster.dev(setup.scratch, 0, replicas=3) as running, Doors(running) as door:
        await roles(running, door)
        victims = Victims(running)
        addresses = urls(running)
        own = addresses.pop(HOSTED)
        pid = victims.pid(own)
        victims.kill(own)
        while Path(f"/proc/{pid}").exists():  # it has the directory open until it is gone
            await asyncio.sleep(0.01)
        try:
            with _as_a_daemon():
                async with _served(running) as (replica, call):
                    await _made_master(replica, call, victims, addresses)
                    pids = tuple(victims.pid(url) for url in addresses)
                    for block in range(setup.blocks if setup.quick else setup.blocks * SHORT_TIMES):
                        for at_once in AT_ONCE[:: 1 if block % 2 == 0 else -1]:
                            seconds = QUICK_SLICE_S if setup.quick else SLICE_S
                            samples[at_once].append(await sampled(_write(replica, call), pids, at_once, seconds))
        finally:
            victims.stop()
    checks = [_bar(samples)]
    for line in checks:
        setup.say(f"  {line}")
    figures = {at_once: {name: str(found) for name, found in medians(samples[at_once]).items()} for at_once in AT_ONCE}
    return Outcome({"in_process": figures}, checks)


def _bar(samples: dict[int, list[Sample]]) -> Check:
    gains = [many.per_s / one.per_s for many, one in zip(samples[64], samples[1], strict=True)]
    return check("in the master's process, 64 writers / 1, rate", "at least", 6.0, gains)


def _write(replica: HostedPeer, call: Call) -> Ask:
    async def write(key: str) -> None:
        element = Element(ObjectId(f"bench:{key}"), ChangeType.SET, "bench", "value", VALUE)
        await replica.ahash.transact(call, RequestKey(""), (element,))

    return write


@contextmanager
def _as_a_daemon() -> Iterator[None]:
    """Threads and the collector as `cheloniad run` has them."""
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(COLLECT_AFTER)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(switch_s)


@asynccontextmanager
async def _served(running: cluster.Running) -> AsyncIterator[tuple[HostedPeer, Call]]:
    """Serve the replica whose process was killed, on its directory; yields it and the call that the node itself
    uses."""
    config = load_config(running.description.parent / "conf" / f"core{HOSTED + 1}.toml")
    section, clock = config.ahash, SystemClock()
    assert section is not None
    files = TlsSettings(Path(config.tls.cert), Path(config.tls.key), ca_dir=Path(config.tls.ca_dir))
    tls = TlsStore(files, clock.now_ms)
    assert tls.own_identity is not None
    dn = tls.own_identity.dn
    around = PeerSurroundings(dn, tls, clock, SystemIds(), Horizon(), page_scrub(section, clock))
    replica = await host_replica(section, settings_of(section), around)
    task = asyncio.create_task(replica.run())
    try:
        yield replica, Call(dn, (Role.LIBRARIAN,), ServiceId(section.id))
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await replica.close()


async def _made_master(replica: HostedPeer, call: Call, victims: Victims, others: list[str]) -> None:
    """Kill masters until it is this one, and all three are well."""
    give_up = time.monotonic() + 2 * SETTLED_S
    while time.monotonic() < give_up:
        status = await _whole(replica, call, give_up)
        if status.role == "master":
            return
        master = next(view.replica for view in status.replicas if view.role == "master")
        url = others[master - 1]  # replicas count from 1, and the one that is served here is the last
        victims.kill(url)
        victims.start(url)
    raise SystemExit("the replica in this process did not become master")


async def _whole(replica: HostedPeer, call: Call, give_up: float) -> AHashStatus:
    """Its status, once there is a master, all replicas are there, and the master (if it is this one) misses nothing."""
    found = ""
    while time.monotonic() < give_up:
        try:
            status = await replica.ahash.status(call)
        except CheloniaError as error:
            found = str(error)
        else:
            seen = {view.role for view in status.replicas}
            found = f"{status.role}, {sorted(seen)}"
            behind = any(view.lag != 0 for view in status.replicas) if status.role == "master" else False
            if "master" in seen and "away" not in seen and not behind and status.role in ("master", "client"):
                return status
        await asyncio.sleep(0.1)
    raise SystemExit(f"the replicas did not settle: {found}")
