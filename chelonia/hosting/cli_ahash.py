"""`cheloniad found-ahash`: make the store with which a group of A-Hash replicas begins, once, on one of them.

An empty directory never begins a group by itself: it may be the new disk of a replica whose group lives on elsewhere.
An A-Hash that was alone needs none of this: its store begins the group when its configuration names one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from chelonia.ahash.service import AHashSettings
from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.ahash_replica import found_store
from chelonia.hosting.config import load_config


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's subcommands."""
    parser = verbs.add_parser(
        "found-ahash",
        help="make the first store of a group of A-Hash replicas, on the replica with the lowest id",
        description="To be run once in the life of a group, before its first start. All other replicas start on empty "
        "directories and are filled by the group.",
    )
    parser.add_argument("--config", required=True, type=Path, help="the node's configuration")
    parser.set_defaults(act=_found)


def _found(options: argparse.Namespace) -> int:
    section = load_config(options.config).ahash
    if section is None or not section.replica_id:
        cause = "this node hosts no replica of an A-Hash: [ahash] with replica_id and replicas"
        raise CheloniaError(Kind.BAD_CONFIG, "found-ahash", str(options.config), cause)
    first = min(entry.id for entry in section.replicas)
    if section.replica_id != first:
        cause = f"replica {first} begins the group; this one, {section.replica_id}, starts on an empty directory"
        raise CheloniaError(Kind.BAD_CONFIG, "found-ahash", str(options.config), cause)
    found_store(section, AHashSettings(**section.tuning))
    print(f"{section.data_dir}: the store of a new group, cluster {section.tuning['cluster']}")
    return 0
