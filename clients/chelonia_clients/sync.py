"""The SDK for programs without an event loop: the methods of `Client` and `Administrator`, each waiting for its result.

A background thread runs the loop of each; a `SyncClient` or `SyncAdministrator` may be used from any number of threads.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from chelonia.core.ports.librarian import ServiceRecord
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.transfer.download import Downloaded, download, read
from chelonia.hosting.transfer.upload import UploadOptions, UploadResult, bytes_source
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import Client
from chelonia_clients.local_sources import file_source
from chelonia_clients.mirroring import sync_down, sync_up
from chelonia_clients.parted import upload_local
from chelonia_clients.removal import remove_tree
from chelonia_clients.restoring import undelete_tree
from chelonia_clients.settings import Wish
from chelonia_clients.transfers import get_tree, put_tree

P = ParamSpec("P")
S = TypeVar("S", bound=Client | Administrator)
T = TypeVar("T")


class _Sync(Generic[S]):
    """Connections, and a thread with the event loop that drives them. Use as a context manager, or close.

    A base class, against the house style: two context managers would be written twice.
    """

    def __init__(self, source: S) -> None:
        """Take over a client that no event loop has used yet."""
        self._source = source
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chelonia-client", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _end, source.http, self._loop, self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; twice is no error. Without a call it is done at exit."""
        self._end()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _each(self, work: AsyncGenerator[T, None]) -> Iterator[T]:
        """Drive an async generator of the loop from this thread; leaving early ends it there too."""

        async def step() -> T | _End:
            return await anext(work, _End())

        try:
            while not isinstance(found := self._wait(step()), _End):
                yield found
        finally:
            self._wait(work.aclose())


def _end(http: HttpClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread is not threading.current_thread():
        asyncio.run_coroutine_threadsafe(http.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _waits(work: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Sync[S], P], T]:
    """A method that waits for the result of `work`."""

    @functools.wraps(work)
    def wait(self: _Sync[S], /, *args: P.args, **named: P.kwargs) -> T:
        return self._wait(work(self._source, *args, **named))

    return wait


def _pages(
    work: Callable[Concatenate[S, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Sync[S], P], Iterator[T]]:
    """A method that yields the items of `work`; pages are fetched as they are needed."""

    @functools.wraps(work)
    def each(self: _Sync[S], /, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return self._each(work(self._source, *args, **named))

    return each


class SyncClient(_Sync[Client]):
    """`Client` for threads. Use as a context manager, or close it."""

    @classmethod
    def from_environment(cls, wish: Wish | None = None) -> SyncClient:
        """Make one as `connect.from_environment` does. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        return cls(connect.from_environment(wish))

    stat = _waits(Client.stat)
    exists = _waits(Client.exists)
    list = _pages(Client.list)
    names = _pages(Client.names)
    make_collection = _waits(Client.make_collection)
    make_collections = _waits(Client.make_collections)
    unmake_collection = _waits(Client.unmake_collection)
    make_mountpoint = _waits(Client.make_mountpoint)
    unmake_mountpoint = _waits(Client.unmake_mountpoint)
    move = _waits(Client.move)
    del_file = _waits(Client.del_file)
    unlink = _waits(Client.unlink)
    undelete = _waits(Client.undelete)
    list_deleted = _pages(Client.list_deleted)
    modify = _waits(Client.modify)
    share = _waits(Client.share)
    space = _waits(Client.space)
    policy = _waits(Client.policy)
    set_policy = _waits(Client.set_policy)
    change_policy = _waits(Client.change_policy)
    clear_policy = _waits(Client.clear_policy)

    def upload(self, source: Path | bytes, ln: str, options: UploadOptions | None = None) -> UploadResult:
        made = bytes_source(source) if isinstance(source, bytes) else file_source(source)
        return self._wait(upload_local(self._source, made, ln, options))

    def download(self, ln: str, target: Path, *, overwrite: bool = False) -> Downloaded:
        return self._wait(download(self._source, ln, target, overwrite=overwrite))

    def read(self, ln: str) -> Iterator[bytes]:
        """As `download.read`; the checksum is verified only at the end."""
        return self._each(read(self._source, ln))

    put_tree = _pages(put_tree)
    get_tree = _pages(get_tree)
    sync_up = _pages(sync_up)
    sync_down = _pages(sync_down)
    undelete_tree = _pages(undelete_tree)
    remove_tree = _pages(remove_tree)


class SyncAdministrator(_Sync[Administrator]):
    """`Administrator` for threads. Use as a context manager, or close it."""

    @classmethod
    def from_environment(cls, wish: Wish | None = None) -> SyncAdministrator:
        """Make one as `connect.administrator_from_environment` does. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        return cls(connect.administrator_from_environment(wish))

    nodes = _waits(Administrator.nodes)
    services = _waits(Administrator.services)
    health = _waits(Administrator.health)
    heal_status = _waits(Administrator.heal_status)
    heal_order = _waits(Administrator.heal_order)
    jobs = _waits(Administrator.jobs)
    drill = _waits(Administrator.drill)
    drill_status = _waits(Administrator.drill_status)
    approve = _waits(Administrator.approve)
    maintenance = _waits(Administrator.maintenance)
    drain = _waits(Administrator.drain)
    forget = _pages(Administrator.forget)
    quotas = _waits(Administrator.quotas)
    set_quota = _waits(Administrator.set_quota)
    recount_quotas = _waits(Administrator.recount_quotas)

    def node_urls(self, records: Sequence[ServiceRecord]) -> tuple[str, ...]:
        return self._source.node_urls(records)


class _End:
    """Marks the end of a generator."""
