"""A cluster in the process of a test: the real Bartender, Librarian and A-Hash in memory; Shepherds keep bytes.

For tests of doors, mounts and clients. The services run on a loop of their own, in a thread of their own, and nothing
waits for real time. A caller gets his answer before anything else happens in his event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, TypeVar

from chelonia.bartender.settings import BartenderSettings
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.ids import Dn, Guid, Ms
from chelonia.core.names import parse_ln
from chelonia.core.operations.files import FILES
from chelonia.core.ports.files import (
    TOP,
    Arrived,
    Change,
    Done,
    Files,
    Inline,
    Listing,
    Look,
    Looked,
    Placed,
    Placing,
    Set,
    Want,
    Write,
)
from chelonia.core.values import replace
from tests.sim.virtual_loop import VirtualLoop
from tests.support.clocks import VirtualClock
from tests.support.stage import ADMIN, Stage

T = TypeVar("T")
_THREAD = ThreadPoolExecutor(1, "services")
_OPEN: list[MemoryCluster] = []


class _Clock(VirtualClock):
    """The real time, never the same twice; sleeps are on the time of the services' loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._told = 0

    def monotonic_ms(self) -> Ms:
        return Ms(self._loop.now_ms)

    def now_ms(self) -> Ms:
        self._told = max(self._told + 1, time.time_ns() // 1_000_000)
        return Ms(self._told)


class MemoryCluster(Files):
    """The port `Files` of its Bartender, and the services behind it. `owner`: the root's."""

    def __init__(self, owner: Dn, settings: BartenderSettings | None = None) -> None:
        self._settings = settings
        self._owner = Call(owner)
        for method in FILES.by_method:
            setattr(self, method, partial(self.ask, lambda stage: stage.bartender.files, method))

    @cached_property
    def stage(self) -> Stage:
        """The services, which start with the first request."""
        self._loop = VirtualLoop()
        stage = Stage(self._settings, owner=self._owner.dn, clock=_Clock(self._loop))
        stage.ids.uniform = lambda: 0.5  # type: ignore[method-assign]  # of equals always the same
        _OPEN.append(self)
        self.run(stage.start())
        self.run(stage.add_shepherds("s1", "s2", "s3"))
        return stage

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the services' loop; returns its result."""
        return _THREAD.submit(self._loop.run_until_complete, work).result()

    async def ask(self, service: Callable[[Stage], Any], method: str, *args: Any, **named: Any) -> Any:
        """Call a service, from any loop."""
        return self.run(getattr(service(self.stage), method)(*args, **named))

    def close(self) -> None:
        self.run(self.stage.ahash.close())
        self._loop.close()

    # --- what tests look at and set up ------------------------------------------------------------------------------

    def arrive(self, placed: Placed, data: bytes) -> Arrived:
        """Deliver bytes to the place that a Bartender chose."""
        return self.run(self.stage.arrive(placed, data))

    def bytes_of(self, source: str) -> bytes:
        """The bytes behind a TURL."""
        service, _, reference = source.partition("?")[0].rpartition("/get/")
        return next(each for each in self.stage.shepherds.values() if each.service == service).data(reference)

    def change(self, change: Change, call: Call = ADMIN) -> Done:
        (done,) = self.run(self.stage.bartender.files.apply(call, (change,)))
        assert isinstance(done, Done), done
        return done

    def allow(self, name: str, **rules: str | None) -> None:
        """Add these rules to an entry's; None: remove one."""
        self.change(Set(parse_ln(name), policy=rules))

    def write(self, write: Write, data: bytes, wanted: int) -> None:
        """Have the root's owner write a file."""
        if len(data) <= bounds.INLINE_BYTES_MAX:
            write = replace(write, inline=Inline(data, wanted))
        else:
            ask = Placing(write.place, len(data), wanted=wanted, parents=write.parents)
            (placed,) = self.run(self.stage.bartender.files.place(self._owner, (ask,)))
            assert isinstance(placed, Placed), placed
            write = replace(write, content=self.arrive(placed, data))
        self.change(write, self._owner)

    def data(self, name: str) -> bytes:
        found = self.looked(name, Want.SOURCES | Want.EXTENTS)
        if found.sources:
            return self.bytes_of(found.sources[0])
        whole = bytearray(found.attributes.size)
        for each in found.extents:
            blob = self.bytes_of(found.blobs[each.blob][0])
            whole[each.at : each.end] = blob[each.skip : each.skip + each.length]
        return bytes(whole)

    def names(self) -> list[str]:
        page = self.run(self.stage.bartender.files.list(ADMIN, Listing(TOP, below=True)))
        assert not page.after
        return sorted(f"/{each.name}".removesuffix("/") for each in page.entries)

    def looked(self, name: str, want: Want = Want.NOTHING) -> Looked:
        (found,) = self.run(self.stage.bartender.files.look(ADMIN, (Look(parse_ln(name), want),)))
        assert isinstance(found, Looked), found
        return found

    def guid(self, name: str) -> Guid:
        return self.looked(name).attributes.guid


def close_all() -> None:
    """Stop the clusters that the test has made."""
    while _OPEN:
        _OPEN.pop().close()
