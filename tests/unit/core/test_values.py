"""One way to change a value, whatever it is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from chelonia.core.metadata import Triple
from chelonia.core.values import replace

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Settled:
    """Stands for the values that are dataclasses still."""

    section: str
    property: str
    value: str


@pytest.mark.parametrize("kind", [Triple, Settled])
def test_a_value_is_changed_by_another_one(kind: type[Triple]) -> None:
    before = kind("states", "size", "1")
    after = replace(before, value="2")
    assert (before, after) == (kind("states", "size", "1"), kind("states", "size", "2"))
    with pytest.raises(TypeError):
        replace(before, values="2")


def test_nobody_changes_values_in_a_way_that_serves_some_of_them_only() -> None:
    ways = re.compile(r"^from dataclasses import .*\breplace\b|\bdataclasses\.replace\(", re.MULTILINE)
    sources = [path for room in ("chelonia", "clients", "fuse", "tests") for path in (ROOT / room).rglob("*.py")]
    ours = {ROOT / "chelonia/core/values.py", Path(__file__)}
    assert [str(path) for path in sources if path not in ours and ways.search(path.read_text("utf-8"))] == []
