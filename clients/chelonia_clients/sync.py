"""The SDK for programs without an event loop: the same methods, each waiting for its result.

A background thread runs the loop of each; a `SyncClient` or `SyncAdministrator` may be used from any number of threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from chelonia.core.bartender import DeletedEntry
from chelonia.core.bounds import PAGE_ENTRIES_MAX
from chelonia.core.drills import DrillOrder, DrillStatus
from chelonia.core.healing import ForgetPage, HealOrder, HealStatus
from chelonia.core.librarian import HealthSummary, NodeView, ServiceRecord
from chelonia.core.metadata import Filter, Triple
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.transfer.download import Downloaded, download, read
from chelonia.hosting.transfer.upload import Uploaded, UploadOptions, bytes_source, upload
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import Client, Listed, Metadata
from chelonia_clients.local_sources import file_source
from chelonia_clients.settings import Wish
from chelonia_clients.transfers import Done, TreeOptions, get_tree, put_tree, remove_tree

T = TypeVar("T")


class _Sync:
    """Connections, and a thread of its own with the event loop that drives them. Use as a context manager, or close.

    A base class, against the house style: two context managers would be written twice.
    """

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chelonia-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; twice is no error."""
        if self._loop.is_closed():
            return
        self._wait(self._http.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done in the loop."""
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


class SyncClient(_Sync):
    """`Client` for threads. Use as a context manager, or close it."""

    def __init__(self, client: Client) -> None:
        """Take over a client that no event loop has used yet."""
        super().__init__(client.http)
        self._client = client

    @classmethod
    def from_environment(cls, wish: Wish | None = None) -> SyncClient:
        """Make one as `connect.from_environment` does. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        return cls(connect.from_environment(wish))

    def stat(self, ln: str) -> Metadata:
        """See `Client.stat`."""
        return self._wait(self._client.stat(ln))

    def exists(self, ln: str) -> str:
        """See `Client.exists`."""
        return self._wait(self._client.exists(ln))

    def list(
        self, ln: str, *, recursive: bool = False, needed: Filter = (), page: int = PAGE_ENTRIES_MAX
    ) -> Iterator[Listed]:
        """See `Client.list`; pages are fetched as they are needed."""
        return self._each(self._client.list(ln, recursive=recursive, needed=needed, page=page))

    def make_collection(self, ln: str, metadata: Sequence[Triple] = ()) -> str:
        """See `Client.make_collection`."""
        return self._wait(self._client.make_collection(ln, metadata))

    def make_collections(self, ln: str) -> None:
        """See `Client.make_collections`."""
        self._wait(self._client.make_collections(ln))

    def unmake_collection(self, ln: str) -> str:
        """See `Client.unmake_collection`."""
        return self._wait(self._client.unmake_collection(ln))

    def make_mountpoint(self, ln: str, url: str) -> str:
        """See `Client.make_mountpoint`."""
        return self._wait(self._client.make_mountpoint(ln, url))

    def unmake_mountpoint(self, ln: str) -> str:
        """See `Client.unmake_mountpoint`."""
        return self._wait(self._client.unmake_mountpoint(ln))

    def move(self, source: str, target: str, *, preserve: bool = False) -> str:
        """See `Client.move`."""
        return self._wait(self._client.move(source, target, preserve=preserve))

    def del_file(self, ln: str) -> str:
        """See `Client.del_file`."""
        return self._wait(self._client.del_file(ln))

    def unlink(self, ln: str) -> str:
        """See `Client.unlink`."""
        return self._wait(self._client.unlink(ln))

    def undelete(self, ln: str, target: str = "") -> str:
        """See `Client.undelete`."""
        return self._wait(self._client.undelete(ln, target))

    def list_deleted(self, ln: str = "") -> Iterator[DeletedEntry]:
        """See `Client.list_deleted`; pages are fetched as they are needed."""
        return self._each(self._client.list_deleted(ln))

    def modify(self, ln: str, change_type: str, triple: Triple) -> str:
        """See `Client.modify`."""
        return self._wait(self._client.modify(ln, change_type, triple))

    def set_policy(self, ln: str, identity: str, actions: str) -> str:
        """See `Client.set_policy`."""
        return self._wait(self._client.set_policy(ln, identity, actions))

    def change_policy(self, ln: str, identity: str, actions: str) -> str:
        """See `Client.change_policy`."""
        return self._wait(self._client.change_policy(ln, identity, actions))

    def clear_policy(self, ln: str, identity: str) -> str:
        """See `Client.clear_policy`."""
        return self._wait(self._client.clear_policy(ln, identity))

    def upload(self, source: Path | bytes, ln: str, options: UploadOptions | None = None) -> Uploaded:
        """See `uploads.upload`."""
        made = bytes_source(source) if isinstance(source, bytes) else file_source(source)
        return self._wait(upload(self._client, made, ln, options))

    def download(self, ln: str, target: Path, *, overwrite: bool = False) -> Downloaded:
        """See `downloads.download`."""
        return self._wait(download(self._client, ln, target, overwrite=overwrite))

    def read(self, ln: str) -> Iterator[bytes]:
        """See `downloads.read`: the checksum is judged after the last chunk."""
        return self._each(read(self._client, ln))

    def put_tree(self, source: Path, ln: str, options: TreeOptions | None = None) -> Iterator[Done]:
        """See `transfers.put_tree`."""
        return self._each(put_tree(self._client, source, ln, options or TreeOptions()))

    def get_tree(self, ln: str, target: Path, options: TreeOptions | None = None) -> Iterator[Done]:
        """See `transfers.get_tree`."""
        return self._each(get_tree(self._client, ln, target, options or TreeOptions()))

    def remove_tree(self, ln: str, *, all_names: bool = False) -> Iterator[Done]:
        """See `transfers.remove_tree`."""
        return self._each(remove_tree(self._client, ln, all_names=all_names))


class SyncAdministrator(_Sync):
    """`Administrator` for threads. Use as a context manager, or close it."""

    def __init__(self, administrator: Administrator) -> None:
        """Take over an administrator's connection that no event loop has used yet."""
        super().__init__(administrator.http)
        self._administrator = administrator

    @classmethod
    def from_environment(cls, wish: Wish | None = None) -> SyncAdministrator:
        """Make one as `connect.administrator_from_environment` does. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        return cls(connect.administrator_from_environment(wish))

    def nodes(self) -> tuple[NodeView, ...]:
        """See `Administrator.nodes`."""
        return self._wait(self._administrator.nodes())

    def services(self) -> tuple[ServiceRecord, ...]:
        """See `Administrator.services`."""
        return self._wait(self._administrator.services())

    def health(self) -> HealthSummary:
        """See `Administrator.health`."""
        return self._wait(self._administrator.health())

    def heal_status(self) -> HealStatus:
        """See `Administrator.heal_status`."""
        return self._wait(self._administrator.heal_status())

    def heal_order(self, order: HealOrder) -> HealStatus:
        """See `Administrator.heal_order`."""
        return self._wait(self._administrator.heal_order(order))

    def drill(self, order: DrillOrder) -> DrillStatus:
        """See `Administrator.drill`."""
        return self._wait(self._administrator.drill(order))

    def drill_status(self) -> DrillStatus:
        """See `Administrator.drill_status`."""
        return self._wait(self._administrator.drill_status())

    def approve(self, record: ServiceRecord) -> None:
        """See `Administrator.approve`."""
        self._wait(self._administrator.approve(record))

    def maintenance(self, shepherd: str, duration_ms: int) -> int:
        """See `Administrator.maintenance`."""
        return self._wait(self._administrator.maintenance(shepherd, duration_ms))

    def drain(self, shepherd: str, *, on: bool) -> None:
        """See `Administrator.drain`."""
        self._wait(self._administrator.drain(shepherd, on=on))

    def forget(self, shepherd: str, *, check_only: bool, accept_loss: bool) -> Iterator[ForgetPage]:
        """See `Administrator.forget`."""
        return self._each(self._administrator.forget(shepherd, check_only=check_only, accept_loss=accept_loss))


class _End:
    """Stands for the end of a generator."""
