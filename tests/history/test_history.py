"""The checker accepts good histories and refuses bad ones; an A-Hash under faults gives good ones, a broken one bad.

Hand-made histories stand in golden/: `good`, `bad` and `unusable`, each with its point as its name.
"""

import asyncio
import subprocess
import uuid
from pathlib import Path

import pytest

from chelonia.core.caller import Call
from tests.cluster.harness import Cluster
from tests.history import broken, porcupine, records, run, session
from tests.history.broken import Mistakes
from tests.history.porcupine import Judgement
from tests.history.recorder import Plan
from tests.history.records import Fault, History, Model, Op, Operation, Outcome
from tests.support.polling import poll_async

GOLDEN = Path(__file__).with_name("golden")
EXPECTED = {
    "good": Judgement.LINEARIZABLE,
    "bad": Judgement.NOT_LINEARIZABLE,
    "unusable": Judgement.UNUSABLE,
}
UNBROKEN = Mistakes()
BROKEN = {
    "answers before the commit is durable": Mistakes(behind=3),
    "reads from a cache": Mistakes(stale_reads=3),
    "carries a repeated request out again": Mistakes(forgets_keys=True),
}


def goldens(kind: str) -> list[Path]:
    return sorted((GOLDEN / kind).glob("*.jsonl"))


@pytest.mark.parametrize(
    "path", [p for kind in EXPECTED for p in goldens(kind)], ids=lambda p: f"{p.parent.name}/{p.stem}"
)
def test_the_checker_judges_hand_made_histories(checker: Path, path: Path) -> None:
    verdict = porcupine.check(checker, path)
    assert verdict.judgement is EXPECTED[path.parent.name], verdict.words


def test_there_are_hand_made_histories_of_every_kind() -> None:
    assert all(len(goldens(kind)) >= 10 for kind in EXPECTED)


def test_what_does_not_fit_is_explained_and_drawn(checker: Path, tmp_path: Path) -> None:
    drawing = tmp_path / "drawn.html"
    verdict = porcupine.check(checker, GOLDEN / "bad" / "one-bad-key-of-two.jsonl", drawing)
    assert "NOT LINEARIZABLE: key k2" in verdict.words
    assert "client 1: read -> nothing" in verdict.words
    assert 'holds "b"' in verdict.words
    assert drawing.read_text().lower().startswith("<!doctype html>")


def test_shortening_unknown_operations_changes_no_verdict(checker: Path) -> None:
    """The check runs in Go, on random histories; `checker` stands for Go and its module."""
    assert checker.exists()
    done = subprocess.run(["go", "test", "./..."], cwd=porcupine.SOURCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    [*operations] = broken.record(UNBROKEN, operations=200).operations
    operations.sort(key=lambda operation: operation.call)
    history = History(tuple(operations), (Fault("killed A-Hash 1", 3, 7),))
    assert {o.outcome for o in operations} >= {Outcome.OK, Outcome.UNMET}
    records.write(tmp_path / "h.jsonl", history)
    assert records.read(tmp_path / "h.jsonl") == history


# ------------------------------------------------------------------------------------------- in memory, on virtual time


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_unbroken_ahash_passes(checker: Path, tmp_path: Path, seed: int) -> None:
    history = broken.record(UNBROKEN, seed)
    records.write(tmp_path / "h.jsonl", history)
    code, words = run.judge(checker, tmp_path / "h.jsonl", faults=True)
    assert code == 0, words
    assert any(o.op is Op.CAS and o.outcome is Outcome.OK for o in history.operations)
    assert any(o.tries > 1 and o.outcome is Outcome.OK for o in history.operations), "nothing was ever repeated"


@pytest.mark.parametrize("mistakes", BROKEN.values(), ids=BROKEN)
def test_a_broken_ahash_is_caught(checker: Path, tmp_path: Path, mistakes: Mistakes) -> None:
    history = broken.record(mistakes, seed=1)
    records.write(tmp_path / "h.jsonl", history)
    verdict = porcupine.check(checker, tmp_path / "h.jsonl")
    assert verdict.judgement is Judgement.NOT_LINEARIZABLE, verdict.words
    code, words = run.judge(checker, tmp_path / "h.jsonl", faults=True)
    assert code == 1, words


def test_a_seed_is_one_history() -> None:
    assert broken.record(UNBROKEN, seed=4, operations=300) == broken.record(UNBROKEN, seed=4, operations=300)


@pytest.mark.parametrize("mistakes", BROKEN.values(), ids=BROKEN)
def test_the_session_checker_catches_a_broken_ahash_too(mistakes: Mistakes) -> None:
    assert session.check(broken.record(mistakes, seed=1))


# ----------------------------------------------------------------------------------------------------- enough happened


def answered(count: int) -> tuple[Operation, ...]:
    return tuple(Operation(0, "k", Model.REGISTER, Op.READ, 10 * n, 10 * n + 5) for n in range(count))


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        (History(answered(10)), "only 10 operations"),
        (History(answered(300)), "no fault happened"),
        (History(answered(300), (Fault("killed A-Hash 1", 5000, 5001),)), "no operation was under way"),
        (History(answered(300), (Fault("killed A-Hash 1", 11, 12),)), ""),
    ],
)
def test_a_history_in_which_too_little_happened_proves_nothing(history: History, complaint: str) -> None:
    found = run.too_little(history, faults=True)
    assert complaint in found
    assert bool(complaint) == bool(found)


# ------------------------------------------------------------------------------------------------------ real processes


async def test_a_real_ahash_that_is_killed_frozen_and_loses_a_disk_passes(
    checker: Path, tmp_path: Path, tormented: Cluster
) -> None:
    """A smoke of what `make check-history` does at length."""
    target = run.target_of(tormented, seed=1, every_s=1.0)
    history = await run.record(target, Plan(uuid.uuid4().hex[:12], clients=6), 20.0)
    records.write(tmp_path / "h.jsonl", history)
    verdict = await asyncio.to_thread(porcupine.check, checker, tmp_path / "h.jsonl")
    assert verdict.judgement is Judgement.LINEARIZABLE, verdict.words
    assert session.check(history) == []
    assert {fault.what.partition(" A-Hash")[0] for fault in history.faults} >= {"killed", "froze", "lost the disk of"}
    assert not run.too_little(history, faults=True)


async def test_recorded_keys_are_deleted_where_they_would_stay(tormented: Cluster) -> None:
    """Against a foreign A-Hash, nothing may be left behind."""

    async def no_faults(*_: object) -> None:
        return

    target = run.target_of(tormented, seed=1)
    async with tormented.ports("admin") as ports:
        before = (await ports.ahash.status(Call().strongly())).objects_estimate
        quiet = run.Target(target.urls, target.tls, no_faults)
        await run.record(quiet, Plan(uuid.uuid4().hex[:12], key_operations=20), 1.0, clean=True)

        async def as_before() -> bool:
            return (await ports.ahash.status(Call().strongly())).objects_estimate == before

        await poll_async(as_before, what="no key is left")
