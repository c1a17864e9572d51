"""The operations of the port `Shepherd`."""

from typing import Final

from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.operations.rows import Retry, row, table
from chelonia.core.ports.shepherd import Shepherd

_L, _B, _A = Role.LIBRARIAN, Role.BARTENDER, Role.ADMINISTRATOR

READING_MS: Final = 15 * 60 * 1000
"""Wait for the answer to calls that read whole replicas, or many records."""

SHEPHERD: Final = table(
    "shepherd",
    row(Shepherd.get, _B, _L),
    row(Shepherd.put, _B, _L),
    row(Shepherd.store, _B, retry=Retry.ONCE),  # a second call would meet what the first has stored
    row(Shepherd.fetch, _B, brief=True),
    row(Shepherd.sums, _B, brief=True),
    row(Shepherd.stat, _B, _L, _A),
    row(Shepherd.delete, _L),
    row(Shepherd.toggle_report, _A),
    row(Shepherd.copy, _L, answer_ms=bounds.COPY_ANSWER_MS),
    row(Shepherd.drill, _L),
    row(Shepherd.prove, _L, answer_ms=READING_MS),
    row(Shepherd.scrub, _L, _A, answer_ms=READING_MS),
    row(Shepherd.scrub_page, _A, answer_ms=READING_MS),
    row(Shepherd.discard, _A, answer_ms=READING_MS),
    row(Shepherd.readmit, _L, _A, answer_ms=READING_MS),
    row(Shepherd.status, _B, _L, _A),
    row(Shepherd.records, _L, _A, answer_ms=READING_MS),
)
