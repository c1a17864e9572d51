"""The settings of an A-Hash, in a module of their own: reading a configuration does not load the service."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core import bounds


@dataclass(frozen=True, slots=True)
class AHashSettings:
    """Args:
    cluster: id of the cluster. A fresh store takes it, a store of another cluster is refused; empty: the store's own.
    backup_dir: existing directory for backups; empty: the service makes none.
    cache_bytes: page cache of the store, from `bounds.CACHE_BYTES_MIN` to `CACHE_BYTES_MAX`.
    min_free_bytes: free space below which the service refuses every change, until it is back (0: never).
        It has to cover the dirty part of the cache, which is not yet in the tree, and some logs.
    key_keep_ms: how long outcomes are kept under their request keys.
    upkeep_interval_ms: pause between two checks whether the store needs upkeep.
    page_scrub_interval_ms, page_scrub_bytes_per_s_max: how often the scrub reads all pages and logs (0: never), and
        its highest rate.
    batch_max, batch_elements_max, queue_max: see `core.bounds`.
    round_trip_ms: longest wait of a group's replicas for each other's answers, see `Pace.over`.
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
