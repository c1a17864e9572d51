"""Single-line mistakes, each with the quick test that must notice it. `python -m tests.support.mistakes` plants them.

Each is made in a copy of the working tree, one at a time; nothing here is changed. The last table stands in
`docs/design/008-simulation.md`. `tests/unit/test_mistakes.py` checks that all can still be planted.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CAUGHT_MIN: Final = 19
"""Of twenty."""

BLOBS = "chelonia/shepherd/store/blobs_files.py"
BDB = "chelonia/ahash/store/bdb"
SHEPHERD_LOSS = "tests/unit/shepherd/store/test_power_loss.py"
AHASH_LOSS = "tests/unit/ahash/store/bdb/test_power_loss.py"
SCRUB = "tests/unit/shepherd/test_scrub_whole.py"
MEANWHILE = "tests/unit/librarian/test_meanwhile.py"


@dataclass(frozen=True, slots=True)
class Mistake:
    """In `path`, the one `line` that is found once becomes `wrong`; `test` has to fail."""

    what: str
    path: str
    line: str
    wrong: str
    test: str


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "the directory is not synced after a replica is published",
        BLOBS,
        "            sync_path(final.parent)\n        except",
        "        except",
        SHEPHERD_LOSS,
    ),
    Mistake(
        "bytes are renamed before they are synced",
        BLOBS,
        "        os.fsync(self._fd)\n        final = self._store.replica(self._reference)\n",
        "        final = self._store.replica(self._reference)\n",
        SHEPHERD_LOSS,
    ),
    Mistake(
        "the record is not synced", BLOBS, "        for fd in opened:\n            os.fsync(fd)\n", "", SHEPHERD_LOSS
    ),
    Mistake(
        "a failed background sync is forgotten",
        BLOBS,
        "                await sync\n            except OSError as error:\n",
        "                await sync\n            except OSError as error:\n                return\n",
        SHEPHERD_LOSS,
    ),
    Mistake(
        "what a suspended upload wrote is not synced",
        BLOBS,
        "        os.fsync(self._fd)  # a write error of these bytes may not be reported to the next descriptor\n",
        "",
        SHEPHERD_LOSS,
    ),
    Mistake(
        "an erasure does not sync the directory",
        BLOBS,
        "    if found:\n        sync_path(place.parent)\n",
        "",
        SHEPHERD_LOSS,
    ),
    Mistake(
        "a Shepherd's state and identity are not synced",
        "chelonia/durable_files.py",
        "            os.fsync(descriptor)\n        temporary.replace(path)\n",
        "        temporary.replace(path)\n",
        SHEPHERD_LOSS,
    ),
    Mistake(
        "notes before a mark are not synced",
        "chelonia/shepherd/store/blobs_notes.py",
        "        if MARK in notes or (before",
        "        if (before",
        SHEPHERD_LOSS,
    ),
    Mistake(
        "store of one: commits are not synced",
        f"{BDB}/store.py",
        "txn.commit(bdb.DB_TXN_SYNC)",
        "txn.commit(bdb.DB_TXN_WRITE_NOSYNC)",
        AHASH_LOSS,
    ),
    Mistake(
        "a master's commits are not synced",
        f"{BDB}/commits.py",
        "bdb.DB_TXN_NOSYNC if mark.late else bdb.DB_TXN_SYNC",
        "bdb.DB_TXN_WRITE_NOSYNC",
        AHASH_LOSS,
    ),
    Mistake(
        "a follower vouches for what it has not synced",
        f"{BDB}/replicated.py",
        "            self._env.log_flush()\n            self._brief.note",
        "            self._brief.note",
        AHASH_LOSS,
    ),
    Mistake(
        "the witness of what was vouched for is not synced when it is new",
        f"{BDB}/files.py",
        "            if first:  # ",
        "            if False:  # ",
        AHASH_LOSS,
    ),
    Mistake(
        "the scrub checks only files of one chunk",
        "chelonia/shepherd/scrubber.py",
        "        if held.blob and facts.blob != held.blob:\n",
        "        if facts.size > bounds.CHUNK_BYTES:\n            return ''\n"
        "        if held.blob and facts.blob != held.blob:\n",
        SCRUB,
    ),
    Mistake(
        "a scrub by pages leaves the last replica out",
        "chelonia/shepherd/scrubber.py",
        "        left = self._left(order, after)\n",
        "        left = max(self._left(order, after) - 1, 0)\n",
        SCRUB,
    ),
    Mistake(
        "receipts of another upload are accepted",
        "chelonia/librarian/metadata/blobs.py",
        "        if receipt.blob != blob:\n",
        "        if not receipt.blob:\n",
        MEANWHILE,
    ),
    Mistake(
        "an expired upload is erased though it was committed meanwhile",
        "chelonia/librarian/leadership/sweep.py",
        'erase(found.id, is_("entry", "type", TYPE_PENDING))',
        "erase(found.id)",
        MEANWHILE,
    ),
    Mistake(
        "a trim does not depend on the blob's version",
        "chelonia/librarian/repair/trim.py",
        "PlannedTransact([*on_version(elements, blob), self._leading.check()])",
        "PlannedTransact([*elements, self._leading.check()])",
        MEANWHILE,
    ),
    Mistake(
        "what a leader writes does not depend on its term",
        "chelonia/librarian/leadership/lease/act.py",
        "PlannedTransact([self.check(), *elements])",
        "PlannedTransact([*elements])",
        MEANWHILE,
    ),
    Mistake(
        "the right to write is decided but not conditioned on",
        "chelonia/bartender/files/writing.py",
        "        expect=tuple(dict.fromkeys(expect)),\n",
        "        expect=(),\n",
        "tests/unit/bartender/test_transfers.py",
    ),
    Mistake(
        "a copy that is not listed, as one too many, is never told of again",
        "chelonia/librarian/presence/reports.py",
        'a copy of {blob_id} already")\n        judged.unknown.append(location.reference)\n',
        'a copy of {blob_id} already")\n',
        "tests/unit/librarian/presence/test_reports.py",
    ),
)


def planted(mistake: Mistake, root: Path = ROOT) -> str:
    """The module with the mistake. Raises: ValueError when the line is not there, or more than once."""
    text = (root / mistake.path).read_text()
    if (count := text.count(mistake.line)) != 1:
        raise ValueError(f"{mistake.what}: its line is {count} times in {mistake.path}")
    return text.replace(mistake.line, mistake.wrong)


def caught(mistake: Mistake, copy: Path) -> str:
    """The first test that failed with the mistake, "" when none did."""
    path = copy / mistake.path
    good = path.read_text()
    path.write_text(planted(mistake, copy))
    try:
        argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mistake.test]
        done = subprocess.run(argv, cwd=copy, capture_output=True, text=True, timeout=600, check=False)
    finally:
        path.write_text(good)
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition("::")[2].partition(" ")[0] if failed else "the tests did not run"


def main(arguments: Sequence[str]) -> int:
    """Plant each, and print which test noticed it; 0 when all but one were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mistakes")
    parser.add_argument("only", nargs="*", help="words of those to plant; all when there are none")
    options = parser.parse_args(arguments)
    chosen = [each for each in MISTAKES if not options.only or any(word in each.what for word in options.only)]
    missed = 0
    print("| mistake | where | noticed by | seconds |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "build", "__pycache__", ".*_cache"))
        for mistake in chosen:
            began = time.monotonic()
            by = caught(mistake, copy)
            missed += not by
            where, seconds = mistake.path.removeprefix("chelonia/"), time.monotonic() - began
            print(f"| {mistake.what} | `{where}` | {by or '**nothing**'} | {seconds:.0f} |", flush=True)
    return 0 if missed <= len(MISTAKES) - CAUGHT_MIN else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
