"""A Librarian in a node: its A-Hash beside it or elsewhere, its jobs and its gauges."""

from __future__ import annotations

from chelonia.core.caller import Role
from chelonia.core.ids import Dn, ServiceId
from chelonia.hosting.config import LibrarianSection, trusted
from chelonia.hosting.doors.compact_server import offer
from chelonia.hosting.doors.soap_door import SoapDoor
from chelonia.hosting.event_loop_watch import LoopLag
from chelonia.hosting.neighbours import HttpNeighbours, heartbeats_end
from chelonia.hosting.net.rpc_client import remote_ahash
from chelonia.hosting.record_key import load_record_key, save_record_key
from chelonia.hosting.services.hosting_node import HostingNode
from chelonia.hosting.signer import KeyVerifier
from chelonia.hosting.transfer.push import HttpTransfers
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from chelonia.wire.operations.librarian import LIBRARIAN


async def host(node: HostingNode, section: LibrarianSection) -> None:
    """Serve a Librarian, once its A-Hash answers. Raises: CheloniaError when it cannot start."""
    tuning = dict(section.tuning)
    admins = node.config.trust.administrators
    tuning.setdefault("root_owner", Dn(admins[0] if admins else ""))
    record_key = load_record_key(section.record_key_file)
    settings = LibrarianSettings(bootstrap=trusted(node.config), record_key=record_key, **tuning)
    neighbours, carrier, loop_lag = HttpNeighbours(node.link), HttpTransfers(node.client), LoopLag()
    around = (neighbours, carrier, loop_lag, node.metrics.limits)
    world = World(node.directory, KeyVerifier(), node.clock, node.ids, settings, *around)
    ahash = node.ahash or remote_ahash(node.link, section.ahash)
    librarian = LibrarianService(ahash, LibrarianIdentity(node.dn, ServiceId(section.id)), world)
    if not await node.persist("librarian", librarian.start):
        return
    save_record_key(section.record_key_file, librarian.record_key)
    node.closers.append(librarian.stop)
    node.forever("event loop watch", loop_lag.run)
    node.keep("librarian", librarian.run())
    node.all_jobs.append(("librarian", lambda: librarian.jobs))
    node.metrics.keep(
        "transacts", "Transacts that applied, by the job or operation that they were made for.", ("cause",),
        lambda: {(cause,): count for cause, count in librarian.written.items()},
    )  # fmt: skip
    node.librarian = librarian
    ended = heartbeats_end(librarian.suspect)
    node.offered |= offer(LIBRARIAN.table, librarian)
    node.doors["librarian"] = SoapDoor(LIBRARIAN, librarian, section.id, node.soap, done=ended).serve
    call = node.own(Role.LIBRARIAN, section.id)

    async def check() -> None:
        node.metrics.healing(await librarian.heal_status(call))
        node.metrics.drill((await librarian.drill_status(call)).drill)
        node.metrics.shepherds(await librarian.nodes(call))
        health = await librarian.health(call)
        node.metrics.gauges("replicas", "Replicas by state, as the namespace has them.", "state", health.replicas)
        for name in ("exposed", "queued", "copying", "erasing", "held_back"):
            node.metrics.gauge(f"repair_{name}", f"Repair as this Librarian sees it: {name}.", getattr(health, name))

    node.readiness.add("librarian", check)
