"""Samples the ten files while the demo breaks things, and keeps the times of each state."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plot import svg
from samples import Sample, sample_of
from view import View

from chelonia.core.errors import CheloniaError
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import Client

FILES = 10
REPLICAS = 4
WANTED = FILES * REPLICAS
SAMPLE_EVERY_S = 0.2
FORECAST_EVERY_S = 0.2
PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cluster's forecast at `ms`: whole again in `takes_ms` (-1: not known), `copies` and `size` bytes to go."""

    ms: int
    takes_ms: int
    copies: int
    size: int


class Experiment:
    """Samples the replicas of some files; `until` waits for a state and notes when it came."""

    def __init__(self, client: Client, view: View, names: Mapping[str, str], files: Sequence[str]) -> None:
        self.forecast: Forecast | None = None
        self.names = names
        self.files = files
        self.samples: list[Sample] = []
        self.marks: list[tuple[int, str]] = []
        self.seen: dict[str, int] = {}
        self._client, self._view = client, view
        self._began = time.monotonic()

    @property
    def initial(self) -> Sample:
        """The first sample of a whole cluster."""
        return next(sample for sample in self.samples if sample.alive == WANTED)

    @property
    def complete(self) -> bool:
        """Whether the last sample is of a whole cluster."""
        return bool(self.samples) and self.samples[-1].alive == WANTED and len(self.seen) >= 7

    def mark(self, text: str) -> None:
        """Note an act on the cluster."""
        self.marks.append((self._now_ms(), text))
        self._view.note(f"{self._now_ms() / 1000:7.1f} s  -- {text}")

    def note(self, text: str) -> None:
        self._view.note(f"           {text}")

    async def ask_forecast(self, administrator: Administrator) -> None:
        """Request the cluster's forecast, once it has surveyed all that was lost. Raises: SystemExit."""
        give_up, before = time.monotonic() + PATIENCE_S, -1
        while self.forecast is None:
            status = await administrator.heal_status()
            whole, before = before, status.copies_done + status.copies_to_go
            if status.copies_to_go and status.forecast_ms >= 0 and whole == before:
                found = Forecast(self._now_ms(), status.forecast_ms, status.copies_to_go, status.bytes_to_go)
                self.forecast = found
                self._view.note(
                    f"{found.ms / 1000:7.1f} s  forecast (chelonia admin heal status): {found.copies} copies,"
                    f" {found.size / 1e6:.0f} MB to go, whole in {_s(found.takes_ms)}"
                )
            elif time.monotonic() > give_up:
                raise SystemExit("waited in vain for a forecast")
            elif not status.exposed and self.samples and self.samples[-1].alive == WANTED:
                return self._view.note("healed before it could be asked for a forecast")
            else:
                await self._sample()
                await asyncio.sleep(FORECAST_EVERY_S)

    async def until(self, what: str, condition: Callable[[Sample], bool]) -> None:
        """Sample until `condition` holds. Raises: SystemExit when it does not come."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            sample = await self._sample()
            if sample is not None and condition(sample):
                self.seen[what] = sample.ms
                self._view.note(f"{sample.ms / 1000:7.1f} s  {what}")
                return
            if time.monotonic() > give_up:
                last = self.samples[-1].line if self.samples else "nothing"
                raise SystemExit(f"waited in vain for: {what}; last seen: {last}")
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def linger(self, seconds: float) -> None:
        """Go on sampling for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self._sample()
            await asyncio.sleep(SAMPLE_EVERY_S)

    def comparison(self) -> list[tuple[str, str, str]]:
        """Rows (what, here, paper) of the final table; durations in seconds."""
        peak = max(sample.alive + sample.thirdwheel for sample in self.samples)
        killed, returned, damaged = (ms for ms, _text in self.marks)
        low = min(sample.alive for sample in self.samples if killed <= sample.ms <= returned)
        seen = self.seen
        whole = seen["40 alive again without S3"]
        told = self.forecast
        beside = f"{_s(told.takes_ms)} / {_s(whole - told.ms)}" if told else "healed before it was asked"
        return [
            ("replicas wanted", str(WANTED), "40"),
            ("fewest alive after the kill", str(low), "32"),
            ("loss noticed after", _s(seen["S3's copies are seen to be away"] - killed), "under 15 s"),
            ("40 alive again after", _s(seen["40 alive again without S3"] - killed), "about 60 s"),
            ("its own forecast / the real time from then on", beside, "no forecast"),
            ("most copies after its return", str(peak), "over 40"),
            ("exactly 40 again after its return in", _s(seen["exactly 40 again"] - returned), "about 75 s"),
            ("damage noticed after", _s(seen["the damage is seen"] - damaged), "not measured"),
            ("damage replaced after", _s(seen["replaced: 40 sound replicas"] - damaged), "not measured"),
        ]

    def write(self, json_path: Path, svg_path: Path, file_bytes: int) -> None:
        """Write the samples and the plot."""
        document = {
            "files": len(self.files),
            "file_bytes": file_bytes,
            "wanted": WANTED,
            "shepherds": dict(self.names),
            "marks": [{"ms": ms, "what": what} for ms, what in self.marks],
            "forecast": asdict(self.forecast) if self.forecast else None,
            "seen": [{"ms": ms, "what": what} for what, ms in self.seen.items()],
            "samples": [sample.as_json() for sample in self.samples],
        }
        json_path.write_text(json.dumps(document, indent=1) + "\n")
        svg_path.write_text(svg(self.samples, self.marks, WANTED))

    async def _sample(self) -> Sample | None:
        """Look once; None when the cluster did not answer."""
        try:
            stats = await asyncio.gather(*(self._client.stat(ln) for ln in self.files))
        except CheloniaError as error:
            self._view.note(f"no answer: {error}")
            return None
        sample = sample_of(self._now_ms(), [stat.get("locations", {}) for stat in stats], self.names)
        self.samples.append(sample)
        self._view.show(sample)
        return sample

    def _now_ms(self) -> int:
        return round((time.monotonic() - self._began) * 1000)


def _s(ms: int) -> str:
    return f"{ms / 1000:.1f} s"
