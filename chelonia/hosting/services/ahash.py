"""An A-Hash in a node, alone or as one replica of a group: its store, its scrub of pages and its gauges."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chelonia.ahash.group.service import ReplicatedAHash
from chelonia.ahash.service import BRIEF, AHashService
from chelonia.ahash.store import meta
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.page_scrub import PageScrub
from chelonia.ahash.store.port import LocalDurability
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.core.caller import Role
from chelonia.core.values import replace
from chelonia.hosting.ahash_replica import (
    REPLACE,
    RESTORE,
    PeerSurroundings,
    end,
    host_replica,
    leave_group,
    page_scrub,
    set_gauges,
    settings_of,
    store_settings,
    unready,
)
from chelonia.hosting.config import AHashSection
from chelonia.hosting.doors.compact_server import offer
from chelonia.hosting.doors.soap_door import SoapDoor
from chelonia.hosting.services.hosting_node import HostingNode
from chelonia.wire.operations.ahash import AHASH


async def host(node: HostingNode, section: AHashSection) -> None:
    """Serve an A-Hash, or one replica of it. Raises: CheloniaError when it cannot start."""
    scrub = page_scrub(section, node.clock)
    ahash: ReplicatedAHash | AHashService
    if section.replica_id:
        ahash = await _host_replica(node, section, scrub)
    else:
        ahash = await _host_alone(node, section, scrub)
    if scrub.on:
        cure = REPLACE if section.replica_id else RESTORE
        node.forever("page scrub", lambda: scrub.run(cure, node.ids.uniform()))
    node.ahash = ahash
    node.metrics.count(ahash.limits)
    node.all_jobs.append(("ahash", lambda: ahash.jobs))
    node.doors["ahash"] = SoapDoor(AHASH, ahash, section.id, node.soap).serve
    node.offered |= offer(AHASH.table, ahash, BRIEF, ahash.at_once)
    call = node.own(Role.LIBRARIAN, section.id)

    async def check() -> None:
        status = await ahash.status(call)
        set_gauges(node.metrics, status)
        node.metrics.gauge("ahash_commits", "Commits of the A-Hash in this generation.", status.position.sequence)
        node.metrics.gauge("ahash_free_bytes", "Space left for the A-Hash.", status.free_bytes)
        node.metrics.gauge("ahash_writable", "Whether this A-Hash takes changes.", status.writable)
        if status.replica:
            unready(status)

    node.readiness.add("ahash", check)


async def _host_alone(node: HostingNode, section: AHashSection, scrub: PageScrub) -> AHashService:
    leave_group(Path(section.data_dir))
    store = await asyncio.to_thread(BdbStore, Path(section.data_dir), store_settings(section), node.panicked)
    settings = settings_of(section)
    if not settings.cluster and not meta.is_prepared(store):  # a new store, of no configured cluster, begins one
        settings = replace(settings, cluster=node.ids.uuid())
    executor = ThreadExecutor(goes_round=end(RESTORE))
    ahash = AHashService(store, executor, node.clock, settings, LocalDurability(node.horizon))
    await ahash.start()
    ahash.pages_seen = scrub.seen
    node.closers.append(ahash.close)
    node.keep("ahash", ahash.run())
    return ahash


async def _host_replica(node: HostingNode, section: AHashSection, scrub: PageScrub) -> ReplicatedAHash:
    around = PeerSurroundings(node.dn, node.tls, node.clock, node.ids, node.horizon, scrub, node.config.trust.issuers)
    replica = await host_replica(section, settings_of(section), around)
    node.closers.append(replica.close)
    node.all_jobs.append(("ahash", lambda: replica.jobs))
    node.keep("ahash", replica.ahash.run())
    return replica.ahash
