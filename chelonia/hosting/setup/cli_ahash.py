"""`cheloniad found-ahash` and `restore-ahash`: the store with which an A-Hash begins, new or from a backup.

Founding makes the store with which a group of replicas begins, once, on one of them; restoring puts a backup there.

An empty directory never begins a group by itself: it may be the new disk of a replica whose group lives on elsewhere.
An A-Hash that was alone needs none of this: its store begins the group when its configuration names one.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.ahash_replica import found_store
from chelonia.hosting.config import AHashSection, load_config
from chelonia.hosting.setup import host_files


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
    parser = verbs.add_parser(
        "restore-ahash",
        help="put a backup in the place of an A-Hash's store",
        description="The A-Hash must not run, nor any other replica of its group, and its directory must be empty or "
        "not there: move the old one away. Its next start begins a new generation; other replicas begin on empty "
        "directories.",
    )
    parser.add_argument("--config", required=True, type=Path, help="the node's configuration")
    parser.add_argument("--from", required=True, type=Path, dest="source", help="the backup's directory")
    parser.set_defaults(act=_restore)


def _found(options: argparse.Namespace) -> int:
    section = load_config(options.config).ahash
    if section is None or not section.replica_id:
        cause = "this node hosts no replica of an A-Hash: [ahash] with replica_id and replicas"
        raise CheloniaError(Kind.BAD_CONFIG, "found-ahash", str(options.config), cause)
    _check_first(section, options.config)
    directory, cluster = Path(section.data_dir), section.tuning["cluster"]
    found_store(directory, cluster)
    host_files.give_back(directory, directory)
    print(f"{directory}: the store of a new group, cluster {cluster}")
    return 0


def _restore(options: argparse.Namespace) -> int:
    section = load_config(options.config).ahash
    if section is None:
        raise CheloniaError(Kind.BAD_CONFIG, "restore-ahash", str(options.config), "this node hosts no [ahash]")
    if section.replica_id:
        _check_first(section, options.config)
    source, target = options.source, Path(section.data_dir)
    if not (source / "restored").is_file() or not (source / "db").is_dir():
        absent = "it is not here: it is on the host of the A-Hash that made it, unless it was taken away"
        cause = "it is no backup: one holds `db` and the empty file `restored`" if source.exists() else absent
        raise CheloniaError(Kind.BAD_REQUEST, "restore-ahash", str(source), cause)
    if target.exists() and any(target.iterdir()):
        cause = "it is not empty: stop the A-Hash and move its directory away; keep it until all is well"
        raise CheloniaError(Kind.EXISTS, "restore-ahash", str(target), cause)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    (partial / "restored").touch()  # now, and not when the backup was made: each restore begins a generation of its own
    host_files.give_back(partial, target)
    if target.exists():
        target.rmdir()
    os.sync()  # a name that lasts longer than what it leads to would be a damaged store after a power cut
    partial.rename(target)
    hosts = ", ".join(entry.host for entry in section.replicas)
    group = f" of a group of {hosts}, as {options.config} names them" if hosts else ""
    print(f"{target}: restored from {source}; its next start begins a new generation{group}")
    return 0


def _check_first(section: AHashSection, config: Path) -> None:
    first = min(entry.id for entry in section.replicas)
    if section.replica_id != first:
        cause = f"replica {first} begins the group; this one, {section.replica_id}, starts on an empty directory"
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", str(config), cause)
