"""Decides when a replica gives up a store with damaged files: it then begins empty, and the others fill it.

Invariants:
- Its own files must show the damage: an engine may also fail to open for want of memory, on all hosts at once.
- Only a replica that has vouched for commits in a group gives up its store: others hold them.
- The store is kept as `db.damaged` until this replica holds everything again; there is never a second one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chelonia.ahash.store.bdb.environment import DAMAGED, BdbSettings, DamagedTree
from chelonia.ahash.store.bdb.files import PeerIdentity, last_counted
from chelonia.ahash.store.bdb.page_files import LogFiles, PageFile
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import sync_path

_LOG = logging.getLogger(__name__)

STEP_PAGES: Final = 256
"""Pages read together."""


def open_replica(
    directory: Path,
    settings: BdbSettings,
    identity: PeerIdentity,
    *,
    others: bool,
    goes_on: Callable[[], None] = lambda: None,
) -> ReplicatedStore:
    """Open a replica's store; if it is damaged and there are `others` to fill it, begin with an empty one.

    Args: `goes_on`: called again and again while reading the files, which takes long; never by a search that loops.
    Raises: as `ReplicatedStore`; OSError.
    """
    try:
        return ReplicatedStore(directory, settings, identity)
    except CheloniaError as error:
        if error.kind is not Kind.INTERNAL or not others or not (flaw := _may_be_given_up(directory, error, goes_on)):
            raise
        _LOG.error(
            "ahash replica %d is damaged: %s. It begins with an empty store and takes part again when the others have "
            "filled it; look at its disk. What it had is kept until then in %s",
            identity.replica, flaw, directory / DAMAGED,
        )  # fmt: skip
    (directory / "db").rename(directory / DAMAGED)
    (directory / "suspect").unlink(missing_ok=True)
    sync_path(directory)
    return ReplicatedStore(directory, settings, identity)


def _may_be_given_up(directory: Path, error: CheloniaError, goes_on: Callable[[], None]) -> str:
    """The damage for which the store may be given up; else empty."""
    if (directory / DAMAGED).exists() or (directory / "restored").exists() or not last_counted(directory / "acked")[0]:
        return ""
    try:
        if flaw := _damaged_page(PageFile(directory), goes_on) or _damaged_log(LogFiles(directory), goes_on):
            return flaw
    except OSError:
        return ""
    return str(error.__cause__) if isinstance(error.__cause__, DamagedTree) else ""


def _damaged_page(pages: PageFile, goes_on: Callable[[], None]) -> str:
    first = 0
    while (found := pages.look(first, STEP_PAGES)).pages > first:
        goes_on()
        for number, wrong in found.flaws.items():
            return f"page {number} of {pages.path}: {wrong}"
        first += STEP_PAGES
    return ""


def _damaged_log(logs: LogFiles, goes_on: Callable[[], None]) -> str:
    for name in logs.names():
        at: int | None = 0
        while at is not None:
            goes_on()
            found = logs.look(name, at)
            if found.flaw:
                return f"{name}: {found.flaw}"
            at = found.then
    return ""
