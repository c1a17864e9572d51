"""A Shepherd of the same process is found as an object: no connection, no encoding."""

from __future__ import annotations

from typing import cast

from chelonia.core.ids import ServiceId
from chelonia.core.ports.shepherd import Shepherd
from chelonia.hosting.neighbours import ShepherdDirectory
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.rpc_client import Link
from tests.unit.hosting.listening import client_of

HERE, THERE = ServiceId("https://localhost:1/Shepherd"), ServiceId("https://localhost:2/Shepherd")


async def test_a_shepherd_of_this_process_is_found_itself_and_another_by_a_stub() -> None:
    directory, hosted = ShepherdDirectory(Link(client_of(None), SystemClock(), SystemIds())), cast(Shepherd, object())
    assert directory.shepherd(HERE) is not hosted
    directory.host(HERE, hosted)
    assert directory.shepherd(HERE) is hosted
    stub = directory.shepherd(THERE)
    assert stub is not hosted
    assert directory.shepherd(THERE) is stub, "it is made once"
