"""A Shepherd in a node: its disk, its threads, its gauges and its two doors."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path

from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.timing.freezes import still_after_ms
from chelonia.hosting.config import ShepherdSection
from chelonia.hosting.doors.compact_server import offer
from chelonia.hosting.doors.data_door import DataDoor
from chelonia.hosting.doors.soap_door import SoapDoor
from chelonia.hosting.services.hosting_node import HostingNode
from chelonia.hosting.signer import load_signer
from chelonia.hosting.thread_pool import ThreadWorker
from chelonia.hosting.transfer.push import HttpTransfers
from chelonia.shepherd.node import ShepherdPorts
from chelonia.shepherd.service import ShepherdService
from chelonia.shepherd.settings import ShepherdSettings
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia.shepherd.store.store_state import StateFile
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.soap import Capacity


async def host(node: HostingNode, section: ShepherdSection) -> None:
    """Serve a Shepherd. Raises: CheloniaError when it cannot start."""
    root, own_id = Path(section.data_dir), ServiceId(section.id)
    settings = ShepherdSettings(
        service_id=own_id, base_url=section.data_url, dn=node.dn, version=version("chelonia"), **section.tuning
    )
    worker = ThreadWorker(node.config.node.worker_threads, "hash")
    small, reserve = settings.segment_replica_bytes_max, settings.min_free_bytes
    blobs = await asyncio.to_thread(LocalBlobs, root, min_free_bytes=reserve, small_bytes_max=small)
    librarians = node.librarian or node.remote_librarians(section.librarians, own_id)
    ports = ShepherdPorts(
        blobs=blobs,
        state_file=StateFile(root / "state.json"),
        librarians=librarians,
        transfers=HttpTransfers(node.client),
        signer=load_signer(Path(node.config.tls.key)),
        worker=worker,
        clock=node.clock,
        ids=node.ids,
        each_librarian=node.each_librarian(section.librarians, own_id),
        limits=node.metrics.limits,
        moved=node.metrics.data,
    )
    shepherd = ShepherdService(ports, settings)
    node.guard(lambda: still_after_ms(shepherd.lease_ms, settings.heartbeat_ms))
    await shepherd.start()
    shepherd.jobs.add(blobs.job())
    node.farewells.append(shepherd.leave)

    node.closers.append(lambda: _close(shepherd, blobs, worker))
    node.keep("shepherd", shepherd.run())
    node.all_jobs.append(("shepherd", lambda: shepherd.jobs))
    node.directory.host(own_id, shepherd)
    call = node.own(Role.LIBRARIAN, section.id)

    async def capacity() -> Capacity:
        status = await shepherd.status(call)
        return Capacity(status.free_bytes, status.total_bytes)

    async def check() -> None:
        status = await shepherd.status(call)
        node.metrics.gauge(
            "shepherd_disk_present", "Whether this Shepherd's store is there and its own.", not status.trouble
        )
        if shepherd.unready:
            raise CheloniaError(Kind.UNAVAILABLE, "shepherd", own_id, shepherd.unready)
        node.metrics.gauge("shepherd_replicas", "Replicas on this Shepherd.", status.replicas)
        node.metrics.gauge("shepherd_free_bytes", "Space left for replicas.", status.free_bytes)
        node.metrics.gauge("shepherd_quarantined", "Replicas set aside.", status.quarantined)
        node.metrics.gauge("shepherd_damaged", "Replicas found damaged since the start.", status.damaged)
        pages = shepherd.inventory_pages
        node.metrics.gauge("shepherd_inventory_pages", "Pages of its inventory compared since the start.", pages)
        failed = shepherd.erasures_failed
        node.metrics.gauge("shepherd_erasures_failed", "Tries to erase that failed since the start.", failed)
        for name in ("quarantined_bytes", "unfinished_bytes"):
            node.metrics.gauge(f"shepherd_{name}", f"Space that could be had back: {name}.", getattr(status, name))

    node.readiness.add("shepherd", check)
    node.offered |= offer(SHEPHERD.table, shepherd)
    node.doors["shepherd"] = SoapDoor(SHEPHERD, shepherd, section.id, node.soap, capacity).serve
    node.doors["turl"] = DataDoor(shepherd, node.registry, node.metrics).serve


async def _close(shepherd: ShepherdService, blobs: LocalBlobs, worker: ThreadWorker) -> None:
    failure: Exception | None = None
    try:
        await shepherd.stop()  # cancelled where the disk hangs: then closing the store would wait for it, too
    except Exception as error:  # else the next start takes this end for a crash, and reads all that is in segments
        failure = error
    await asyncio.to_thread(blobs.close)
    worker.close()
    if failure is not None:
        raise failure
