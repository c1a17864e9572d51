"""An administrator's connection: errors name a missing part and the cure, and threads may use it too."""

import gc
import inspect
import io
from collections.abc import Callable
from typing import Any, cast

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import ForgetPage
from chelonia.core.errors import Kind
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.net.tls import TlsSettings
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.cli import run
from chelonia_clients.client import Client
from chelonia_clients.output import Output
from chelonia_clients.settings import Wish, settle
from chelonia_clients.sync import SyncAdministrator, SyncClient
from tests.support.bartender import FakeBartender
from tests.support.failing import fails
from tests.unit.clients.faking import administrator_on

S1 = ServiceId("https://s1/Shepherd")


class PaperLibrarian:
    async def nodes(self, call: Call) -> tuple[NodeView, ...]:
        return (NodeView(S1, Dn("/CN=s"), "alive", Ms(0)),)

    async def forget(self, call: Call, shepherd: ServiceId, after: str, *_: Any) -> ForgetPage:
        return ForgetPage(1, (), "" if after else "more", forgotten=bool(after))


class Carrier:
    """Stands for the connections."""

    compact = None

    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def opened(**names: tuple[str, ...]) -> Administrator:
    settings = settle(Wish(bartenders=("https://b",), **names), {}, None)  # type: ignore[arg-type]
    return connect.open_administrator(cast(HttpClient, Carrier()), settings)


async def test_what_is_not_known_is_named_with_its_cure() -> None:
    bare = await opened()
    with fails(Kind.BAD_CONFIG, match="--librarian"):
        await bare.nodes()
    with fails(Kind.BAD_CONFIG, match="--ahash"):
        bare.ahashes.keys()
    known = await opened(librarians=("https://l",), ahashes=("https://a", "https://b"))
    assert len(known.ahashes) == 2
    assert known.librarian is not None
    assert known.shepherd(S1) is not None


def test_an_administrator_needs_no_bartender(fake: FakeBartender, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = Carrier()
    made = administrator_on(fake, PaperLibrarian())
    made.http = cast(HttpClient, carrier)
    monkeypatch.setattr(connect, "find", lambda *_: connect.ConnectionPlan(TlsSettings(), None))
    monkeypatch.setattr(connect, "open_http", lambda _: carrier)
    monkeypatch.setattr(connect, "open_administrator", lambda *_: made)
    monkeypatch.setattr(connect, "home", lambda: None)
    monkeypatch.delenv("ARC_BARTENDER_URL", raising=False)
    out = Output(io.StringIO(), io.StringIO())
    assert run(["--librarian", "https://l:1/Librarian", "admin", "node", "list"], out) == 0
    assert str(S1) in cast(io.StringIO, out.stdout).getvalue()
    assert carrier.closed == 1


async def test_it_closes_its_connections_at_the_end() -> None:
    administrator = await opened()
    async with administrator:
        pass
    assert cast(Carrier, administrator.http).closed == 1


def test_threads_may_use_it(fake: FakeBartender) -> None:
    made = administrator_on(fake, PaperLibrarian())
    made.http = cast(HttpClient, Carrier())
    with SyncAdministrator(made) as administrator:
        assert [node.shepherd for node in administrator.nodes()] == [S1]
        pages = list(administrator.forget(S1, check_only=False, accept_loss=True))
        assert [page.forgotten for page in pages] == [False, True]
    administrator.close()
    assert cast(Carrier, made.http).closed == 1


OF_THE_LOOP = {"settled", "new_call"}
"""Methods of `Client` for those who call the ports themselves, inside the event loop."""
TRANSFERS = {
    "upload", "download", "read", "put_tree", "get_tree", "sync_up", "sync_down", "undelete_tree", "remove_tree"
}  # fmt: skip
"""Methods for threads that are functions in an event loop."""


def methods(kind: type) -> dict[str, Callable[..., object]]:
    return {name: each for name, each in vars(kind).items() if inspect.isfunction(each) and not name.startswith("_")}


@pytest.mark.parametrize(
    ("looped", "threaded", "less", "more"),
    [(Client, SyncClient, OF_THE_LOOP, TRANSFERS), (Administrator, SyncAdministrator, set(), set())],
)
def test_threads_have_every_method_and_no_other(looped: type, threaded: type, less: set[str], more: set[str]) -> None:
    """Each is a line by hand, for its types: a new one is forgotten easily."""
    there, here = methods(looped), methods(threaded)
    assert sorted(here) == sorted((there.keys() - less) | more)
    for name in there.keys() & here.keys():
        assert inspect.signature(here[name]) == inspect.signature(there[name]), name
    assert {name: inspect.unwrap(each).__name__ for name, each in here.items()} == {name: name for name in here}


def test_one_that_a_program_forgot_is_closed_all_the_same(fake: FakeBartender) -> None:
    made = administrator_on(fake, PaperLibrarian())
    made.http = cast(HttpClient, Carrier())
    administrator = SyncAdministrator(made)
    thread = administrator._thread
    del administrator
    gc.collect()
    assert cast(Carrier, made.http).closed == 1
    assert not thread.is_alive()
