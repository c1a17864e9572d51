"""A node's `/metrics`: each family once, described, without the library's own additions."""

from chelonia.core.cluster.placement import NODE_ALIVE, NODE_OFFLINE
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.values import replace
from chelonia.hosting.metrics import Metrics


async def test_a_counter_is_one_family_with_a_text_of_its_own() -> None:
    metrics = Metrics()
    metrics.cut(2)
    metrics.limits.met("locks", "/CN=Joe", "it was refused")
    told = (await metrics.expose()).decode()
    assert "chelonia_connections_cut_total 2.0\n" in told
    assert 'chelonia_limits_reached_total{limit="locks"} 1.0\n' in told
    texts = [line.split(" ", 3)[3] for line in told.splitlines() if line.startswith("# HELP")]
    assert len(texts) == len(set(texts))


async def test_shepherds_are_counted_by_state_and_a_state_without_any_is_0() -> None:
    metrics = Metrics()
    here = NodeView(ServiceId("https://s1/Shepherd"), Dn("/CN=s1"), NODE_ALIVE, Ms(0))
    metrics.shepherds((here, here, replace(here, state=NODE_OFFLINE)))
    told = (await metrics.expose()).decode()
    assert 'chelonia_shepherds{state="alive"} 2.0' in told
    assert 'chelonia_shepherds{state="offline"} 1.0' in told
    metrics.shepherds((here,))
    assert 'chelonia_shepherds{state="offline"} 0.0' in (await metrics.expose()).decode()
