"""The common part of our Berkeley DB stores: settings of the environment, its tree, reading, errors, copying.

Settings and reasons: `docs/design/003`. Nothing here holds a lock or decides when something is durable: the stores do
(`bdb/store.py` alone, `bdb/replicated.py` in a group).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berkeleydb import db as bdb

from chelonia.ahash.store.bdb import read_ahead
from chelonia.ahash.store.bdb.files import make_private
from chelonia.ahash.store.page_checksums import DESCRIPTION_BYTES, page_size
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import sync_path

_LOG = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
"""Page size of a new tree: a disk writes so much wholly or not at all. A power cut may leave half of a larger page,
which no recovery mends. Older trees have 8 KiB."""
CACHE_MUTEXES: Final = 1000
"""Mutexes of the table of cached pages; each guards some of its lists. Where `mutex_set_init` is set the library makes
none by itself, and threads would change these lists together."""
ENGINE_CONFIG: Final = f"set_mp_mtxcount {CACHE_MUTEXES}\nmutex_set_init {2 * CACHE_MUTEXES}\n"
"""Content of the file DB_CONFIG, which no call of the binding can set: mutexes made at the start, 136 bytes each; more
follow on demand. Else the library makes one for each page that the cache may ever hold: a twentieth of it."""
RECOVERY_FREE_BYTES: Final = 16 * 1024 * 1024
"""Free space below which a failed recovery counts as failed for want of space."""
COPY_CACHE_BYTES: Final = 32 * 1024 * 1024
"""Page cache for reading a copy once."""
CAUGHT_UP_BYTES: Final = 512 * 1024
"""Log or pages sent at once to a replica that was away; it asks for the next when it has them. With the library's own
10 MiB two that came back kept their master from its writers for up to 2 s. The others did not hear it either, and
elected another. With this it takes 0.1 to 0.2 s, and they caught up as soon (docs/performance-history.md)."""
DAMAGED: Final = "db.damaged"
"""Directory of a damaged store, kept until the replica holds everything again."""
TREE: Final = "store.db"
"""File of the one B-tree."""
ROOT: Final = 1
"""Its page where each search begins."""
UNREADABLE: Final = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""Error numbers for bytes that a disk cannot read."""
LOOK_BYTES: Final = 1024 * 1024
"""Bytes read at once to find empty pages."""


@dataclass(frozen=True, slots=True)
class BdbSettings:
    """Args:
    cache_bytes: page cache; other pages are read through the system's cache, and checked.
    log_file_bytes, log_buffer_bytes: size of one log file and of the buffer before it.
    checkpoint_log_bytes: bytes of changes after which a checkpoint follows; small objects log four times as many.
    checkpoint_interval_ms: longest time from a change to a checkpoint.
    log_kept_bytes: log that a replica keeps, for others that were away and would else need a whole copy.
    """

    cache_bytes: int = bounds.CACHE_BYTES
    log_file_bytes: int = 16 * 1024 * 1024
    log_buffer_bytes: int = 2 * 1024 * 1024
    checkpoint_log_bytes: int = 16 * 1024 * 1024
    checkpoint_interval_ms: int = 30_000
    log_kept_bytes: int = 256 * 1024 * 1024


def make_environment(settings: BdbSettings, on_event: Callable[[Any, int, Any], None]) -> Any:
    """Return an environment with our settings, not yet opened."""
    env = bdb.DBEnv()
    env.set_get_returns_none(2)
    env.set_event_notify(on_event)
    size = settings.cache_bytes
    env.set_cachesize(size >> 30, size & ((1 << 30) - 1), 1)
    env.set_lg_bsize(settings.log_buffer_bytes)
    env.set_lg_max(settings.log_file_bytes)
    env.set_lk_detect(bdb.DB_LOCK_MINWRITE)
    return env


def open_environment(env: Any, home: Path, flags: int) -> None:
    """Open an environment that only this process uses, with the flags common to ours."""
    config = home / "DB_CONFIG"
    with suppress(OSError):  # a full disk: then there are more mutexes
        config.touch(0o600)
        config.write_text(ENGINE_CONFIG, "ascii")
    flags |= bdb.DB_CREATE | bdb.DB_INIT_TXN | bdb.DB_INIT_LOG | bdb.DB_INIT_MPOOL | bdb.DB_INIT_LOCK
    env.open(str(home), flags | bdb.DB_THREAD | bdb.DB_PRIVATE, 0o600)


def open_replicated(
    home: Path, settings: BdbSettings, own: int, send: Callable[..., int], on_event: Callable[[Any, int, Any], None]
) -> Any:
    """Open the environment of a replica, recovered, not yet replicating. Reasons: docs/design/009."""
    env = make_environment(settings, on_event)
    env.set_flags(bdb.DB_TXN_NOSYNC, 1)  # the library would sync at every commit it applies; we sync once per drain
    env.rep_set_transport(own, send)
    env.rep_set_priority(0)
    env.rep_set_timeout(bdb.DB_REP_CHECKPOINT_DELAY, 0)  # else a change of role waits 30 s for a checkpoint
    env.rep_set_config(bdb.DB_REP_CONF_NOWAIT, 1)
    env.rep_set_config(bdb.DB_REP_CONF_AUTOINIT, 1)
    env.rep_set_config(bdb.DB_REP_CONF_BULK, 0)
    env.rep_set_limit(CAUGHT_UP_BYTES)
    try:
        open_environment(env, home, bdb.DB_INIT_REP | bdb.DB_RECOVER)
    except bdb.DBError:
        with suppress(bdb.DBError):
            env.close()
        raise
    return env


def new_tree(env: Any) -> Any:
    """Return a handle for our tree, not yet opened."""
    tree = bdb.DB(env)
    tree.set_get_returns_none(2)
    tree.set_pagesize(PAGE_BYTES)
    tree.set_flags(bdb.DB_CHKSUM)
    return tree


class TreeState:
    """A `StoredState` of a tree that somebody holds; it raises the errors of Berkeley DB."""

    __slots__ = ("_tree", "get", "number")

    def __init__(self, tree: Any, number: int) -> None:
        self._tree = tree
        self.get: Callable[[bytes], bytes | None] = tree.get  # the hot path of every read: no call of ours between
        self.number = number

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return scan(self._tree, start, end, limit)


def scan(tree: Any, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """Return at most `limit` (key, value) with start <= key < end, in order."""
    found: list[tuple[bytes, bytes]] = []
    cursor = tree.cursor()
    try:
        blocks = read_ahead.blocks_read() if limit > read_ahead.FIRST_ROWS else 0
        row = cursor.set_range(start) if limit else None
        while row is not None and row[0] < end:
            found.append(row)
            if len(found) == read_ahead.FIRST_ROWS < limit and read_ahead.blocks_read() > blocks:
                read_ahead.read_ahead(tree, row[0], end, limit - len(found))
            row = cursor.next() if len(found) < limit else None
        if row is None and len(found) < limit:
            _check_end(cursor, found[-1][0] if found else start)
    finally:
        cursor.close()
    return found


def _check_end(cursor: Any, reached: bytes) -> None:
    """Look whether the tree ends where a scan did. Raises: DBPageNotFoundError.

    The library takes an empty page for a hole in the file, and at a leaf without entries its scans end, unsaid.
    """
    last = cursor.last()
    if last is not None and last[0] > reached:
        raise bdb.DBPageNotFoundError(0, "a scan ended before the tree does: a page of it is empty")


def write(tree: Any, txn: Any, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
    """Put and delete within a transaction, in the order of keys; deleting an absent key is no error."""
    for key in sorted(puts):
        tree.put(key, puts[key], txn=txn)
    for key in sorted(deletes):
        _delete(tree, key, txn)


def copy_environment(env: Any, target: Path) -> None:
    """Copy the environment into `target`; after recovery, by `write_backup`, it has at least the present commits.

    Raises: DBError; INTERNAL for an error of a disk, which may be the copy's and does not end the store.
    """
    make_private(target)
    try:
        env.backup(str(target / "db"), bdb.DB_CREATE | bdb.DB_EXCL)
    except bdb.DBError as error:
        if not error.args or error.args[0] not in UNREADABLE:
            raise
        cause = f"a file of this A-Hash cannot be read, or its copy not be written: look at both disks ({error})"
        raise CheloniaError(Kind.INTERNAL, "backup", str(target), cause) from error


def _recover(home: Path) -> None:
    """Recover a copy, and read all of it. Raises: NO_SPACE, INTERNAL."""
    env = make_environment(BdbSettings(cache_bytes=COPY_CACHE_BYTES), lambda env, event, info: None)
    tree = None
    try:
        open_environment(env, home, bdb.DB_RECOVER_FATAL)
        tree = new_tree(env)
        tree.open(TREE, dbtype=bdb.DB_BTREE, flags=bdb.DB_RDONLY)
        tree.stat()  # reads, and so checks, every page
    except (bdb.DBError, MemoryError) as error:
        if _is_full(home, error):
            raise CheloniaError(Kind.NO_SPACE, "backup", str(home), f"no space left for the copy ({error})") from error
        cause = f"the copy cannot be read, as files of this A-Hash are damaged: look at its disk ({error})"
        raise CheloniaError(Kind.INTERNAL, "backup", str(home), cause) from error
    finally:
        for handle in (tree, env):
            with suppress(bdb.DBError):
                if handle is not None:
                    handle.close()


def write_backup(target: str, copy: Callable[[Path], None]) -> None:
    """Have `copy` fill a directory beside `target`, recover it, mark it as restored, and give it its name.

    It copies pages as the disk has them, damaged ones too; it takes long, on no watched thread. See `Store.backup`.
    Raises: BAD_CONFIG (no parent directory), EXISTS, NO_SPACE, INTERNAL (it does not recover); as `copy`.
    """
    final = Path(target)
    if not final.parent.is_dir():  # do not make it: while its disk is not mounted, that would be on another one
        raise CheloniaError(
            Kind.BAD_CONFIG, "backup", target, f"there is no directory {final.parent}: mount or make it"
        )
    partial = final.with_name(final.name + ".partial")
    try:
        if final.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        partial.mkdir(0o700)  # only who made it may remove it: another backup of this name may be under way
    except OSError as error:
        raise _not_copied(target, error) from error
    try:
        copy(partial)
        _recover(partial / "db")
        (partial / "restored").touch(mode=0o600)
        for path in (*sorted((partial / "db").iterdir()), partial / "db", partial):
            sync_path(path)
        partial.rename(final)
        sync_path(final.parent)
    except (CheloniaError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, CheloniaError):
            raise
        raise _not_copied(target, error) from error


def _not_copied(target: str, error: OSError) -> CheloniaError:
    if error.errno == errno.EEXIST:
        cause = "it exists: name a new directory, and remove what an interrupted backup left (.partial)"
        return CheloniaError(Kind.EXISTS, "backup", target, cause)
    kind = Kind.NO_SPACE if error.errno == errno.ENOSPC else Kind.INTERNAL
    return CheloniaError(kind, "backup", target, f"cannot write the copy: {error}")


def suspect(directory: Path) -> None:
    """Note on disk that the engine of a store panicked: a page of it may be damaged."""
    with suppress(OSError):  # a full disk: then that made it panic
        (directory / "suspect").touch(0o600)


def clear_suspicion(directory: Path, tree: Any, *, killed: bool) -> None:
    """Read every page after a panic: recovery looks only at those that the log changes. Raises: DBError, `DamagedTree`.

    Do so too if a process was `killed` and any page is empty: in an empty page the library loops for ever. Do so in any
    case if the root is empty: the library would read records where there are none.
    """
    if tree is not None and _has_empty_page(directory / "db" / TREE, among=None if killed else ROOT + 1):
        suspect(directory)
    if (directory / "suspect").exists():
        try:
            if tree is not None:
                tree.stat()
        except bdb.DBError as error:
            if not is_damage(error):
                raise
            raise DamagedTree(*error.args) from error
        (directory / "suspect").unlink()


class DamagedTree(bdb.DBError):  # type: ignore[misc]
    """A page cannot be read, though recovery found nothing wrong."""


def is_damage(error: BaseException) -> bool:
    """Return whether the engine reports an unreadable page, or worse: that does not pass."""
    code = error.args[0] if isinstance(error, bdb.DBError) and error.args else None
    lost = (DamagedTree, bdb.DBRunRecoveryError, bdb.DBPageNotFoundError)
    return isinstance(error, lost) or code in UNREADABLE


def _has_empty_page(path: Path, among: int | None = None) -> bool:
    """Whether a page, or one `among` so many first ones, is all zero (never written, or lost) or cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            size = page_size(file.read(DESCRIPTION_BYTES)) or PAGE_BYTES
            file.seek(0)
            empty = bytes(size)
            while data := file.read(among * size if among else LOOK_BYTES):
                if any(data[at : at + size] == empty for at in range(0, len(data), size)):
                    return True
                if among:
                    break
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return True
    return False


def _is_full(directory: Path, error: Exception) -> bool:
    """Whether recovery failed for want of space, by the free space of the disk: the library does not say."""
    return isinstance(error, bdb.DBNoSpaceError) or shutil.disk_usage(directory).free < RECOVERY_FREE_BYTES


@contextmanager
def opening(directory: Path, cure: str) -> Iterator[None]:
    """Turn a failure to open into our error, with the cure for damage. Raises: NO_SPACE, INTERNAL."""
    try:
        yield
    except (bdb.DBError, MemoryError) as error:
        kind, cause = Kind.INTERNAL, f"recovery failed, a file in {directory / 'db'} is damaged: {cure} ({error})"
        if _is_full(directory, error):
            kind, cause = Kind.NO_SPACE, f"no space left on the metadata disk: free some and start again ({error})"
        raise CheloniaError(kind, "ahash", str(directory), cause) from error


class Errors:
    """Turns Berkeley DB's exceptions into ours: `failed` for most, `full` when there is no space. See `translate`."""

    __slots__ = ("_failed", "_full", "_panic")

    def __init__(self, panic: Callable[[str], None], failed: Kind = Kind.INTERNAL, full: Kind = Kind.READ_ONLY) -> None:
        self._panic = panic
        self._failed = failed
        self._full = full

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (bdb.DBError, MemoryError)):
            raise translate(error, self._panic, self._failed, self._full) from error


def translate(
    error: BaseException, panic: Callable[[str], None], failed: Kind = Kind.INTERNAL, full: Kind = Kind.READ_ONLY
) -> CheloniaError:
    """Turn an exception of Berkeley DB into ours; call `panic` when only a new process can go on."""
    if is_damage(error):
        panic(f"Berkeley DB: {error}")
        kind = Kind.OUTCOME_UNKNOWN if failed is Kind.OUTCOME_UNKNOWN else Kind.UNAVAILABLE
        cause = "the engine panicked; the process restarts: retry with the same request key"
        return CheloniaError(kind, "ahash", "store", cause)
    if isinstance(error, bdb.DBNoSpaceError):
        cause = "no space left on the metadata disk: free space or enlarge it; reading goes on"
        return CheloniaError(full, "ahash", "store", cause)
    return CheloniaError(failed, "ahash", "store", f"Berkeley DB: {error}")


def _delete(tree: Any, key: bytes, txn: Any) -> None:
    try:
        tree.delete(key, txn=txn)
    except bdb.DBNotFoundError:
        return


def remove_logs(directory: Path, names: Sequence[str]) -> None:
    """Remove log files of a store by name. A failure is logged only: the files just take room."""
    try:
        for name in names:
            (directory / "db" / Path(name).name).unlink(missing_ok=True)
    except OSError as error:
        _LOG.error("old logs of the A-Hash cannot be removed: %s", error)
