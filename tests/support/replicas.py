"""Replicated engines for tests: a loop in a thread for tests without one, and groups wired directly in one process."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.files import PeerIdentity
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.replicated_port import Event, MasterHere
from chelonia.core.ids import Dn
from tests.support.polling import poll

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` on the loop and wait for its result."""

        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(30)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class GroupOfOne(ReplicatedStore):
    """A replicated store that is its whole group, as a plain `Store` for the contract suite."""

    def __init__(self, directory: Path, settings: BdbSettings) -> None:
        super().__init__(directory, settings, PeerIdentity(1, "test", Dn("/CN=1")))
        self.seen: list[Event] = []
        self._host = LoopThread()
        self._host.run(lambda: self.start(self.seen.append, lambda peer, control, record: None))
        self.found()
        poll(lambda: any(isinstance(event, MasterHere) for event in self.seen), what="master of one")

    def close(self) -> None:
        super().close()
        if not self._host.loop.is_closed():
            self._host.close()


class Wired:
    """Engines of one process whose frames reach each other at once, unless a wire is cut."""

    def __init__(self, directory: Path, settings: BdbSettings, count: int = 3) -> None:
        self._directory = directory
        self._settings = settings
        self.host = LoopThread()
        self.engines: dict[int, ReplicatedStore] = {}
        self.seen: dict[int, list[Event]] = {}
        self.cut: set[int] = set()
        self.before_office: Callable[[], None] = lambda: None
        self.sent: Callable[[int, int, bytes], bool] = lambda sender, peer, control: True
        for replica in range(1, count + 1):
            self.open(replica)

    def open(self, replica: int, looked: Callable[[ReplicatedStore], None] = lambda engine: None) -> ReplicatedStore:
        """Open and start one; it may vote. `looked`: is called in between."""
        identity = PeerIdentity(replica, "test", Dn(f"/CN={replica}"))

        def pause() -> None:
            self.before_office()

        engine = ReplicatedStore(self._directory / str(replica), self._settings, identity, pause)
        looked(engine)
        self.seen[replica] = []
        self.host.run(lambda: engine.start(self.seen[replica].append, self._sender(replica)))
        self.engines[replica] = engine
        engine.set_voter(True)
        for peer in self.engines.values():
            peer.peer_up(replica)
        return engine

    def close(self, replica: int) -> None:
        self.engines.pop(replica).close()

    def close_all(self) -> None:
        for replica in list(self.engines):
            self.close(replica)
        self.host.close()

    def wait(self, replica: int, kind: type[Event], after: int = 0) -> Event:
        """The first event of this kind behind the first `after` ones."""

        def look() -> Event | None:
            return next((event for event in self.seen[replica][after:] if isinstance(event, kind)), None)

        found = poll(look, what=f"{kind.__name__} at replica {replica}, which saw {self.seen[replica][-5:]}")
        assert found is not None
        return found

    def _sender(self, replica: int) -> Callable[[int | None, bytes, bytes], None]:
        def send(peer: int | None, control: bytes, record: bytes) -> None:
            for other in list(self.engines) if peer is None else [peer]:
                if other == replica or other not in self.engines or {other, replica} & self.cut:
                    continue
                if self.sent(replica, other, control):
                    self.engines[other].process(replica, control, record)

        return send
