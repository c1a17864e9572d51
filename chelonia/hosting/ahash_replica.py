"""One replica of a replicated A-Hash in a node: its engine, its links over mutual TLS, its gauges.

It binds and never decides: the protocol of `chelonia/ahash` elects the master, which fills an empty directory that
joins. Only a store from `found_store`, or of an A-Hash that ran alone, begins a group.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.mastership import Mastership
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.service import PeerParts, ReplicatedAHash
from chelonia.ahash.group.transport_replication import HANDSHAKE_S, LinkIdentity, LinkTrust, ReplicationLinks
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import meta
from chelonia.ahash.store.bdb.damaged import open_replica
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.files import PeerIdentity, last_counted, read_lease, write_lease
from chelonia.ahash.store.bdb.page_files import LogFiles, PageFile
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.page_scrub import PageScrub, ScrubPace
from chelonia.ahash.store.store_threads import REPLICATION_ROUND_S, ThreadExecutor
from chelonia.core import bounds
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.limits import LimitCounts
from chelonia.core.ports.ahash import AHashStatus
from chelonia.core.timing.clock import Clock, Ids
from chelonia.core.timing.jobs import Job, Jobs, Next, Wait
from chelonia.hosting.config import AHashSection, cache_problems
from chelonia.hosting.doors.listening import ListeningSockets
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.tls import ClientCertificate, TlsStore

_LOG = logging.getLogger(__name__)

NONCE_BYTES = 16
REPLACE = "Replace this replica: stop it, move its directory away, start it on an empty one, and the others fill it"
REFILL = "The next start begins with an empty store, and the others fill it: look at its disk"
RESTORE = "Put a backup in its place (cheloniad restore-ahash), and look at the disk"
HANGS_MS = 60_000
"""A commit that takes longer than this hangs: the kernel gives up a disk's command after 30 s."""
UPKEEP_HANGS_MS = 300_000
"""A checkpoint that takes longer than this hangs: 32 000 changed pages, all of the usual cache, at 200 a second take
160 s."""
LOOK_MS = 1_000
LAST_WORDS_S = 1.0
"""Time for the log to say why the process ends: its file may be on the disk that hangs."""


@dataclass(frozen=True, slots=True)
class PeerSurroundings:
    """The parts of its node that a replica needs. `scrub`: of its pages."""

    dn: Dn
    tls: TlsStore
    clock: Clock
    ids: Ids
    horizon: Horizon
    scrub: PageScrub
    issuers: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class HostedPeer:
    """A started replica. The caller runs `ahash`, and `close` at the end; `jobs` run by themselves."""

    ahash: ReplicatedAHash
    close: Callable[[], Awaitable[None]]
    jobs: Jobs


async def host_replica(section: AHashSection, settings: AHashSettings, around: PeerSurroundings) -> HostedPeer:
    """Open the store, begin as a follower, listen for the other replicas.

    Raises: BAD_CONFIG (another replica's directory, a certificate of another name), UNAVAILABLE, INTERNAL, OSError.
    """
    own = next(entry for entry in section.replicas if entry.id == section.replica_id)
    if own.dn != around.dn:
        cause = f"this node's certificate is {around.dn}, ahash.replicas says {own.dn}: renew with the same subject"
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", f"replica {own.id}", cause)
    identity = PeerIdentity(own.id, settings.cluster, around.dn)
    executor, engine = await open_watched(
        Path(section.data_dir), store_settings(section), identity, others=len(section.replicas) > 1
    )
    executor.watch(engine.replication)
    pace = ProtocolPeriods.over(settings.round_trip_ms)
    mastership = Mastership(own.id, engine, executor, around.clock, pace)
    parts = PeerParts(engine, executor, around.clock, settings, around.horizon, around.scrub.seen)
    ahash = ReplicatedAHash(mastership, parts)
    members = configured(section)
    link_identity = LinkIdentity(own.id, settings.cluster, around.ids.token(NONCE_BYTES), settings.round_trip_ms)
    trust = trust_of(around.tls, around.issuers, ahash.limits)
    links = ReplicationLinks(link_identity, members, trust, mastership, around.clock)

    async def close() -> None:
        await ahash.close()
        await links.close()

    try:
        await outlive_grants(Path(section.data_dir) / "lease", pace, around.clock)
        await ahash.start(links, members)
        await links.start(section.replica_listen, own.port)
    except BaseException:
        await close()
        raise
    links.jobs.add(disk_watch(lambda: ahash.committing_ms, lambda: ahash.upkeep_ms))
    return HostedPeer(ahash, close, links.jobs)


def disk_watch(committing_ms: Callable[[], int], upkeep_ms: Callable[[], int]) -> Job:
    """Return the job that ends the process of a master whose disk hangs."""
    # Such a master still sends heartbeats: the others would follow it, and no change would be answered.

    async def look() -> Next:
        waits = (("change", committing_ms(), HANGS_MS), ("checkpoint", upkeep_ms(), UPKEEP_HANGS_MS))
        for what, still_ms, hangs_ms in waits:
            if still_ms >= hangs_ms:
                leave(
                    f"the A-Hash's disk has not taken a {what} for {still_ms // 1000} s: the process ends, so that "
                    "another replica becomes master. Mend the disk, or what it hangs on (see the kernel's log)"
                )
        return Wait(LOOK_MS)

    return Job("look whether commits return", look, Wait(LOOK_MS))


def leave(reason: str) -> NoReturn:
    """Log the reason and end the process at once: an orderly end would never return."""
    threading.Timer(LAST_WORDS_S, os._exit, (1,)).start()
    _LOG.error("%s", reason)
    os._exit(1)


async def open_watched(
    directory: Path, settings: BdbSettings, identity: PeerIdentity, *, others: bool
) -> tuple[ThreadExecutor, ReplicatedStore]:
    """Open a replica's store; a search in it that goes round ends the process. Raises: as `open_replica`."""
    executor = ThreadExecutor(goes_round=end(REFILL if others else RESTORE))

    def opened(goes_on: Callable[[], None]) -> ReplicatedStore:
        return open_replica(directory, settings, identity, others=others, goes_on=goes_on)

    try:
        return executor, await executor.run_watched(opened, REPLICATION_ROUND_S)
    except BaseException:
        await executor.close()
        raise


async def outlive_grants(path: Path, pace: ProtocolPeriods, clock: Clock) -> None:
    """Wait out a lease of an earlier process that is longer than this one's. Raises: OSError.

    A process that starts remembers no grants, so it is bound for one lease of its own.
    """
    before = await asyncio.to_thread(read_lease, path)
    if before is None:
        before = ProtocolPeriods.over(bounds.ROUND_TRIP_MS_MAX).lease_ms
    if before > pace.lease_ms:
        await clock.sleep(before)
    if before != pace.lease_ms:
        await asyncio.to_thread(write_lease, path, pace.lease_ms)


def end(cure: str) -> Callable[[str], NoReturn]:
    """Return a function that ends the process, for a search in its store that goes round."""

    def ended(thread: str) -> NoReturn:
        leave(
            f"{thread} goes round in a search that comes to no end: a page of the A-Hash's store is empty. The process "
            f"ends, and the next start reads all pages. {cure}"
        )

    return ended


def settings_of(section: AHashSection) -> AHashSettings:
    """Return the A-Hash's settings."""
    return AHashSettings(backup_dir=section.backup_dir, **section.tuning)


def store_settings(section: AHashSection) -> BdbSettings:
    """Return the store's settings. Raises: BAD_CONFIG when this host has too little memory for them."""
    for problem in cache_problems(section):
        raise problem
    return BdbSettings(cache_bytes=settings_of(section).cache_bytes)


def page_scrub(section: AHashSection, clock: Clock) -> PageScrub:
    """Return the scrub of the files of an A-Hash's store; the caller runs it if it is on."""
    settings = settings_of(section)
    pace = ScrubPace(settings.page_scrub_interval_ms, settings.page_scrub_bytes_per_s_max)
    directory = Path(section.data_dir)
    return PageScrub(PageFile(directory), LogFiles(directory), clock, pace, asyncio.to_thread)


def configured(section: AHashSection) -> Membership:
    """Return the group as configured, valid until the store holds a record. Only the lowest id has a vote."""
    first = min(entry.id for entry in section.replicas)
    entries = sorted(section.replicas, key=lambda entry: entry.id)
    members = tuple(Member(e.id, Dn(e.dn), f"{e.host}:{e.port}", e.id == first) for e in entries)
    return Membership(1, members, entries[-1].id + 1)


def trust_of(tls: TlsStore, issuers: Collection[str] = (), notes: LimitCounts | None = None) -> LinkTrust:
    """Return the TLS of links.

    Args: `issuers`: the CAs whose certificates members have (empty: any); `notes`: counts refused connections.
    """

    def identify(connection: ssl.SSLObject) -> Dn:
        identity = tls.identify(connection)
        if issuers and identity.issuer not in issuers:
            raise CheloniaError(Kind.UNTRUSTED, "identify", identity.dn, f"{identity.issuer} is not in [trust] issuers")
        return identity.dn

    def listener(protocol: Callable[[], asyncio.BaseProtocol]) -> ListeningSockets:
        context = tls.server_context(ClientCertificate.REQUIRED)
        return ListeningSockets(protocol, context, int(1000 * HANDSHAKE_S), notes)

    return LinkTrust(listener, tls.client_context(), identify)


def found_store(directory: Path, cluster: str) -> None:
    """Make the store with which a group begins. Raises: BAD_CONFIG, EXISTS when the directory holds anything."""
    if directory.exists() and any(directory.iterdir()):
        cause = "it is not empty: a group is founded once, on one replica, in a new directory"
        raise CheloniaError(Kind.EXISTS, "found", str(directory), cause)
    store = BdbStore(directory, BdbSettings(), _cannot_go_on)
    try:
        meta.prepare(store, cluster)
    finally:
        store.close()


def founded_only(directory: Path) -> str:
    """Return the cluster of a store that was founded and never used since; empty for anything else.

    Raises: UNAVAILABLE when a process has it open; INTERNAL when it is damaged.
    """
    if (directory / "replica").exists() or not (directory / "commits").exists():
        return ""
    if last_counted(directory / "commits") != meta.FOUNDED:
        return ""
    store = BdbStore(directory, BdbSettings(), _cannot_go_on)
    try:
        here = meta.read_position(store)  # the counter may be behind
        return here.cluster if (here.generation, here.sequence) == meta.FOUNDED else ""
    finally:
        store.close()


def leave_group(directory: Path) -> None:
    """Make sure that an A-Hash alone may open a directory. Raises: BAD_CONFIG for a replica's of a group.

    The group's other replicas may live, and would miss what is written here. A directory marked `restored` begins a
    new generation, which belongs to no group.
    """
    if not (directory / "replica").exists():
        return
    if not (directory / "restored").exists():
        cause = (
            "this directory is that of a replica of a group: name the group in [ahash], or, when no other replica runs "
            "any more, put the empty file `restored` into it to begin anew"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", str(directory), cause)
    for name in ("replica", "acked"):
        (directory / name).unlink(missing_ok=True)


def _cannot_go_on(reason: str) -> None:
    raise CheloniaError(Kind.INTERNAL, "found", cause=reason)


def set_gauges(metrics: Metrics, status: AHashStatus) -> None:
    """Set the gauges of a replica."""
    metrics.gauge("ahash_master", "Whether this replica of the A-Hash is master.", status.role == "master")
    metrics.gauge("ahash_term", "The mastership that this replica holds or follows (0: none).", status.term)
    metrics.gauge("ahash_terms_begun", "Terms of this replica since its start.", status.terms_begun)
    metrics.gauge("ahash_lease_stretch", "How many times as long as usual its leases last.", status.lease_stretch)
    parted = sum(view.role == "parted" for view in status.replicas)
    metrics.gauge("ahash_replicas_parted", "Replicas whose acknowledged changes are not here, nor ours there.", parted)
    away = sum(view.role == "away" for view in status.replicas)
    metrics.gauge("ahash_replicas_away", "Replicas of the group without a connection to this one.", away)
    metrics.gauge("ahash_lease_seconds", "What is left of this master's lease.", status.lease_ms / 1000)
    metrics.gauge("ahash_elected_seconds", "When this replica last became master, Unix time.", status.elected_ms / 1000)
    if status.pages is not None:
        seen = status.pages
        metrics.gauge("ahash_pages", "Pages of the A-Hash's store.", seen.pages)
        metrics.gauge("ahash_pages_checked", "Of these checked in the present or last round.", seen.checked)
        metrics.gauge("ahash_pages_damaged", "Damaged pages and log files: replace this replica.", seen.damaged)
        if seen.ended_ms:  # 0 after a start would look like a scrub that has stood still for fifty years
            metrics.gauge("ahash_pages_checked_seconds", "When all were last checked, Unix time.", seen.ended_ms / 1000)
    lags = {view.replica: view.lag for view in status.replicas if view.lag >= 0}  # known to the master alone
    metrics.gauges("ahash_lag_commits", "Commits a replica has yet to confirm.", "replica", lags)
    round_trips_s = {view.replica: view.round_trip_ms / 1000 for view in status.replicas if view.round_trip_ms >= 0}
    metrics.gauges("ahash_round_trip_seconds", "To a replica and back, at least.", "replica", round_trips_s)


def unready(status: AHashStatus) -> None:
    """Check that this replica knows a master. Raises: UNAVAILABLE when requests would only be held here."""
    if not any(view.role == "master" for view in status.replicas):
        away = ", ".join(str(view.replica) for view in status.replicas if view.role == "away") or "none"
        cause = f"replica {status.replica} knows of no master; it does not see: {away}"
        raise CheloniaError(Kind.UNAVAILABLE, "ahash", cause=cause)
