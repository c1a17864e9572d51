"""Shows the demo as it happens: a live table where there is a terminal, plain lines where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from samples import STATES, Sample

_STYLE = {"alive": "green", "offline": "grey62", "creating": "blue", "thirdwheel": "yellow", "invalid": "red"}


class View:
    """Tells the story: headings, notes, and the replica counts while the experiment runs."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live: Live | None = None
        self._last: Sample | None = None
        self._names: Mapping[str, str] = {}

    def heading(self, text: str) -> None:
        self.console.print(f"\n[bold]== {text}[/bold]", soft_wrap=True)

    def note(self, text: str) -> None:
        self.console.print(f"   {text}", markup=False, soft_wrap=True)

    def start_watching(self, names: Mapping[str, str]) -> None:
        """Begin to show samples; `names`: service id -> short name."""
        self._names = names
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=True)
            self._live.start()

    def show(self, sample: Sample) -> None:
        """Show one sample; without a terminal only when it differs from the one before."""
        if self._live is not None:
            self._live.update(self._picture(sample))
        elif self._last is None or not sample.same_counts(self._last):
            self.console.print("   " + sample.line, style=None)
        self._last = sample

    def stop_watching(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left")
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def _picture(self, sample: Sample) -> Group:
        table = Table(box=None, show_header=False)
        for state in STATES:
            count = getattr(sample, state)
            table.add_row(state.upper(), f"{count:>3}", Text("█" * count, style=_STYLE[state]))
        nodes = "   ".join(f"{self._names.get(node, node)}: {count}" for node, count in sample.per_shepherd.items())
        return Group(Text(f"{sample.ms / 1000:.1f} s", style="bold"), table, Text("live replicas   " + nodes))
