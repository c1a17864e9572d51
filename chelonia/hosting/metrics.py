"""The metrics of a daemon, for Prometheus: base units, few labels, one registry per node.

Counters rise as things happen. A request for `/metrics` reads the gauges from the services, so an unwatched node does
no work for them. A gauge that cannot be read keeps its last value.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from chelonia.core.cluster.drills import Drill, DrillStage
from chelonia.core.cluster.healing import HealStatus
from chelonia.core.cluster.placement import NODE_ALIVE, NODE_MAINTENANCE, NODE_OFFLINE, NODE_WAITING
from chelonia.core.limits import LimitCounts
from chelonia.core.ports.librarian import NodeView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

DRILL_FAILED = (DrillStage.LATE, DrillStage.CALLED_OFF)

Reader = Callable[[], Awaitable[None]]
"""Brings some gauges up to date, without waiting for what hangs."""


Counts = Mapping[tuple[str, ...], float]


@dataclass(slots=True)
class _Served:
    """One operation: its count by outcome, its count within each of `_SECONDS` (and later), its time in all."""

    outcomes: dict[str, int] = field(default_factory=dict)
    within: list[int] = field(default_factory=lambda: [0] * (len(_SECONDS) + 1))
    took_s: float = 0.0


class _Operations(Collector):
    """Counts of operations. It only adds: the library's own counters cost a tenth of a read."""

    def __init__(self) -> None:
        self._served: dict[tuple[str, str], _Served] = {}

    def count(self, service: str, operation: str, kind: str, took_s: float) -> None:
        """Count one operation, on the event loop only; `kind` empty: it succeeded."""
        served = self._served.get((service, operation))
        if served is None:
            served = self._served[service, operation] = _Served()
        served.outcomes[kind] = served.outcomes.get(kind, 0) + 1
        served.within[bisect_left(_SECONDS, took_s)] += 1
        served.took_s += took_s

    def collect(self) -> Iterator[Metric]:
        """Return the library's counter and histogram."""
        requests = CounterMetricFamily(
            "chelonia_requests", "Operations served, by outcome (ok or the kind of error).",
            labels=("service", "operation", "outcome"),
        )  # fmt: skip
        latency = HistogramMetricFamily(
            "chelonia_request_seconds", "Time from the first byte of an operation to its answer.",
            labels=("service", "operation"),
        )  # fmt: skip
        bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
        for names, served in sorted(self._served.items()):
            for kind, count in sorted(served.outcomes.items()):
                requests.add_metric((*names, kind or "ok"), count)
            latency.add_metric(names, list(zip(bounds, accumulate(served.within), strict=True)), served.took_s)
        yield requests
        yield latency


class _ReadCounter(Collector):
    """A counter kept elsewhere: `read` returns its counts by the values of `labels`."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Counts]) -> None:
        self._family = name, text, labels
        self._read = read

    def collect(self) -> Iterator[Metric]:
        name, text, labels = self._family
        family = CounterMetricFamily(name, text, labels=labels)
        for values, count in sorted(self._read().items()):
            family.add_metric(values, count)
        yield family


class Metrics:
    """The metrics of one node. `limits`: its services' counts of reached bounds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.limits = LimitCounts(lambda: time.monotonic_ns() // 1_000_000)
        self._counted = [self.limits]
        text = "How often a bound refused, cut or ended something; the log says whose."
        self.keep("limits_reached", text, ("limit",), self._limits_reached)
        self._readers: list[Reader] = []
        r = self.registry
        ProcessCollector(registry=r)  # memory, CPU, open files, and when it started
        operations = _Operations()
        r.register(operations)
        self.operation = operations.count
        """Counts one operation."""
        # Shown from the start: nothing moved is not the same as nothing known.
        self._bytes: dict[tuple[str, ...], float] = {("in",): 0, ("out",): 0}
        self.keep("data_bytes", "File bytes moved, by direction.", ("direction",), lambda: self._bytes)
        self._http: dict[tuple[str, ...], float] = {}
        self.keep("http_responses", "HTTP answers by status class.", ("status",), lambda: self._http)
        self._cut: dict[tuple[str, ...], float] = {(): 0}
        text = "Clients' connections cut because this process stood still."
        self.keep("connections_cut", text, (), lambda: self._cut)
        self._lives: set[int] = set()
        self._gauges: dict[str, Gauge] = {}

    def keep(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Counts]) -> None:
        """Show a counter kept elsewhere, as `read` returns it; `name` without the prefix `chelonia_`."""
        self.registry.register(_ReadCounter(f"chelonia_{name}", text, labels, read))

    def cut(self, count: int) -> None:
        """Count connections that the guard cut."""
        self._cut[()] += count

    def count(self, limits: LimitCounts) -> None:
        """Show a service's own counts of reached bounds; no other service uses its names."""
        self._counted.append(limits)

    def _limits_reached(self) -> Counts:
        return {(name,): count for limits in self._counted for name, count in limits.reached.items()}

    def data(self, direction: str, count: int) -> None:
        """Count file bytes; `direction` is `in` or `out`."""
        self._bytes[direction,] += count

    def answered(self, status: int) -> None:
        names = (f"{status // 100}xx",)
        self._http[names] = self._http.get(names, 0) + 1

    def gauge(self, name: str, text: str, value: float) -> None:
        """Set a plain gauge, made at its first use; `name` without the prefix `chelonia_`."""
        self._gauge(name, text).set(value)

    def gauges(self, name: str, text: str, label: str, values: Mapping[Any, float]) -> None:
        """Set a gauge for each value of a label; values no longer given vanish."""
        gauge = self._gauge(name, text, label)
        gauge.clear()
        for which, value in sorted(values.items()):
            gauge.labels(str(which)).set(value)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"chelonia_{name}", text, labels, registry=self.registry)
        return self._gauges[name]

    def healing(self, status: HealStatus) -> None:
        """Set the gauges of healing. A class of exposed files that has emptied shows 0, not its last number."""
        exposed = {found.live: found.blobs for found in status.exposed}
        self._lives.update(exposed)
        text = "Files with fewer verified copies than wanted, by copies left."
        self.gauges("heal_exposed", text, "left", {**dict.fromkeys(self._lives, 0), **exposed})
        for name, text, value in (
            ("leader", "Whether this Librarian leads repair: its figures are the whole picture.", status.is_leader),
            ("paused", "Whether an administrator has paused healing.", status.control.paused),
            ("waiting", "Whether all healing waits for a rebuild that is not through.", bool(status.waits_for)),
            ("copies_to_go", "Copies to be made for all exposed files.", status.copies_to_go),
            ("bytes_to_go", "Their bytes.", status.bytes_to_go),
            ("bytes_per_second", "Bytes of repair copies a second, lately.", status.bytes_per_s),
            ("copies_per_minute", "Repair copies a minute, lately.", status.copies_per_min),
            ("delayed", "Exposed files whose missing copies are waited for.", status.delayed),
            ("lost", "Files without a verified copy anywhere: alert on more than 0.", status.lost),
            ("unreachable", "Files whose verified copies are all on Shepherds away now.", status.unreachable),
            ("stuck", "Exposed files that no Shepherd can take or give a copy of.", status.stuck),
            ("forecast_seconds", "Until nothing is exposed; -1: not known.", max(status.forecast_ms / 1000, -1)),
        ):
            self.gauge(f"heal_{name}", text, value)

    def shepherds(self, nodes: Iterable[NodeView]) -> None:
        """Set the gauge of Shepherds by state. A state that none is in shows 0, not its last number."""
        found = Counter(node.state for node in nodes)
        states = (NODE_ALIVE, NODE_OFFLINE, NODE_MAINTENANCE, NODE_WAITING)
        self.gauges(
            "shepherds", "Shepherds by state, as this Librarian sees them.", "state", {s: found[s] for s in states}
        )

    def drill(self, drill: Drill) -> None:
        """Set the gauges of drills: whether one runs, how many there were, how the last one went."""
        for name, text, value in (
            ("running", "Whether a drill runs: what is missing meanwhile is meant to be.", drill.running),
            ("number", "Drills so far.", drill.number),
            ("failed", "Whether the last drill ended late or was called off.", drill.stage in DRILL_FAILED),
            ("noticed_seconds", "Until the harm of the last drill was noticed.", _lasted_s(drill, drill.noticed_ms)),
            ("whole_seconds", "Until all was whole again in the last drill.", _lasted_s(drill, drill.whole_ms)),
        ):
            self.gauge(f"drill_{name}", text, value)

    def read_with(self, reader: Reader) -> None:
        """Call `reader` before each exposition."""
        self._readers.append(reader)

    async def expose(self) -> bytes:
        """Return the exposition text, with fresh gauges."""
        for reader in self._readers:
            await reader()
        return generate_latest(self.registry)


def _lasted_s(drill: Drill, until_ms: int) -> float:
    """Return seconds from a drill's beginning; -1 when `until_ms` has not come (0)."""
    return (until_ms - drill.began_ms) / 1000 if until_ms else -1.0
