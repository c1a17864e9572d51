"""A node's `/metrics`: each family once, described, without the library's own additions."""

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
