"""The store on the disk under a Shepherd: its identity, and whether it is still there.

A store has an id, made once and kept with the replicas; the cluster records which one each Shepherd has. No bytes are
put on a store before a cluster has admitted it. The directory may be the empty one under a disk that is not mounted.
A disk that goes away is noticed by its identity, by a write that fails, or by a call that does not return. From then on
the Shepherd concludes nothing about its replicas, erases and reports nothing, and its heartbeats say why.
Runbook: docs/operate/when-a-disk-dies.md.
"""

from __future__ import annotations

import logging
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.ports.shepherd import BlobStore, StoreIdentity
from chelonia.core.timing.clock import Ids
from chelonia.core.values import replace

log = logging.getLogger(__name__)

CURE: Final = (
    "mount or put back the right disk; if this one is really to be its store from now on, stop it and run "
    "`cheloniad accept-store`"
)
"""Advice for a directory that is not the expected store."""
FAILS: Final = "its disk fails: "
"""First words of the trouble of a disk that is there."""
MENDS: Final = "mend the disk or what it hangs on (see the kernel's log); it goes on by itself"


class Disk:
    """The store of one Shepherd.

    `trouble`: why nothing can be concluded about the replicas. `refused`: why the cluster refuses this Shepherd.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self.identity = StoreIdentity("", ServiceId(""))
        self.trouble = ""
        self.refused = ""
        self.absences = 0
        """Times it was found to be away: after each, its content may have changed."""

    @property
    def unready(self) -> str:
        """Reason why no bytes are accepted, "" when they are."""
        unknown = "this store is not known to a cluster: no Librarian has answered, or none has it approved"
        return self.trouble or self.refused or ("" if self.identity.cluster else unknown)

    async def open(self, service: ServiceId, ids: Ids) -> None:
        """Read the identity, or give a fresh store one. Raises: BAD_CONFIG when it is another Shepherd's."""
        found = await self._blobs.identity()
        if found is None:
            found = StoreIdentity(ids.uuid(), service)
            await self._blobs.identify(found)
            log.info("store made id=%s", found.store)
        if found.service != service:
            cause = f"this directory is the store of {found.service}, not of {service}; {CURE}"
            raise CheloniaError(Kind.BAD_CONFIG, "open store", found.store, cause)
        self.identity = found

    async def admit(self, cluster: str) -> None:
        """Record that the store belongs to this cluster: one of its Librarians knows it."""
        if cluster and (self.identity.cluster != cluster or self.identity.replaces):
            await self._blobs.identify(replace(self.identity, cluster=cluster, replaces=False))
            self.identity = replace(self.identity, cluster=cluster, replaces=False)

    async def look(self, *, hard: bool = False) -> bool:
        """Check whether the disk is there. `hard`: write to it too, for reads may come from a cache."""
        trouble = await self._found_trouble(hard)
        if trouble and not self.trouble:
            cure = MENDS if trouble.startswith(FAILS) else CURE
            log.error("the store is not there any more: %s; nothing is concluded of its replicas; %s", trouble, cure)
            self.absences += 1
        if not trouble and self.trouble:
            log.info("the store is there again id=%s", self.identity.store)
        self.trouble = trouble
        return not trouble

    async def require(self, *, hard: bool = False) -> None:
        """Require that the disk is there; `hard` as for `look`. Raises: UNAVAILABLE."""
        if not await self.look(hard=hard):
            raise CheloniaError(Kind.UNAVAILABLE, "disk", self.identity.store, self.trouble)

    async def _found_trouble(self, hard: bool) -> str:
        try:
            found = await self._blobs.identity()
            if found is not None and found.store == self.identity.store and (hard or self.trouble):
                await self._blobs.probe()  # a disk that has failed once must prove itself
        except CheloniaError as error:
            return error.cause if error.kind is Kind.BAD_CONFIG else f"{FAILS}{error.cause}"
        if found is None:
            return "its directory is empty"
        if found.store != self.identity.store:
            return f"its directory holds store {found.store}"
        return ""
