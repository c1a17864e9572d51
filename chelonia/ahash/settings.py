"""The settings of an A-Hash: apart from its parts, so that whoever reads a configuration does not load them."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core import bounds


@dataclass(frozen=True, slots=True)
class AHashSettings:
    """Args:
    cluster: id of the cluster; a fresh store takes it, another cluster's store is refused; empty: the store's own.
    backup_dir: the existing directory in which backups are made; empty: none are.
    cache_bytes: page cache of the store, from `bounds.CACHE_BYTES_MIN` to `CACHE_BYTES_MAX`.
    min_free_bytes: below this much free space every change is refused (0: never); taken again when it is back.
        It has to cover what is written but not yet in the tree: the dirty part of the cache, and some logs.
    key_keep_ms: how long outcomes are kept under their request keys.
    upkeep_interval_ms: how often an idle store is looked after.
    page_scrub_interval_ms, page_scrub_bytes_per_s_max: how often pages and logs are read to find damage
        (0: never), and how fast at most.
    batch_max, batch_elements_max, queue_max: see `core.bounds`.
    round_trip_ms: how long replicas of a group wait for each other's answers at most, see `Pace.over`.
    """

    cluster: str = ""
    backup_dir: str = ""
    cache_bytes: int = bounds.CACHE_BYTES
    min_free_bytes: int = 128 * 1024 * 1024
    key_keep_ms: int = bounds.REQUEST_KEY_KEEP_MS
    upkeep_interval_ms: int = 5000
    page_scrub_interval_ms: int = 86_400_000
    page_scrub_bytes_per_s_max: int = 1024 * 1024
    batch_max: int = bounds.COMMIT_BATCH_MAX
    batch_elements_max: int = bounds.COMMIT_BATCH_ELEMENTS_MAX
    queue_max: int = bounds.COMMIT_QUEUE_MAX
    round_trip_ms: int = bounds.ROUND_TRIP_MS
