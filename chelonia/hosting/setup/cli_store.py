"""`cheloniad accept-store`: an administrator's word that a Shepherd's directory, as it is, is its store from now on.

A Shepherd refuses an empty directory where the cluster knows a store, and another Shepherd's or cluster's directory.
Mostly a disk is not mounted, or is the wrong one. When it is meant, this command says so, once; the Shepherd must not
run meanwhile. Replicas that are there stay; the next start reports those of the earlier store alone as lost.
"""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path
from typing import Any

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.ports.shepherd import StoreIdentity
from chelonia.core.values import replace
from chelonia.hosting.config import load_config
from chelonia.hosting.setup import host_files
from chelonia.shepherd.store import blobs_notes
from chelonia.shepherd.store.blobs_files import lay_out
from chelonia.shepherd.store.blobs_segment_start import count_committed, numbers
from chelonia.shepherd.store.store_state import locked, read_identity, write_identity


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's subcommands."""
    parser = verbs.add_parser(
        "accept-store",
        help="accept a Shepherd's directory, as it is now, as its store (after a disk was replaced)",
        description="The Shepherd must not run. Replicas in the directory stay; what only the Shepherd's earlier "
        "store held is reported lost, and copied again from other Shepherds.",
    )
    parser.add_argument("--config", required=True, type=Path, help="the node's configuration")
    parser.set_defaults(act=_accept)


def _accept(options: argparse.Namespace) -> int:
    section = load_config(options.config).shepherd
    if section is None:
        raise CheloniaError(Kind.BAD_CONFIG, "accept-store", str(options.config), "this node hosts no [shepherd]")
    root, service = Path(section.data_dir), ServiceId(section.id)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        lay_out(root)
        held = sum(1 for _ in (root / "replicas").glob("??/*.record")) + count_committed(root)
        accepted = accept(_identity(root) if held else None, service)
        (root / blobs_notes.NAME).unlink(missing_ok=True)  # no earlier note counts: the next start reads the records
        write_identity(root, accepted, segments=bool(numbers(root)))
    host_files.give_back(root, root)
    print(f"{root}: store {accepted.store} of {service}, {held} committed replicas; it is announced at the next start")
    return 0


def accept(found: StoreIdentity | None, service: ServiceId) -> StoreIdentity:
    """Return the identity of a store that replaces the Shepherd's earlier one; without one found, a new identity."""
    if found is None:
        return StoreIdentity(str(uuid.uuid4()), service, replaces=True)
    return replace(found, service=service, cluster="", replaces=True)


def _identity(root: Path) -> StoreIdentity | None:
    """Return a store's identity; None also for one that cannot be read, for which this command is the cure."""
    try:
        return read_identity(root)
    except CheloniaError:
        return None
