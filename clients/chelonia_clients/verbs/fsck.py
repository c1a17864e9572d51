"""`chelonia admin fsck`: checks the whole metadata, or those below a name, and on request repairs them.

The Librarian checks and mends; this module goes from page to page, counts and reports. A repair may reveal or settle
other findings, so passes are repeated until one has repaired nothing. Its findings are those that are left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from chelonia.core.errors import CheloniaError, ExitCode, Kind
from chelonia.core.ids import Guid
from chelonia.core.names import parse_ln
from chelonia.core.ports.librarian import Finding, Severity
from chelonia_clients.arguments import Arguments
from chelonia_clients.client import new_call
from chelonia_clients.output import counted, record_facts, table
from chelonia_clients.progress import Bar
from chelonia_clients.session import Session
from chelonia_clients.verbs.ahash import warn_parted

PASSES_MAX: Final = 5
"""Passes of `--repair`: one to find, and some for findings that repairs reveal."""
MENDED_PER_CALL: Final = 100
"""Findings repaired by one call: each is several reads and a transact."""
FINDINGS_LEFT: Final = 1
"""Exit code when faults are left; where files are only unreachable it is that of the network."""
UNREACHABLE: Final = "blob-unreachable"
"""Rule of files that cannot be read while their Shepherds are away."""


@dataclass(slots=True)
class FsckTally:
    """Findings of one pass. `left`: those that no repair has settled."""

    examined: int = 0
    mended: Counter[str] = field(default_factory=Counter)
    severity: dict[str, Severity] = field(default_factory=dict)
    left: list[Finding] = field(default_factory=list)

    @property
    def faults(self) -> list[Finding]:
        """Findings left that are more than work in progress."""
        return [finding for finding in self.left if finding.severity is not Severity.WORK]


async def fsck(session: Session, arguments: Arguments, path: str) -> None:
    """Check the metadata below `path`, all when it is ""; `--repair` mends where that is safe."""
    below = await guid_of(session, path) if path else Guid("")
    repair = arguments.has("--repair")
    tally = await _pass(session, below, repair=repair)
    mended, passes = tally.mended, 1
    while tally.mended and passes < PASSES_MAX:
        tally = await _pass(session, below, repair=repair)
        mended, passes = mended + tally.mended, passes + 1
    _report(session, tally, mended)
    if await warn_parted(session):
        session.out.exit_code = session.out.exit_code or FINDINGS_LEFT


async def guid_of(session: Session, path: str, op: str = "fsck") -> Guid:
    """Return the GUID that a Logical Name leads to. Raises: NOT_FOUND."""
    ln = parse_ln(session.ln(path))
    [walk] = await session.administrator().librarian.traverse(new_call(), (ln,))
    if not walk.complete or not walk.last.exists:
        raise CheloniaError(
            Kind.NOT_FOUND, op, path, "no such name" + "; without one everything is checked" * (op == "fsck")
        )
    return walk.guid


async def _pass(session: Session, below: Guid, *, repair: bool) -> FsckTally:
    tally, cursor, librarian = FsckTally(), "", session.administrator().librarian
    with Bar("checking", beside=session.bars, unit="objects") as bar:
        while True:
            page = await librarian.fsck(new_call(), below, cursor)
            tally.examined += page.examined
            bar.expect(page.objects or -1)
            bar.advance(page.examined)
            for finding in page.findings:
                tally.severity[finding.rule] = finding.severity
            if repair:
                await _mend(session, tally, [finding for finding in page.findings if finding.mendable])
            tally.left += [finding for finding in page.findings if not (repair and finding.mendable)]
            cursor = page.cursor
            if not cursor:
                return tally


async def _mend(session: Session, tally: FsckTally, findings: list[Finding]) -> None:
    for start in range(0, len(findings), MENDED_PER_CALL):
        batch = tuple(findings[start : start + MENDED_PER_CALL])
        answers = await session.administrator().librarian.mend(new_call(), batch)
        for finding, answer in zip(batch, answers, strict=True):
            if not answer.done:
                session.out.notify(f"not repaired: {finding}: {answer.what}")
                tally.left.append(finding)
                continue
            tally.mended[finding.rule] += 1
            session.out.write(f"repaired: {finding}: {answer.what}")
            session.out.result(**record_facts(finding), repaired=answer.what)


def _report(session: Session, tally: FsckTally, mended: Counter[str]) -> None:
    out, faults = session.out, tally.faults
    away = [finding for finding in tally.left if finding.rule == UNREACHABLE]
    for finding in tally.left if out.verbose else (*faults, *away):
        out.write(f"{finding.severity.value}: {finding}" + (" [--repair]" if finding.mendable else ""))
        out.result(**record_facts(finding))
    rows = [("RULE", "SEVERITY", "LEFT", "REPAIRED")]
    left = Counter(finding.rule for finding in tally.left)
    for rule in sorted({*left, *mended}):
        severity = tally.severity.get(rule, Severity.DISAGREEMENT).value
        rows.append((rule, severity, str(left[rule]), str(mended[rule])))
    if len(rows) > 1:
        out.write(*table(rows, frozenset({2, 3})))
    count, work = tally.examined, sum(left.values()) - len(faults)
    sound = "nothing is lost" if away else "clean"
    out.write(f"{count} objects checked: " + (f"{len(faults)} findings" if faults else sound))
    if work:
        how_far = "`chelonia admin heal status` shows how far, -v names them"
        out.write(f"{work} in hand: repair works on them as far as it can ({how_far})")
    out.document.update(examined=count, findings=len(faults), in_hand=work, left=dict(left), repaired=dict(mended))
    if away:
        out.write(
            f"not lost, but not to be read now: {counted(len(away), 'file')}; start the Shepherds, or wait for them"
        )
    if faults or away:
        out.exit_code = out.exit_code or (FINDINGS_LEFT if faults else int(ExitCode.NETWORK))
