"""Access over the real wire: every operation of every service, for every kind of caller."""

from typing import Any

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.healing import HealAction, HealOrder
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.librarian import Heartbeat, Report, ServiceRecord
from chelonia.core.rights.access import ACCESS
from chelonia.core.values import replace
from chelonia.hosting.net.rpc_client import Channel, RetryLimits
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.operations.table import Service
from tests.cluster.harness import Cluster
from tests.unit.wire import samples

ROLES: dict[str, tuple[Role, ...]] = {
    "user": (),
    "user2": (),
    "proxy": (),
    "admin": (Role.ADMINISTRATOR,),
    "service": (Role.LIBRARIAN,),
    "core": (Role.AHASH, Role.LIBRARIAN, Role.BARTENDER),
    "shepherd1": (Role.SHEPHERD,),
}
SERVICES: dict[str, Service] = {"ahash": AHASH, "librarian": LIBRARIAN, "shepherd": SHEPHERD, "bartender": BARTENDER}
TABLE_SAYS = "is not registered and approved as"


def arguments(cluster: Cluster, service: Service, operation: str) -> tuple[Any, ...]:
    """Harmless arguments: of nothing that exists, or of the Shepherd that calls."""
    own = ServiceId(cluster.url("shepherd1"))
    given = samples.arguments(service.table.by_name[operation].function)
    match (service.name, operation):
        case ("librarian", "heartbeat"):
            return (replace(given[0], shepherd=own, boot=1) if isinstance(given[0], Heartbeat) else given[0],)
        case ("librarian", "report"):
            return (replace(given[0], shepherd=own, boot=1) if isinstance(given[0], Report) else given[0],)
        case ("librarian", "inventory"):
            return (own, "", 10)
        case ("librarian", "approve"):
            return (ServiceRecord(Role.SHEPHERD, Dn("/CN=nobody"), ServiceId("https://nowhere/Shepherd"), False),)
        case ("librarian", "maintenance"):
            return (ServiceId("https://nowhere/Shepherd"), Ms(0))
        case ("librarian", "healOrder"):
            return (HealOrder(HealAction.RESUME),)
        case ("shepherd", "toggleReport"):
            return (True,)
        case _:
            return given


def url_of(cluster: Cluster, service: Service) -> str:
    return cluster.url("shepherd1" if service.name == "shepherd" else service.name)


@pytest.mark.parametrize("who", ROLES)
async def test_every_cell_of_the_table(cluster: Cluster, who: str) -> None:
    cluster.expect_log("erasure refused|drill refused")
    wrong: list[str] = []
    async with cluster.ports(who) as ports:
        for (name, operation), allowed in ACCESS.items():
            service = SERVICES[name]
            channel = Channel(ports.link, service, (url_of(cluster, service),), RetryLimits(retry_ms=0, read_ms=15_000))
            method = service.table.by_name[operation].method
            may = any(role in allowed for role in ROLES[who])
            refused = await refusal(channel, method, arguments(cluster, service, operation))
            if (TABLE_SAYS in refused) is may:
                wrong.append(f"{who} {name}.{operation}: should be {'allowed' if may else 'denied'}: {refused!r}")
    assert not wrong, "\n".join(wrong)
    await cluster.until_alive()


@pytest.mark.parametrize("who", ["user", "anonymous"])
async def test_the_bartender_is_open_to_everyone_but_for_shepherds_work(cluster: Cluster, who: str) -> None:
    async with cluster.ports(who) as ports:
        channel = Channel(ports.link, BARTENDER, (cluster.url("bartender"),), RetryLimits(retry_ms=0))
        for operation in BARTENDER.operations:
            refused = await refusal(channel, operation.method, samples.arguments(operation.spec.method))
            assert (TABLE_SAYS in refused) is (("bartender", operation.name) in ACCESS), operation.name


async def refusal(channel: Channel, method: str, args: tuple[Any, ...]) -> str:
    """Call; returns the text of the refusal, "" when there was none."""
    try:
        await channel.call(Call(), method, *args)
    except CheloniaError as error:
        return str(error)
    return ""
