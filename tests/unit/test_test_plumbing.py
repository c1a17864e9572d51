"""The test plumbing itself: that each guard can fail."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.conform import clients
from tests.support import polling
from tests.support.polling import NotReached, poll, poll_async

ROOT = Path(__file__).parents[2]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """Give an empty project under this project's own conftest."""
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini(
        f"[pytest]\npythonpath = {ROOT}\nasyncio_mode = auto\nmarkers =\n"
        "    expect_log(pattern): x\n    capability(name): x\n    needs_root: x\n"
    )
    return pytester


def run(suite: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run the inner suite in a process of its own."""
    return suite.runpytest_subprocess("-p", "no:cacheprovider", "-ra", *args)


def test_an_undeclared_warning_fails_the_test(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import logging

        def test_loud():
            logging.getLogger("chelonia.x").warning("disk %s is full", 7)

        def test_info():
            logging.getLogger("chelonia.x").info("all is well")
        """
    )
    result = run(suite)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*undeclared in the test's log*", "*WARNING chelonia.x disk 7 is full*"])


def test_a_warning_of_a_fixture_fails_too(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import logging, pytest

        @pytest.fixture
        def loud_at_end():
            yield
            logging.getLogger().error("left open")

        @pytest.fixture
        def loud_at_start():
            logging.getLogger().error("half open")

        def test_end(loud_at_end): pass
        def test_start(loud_at_start): pass
        """
    )
    run(suite).assert_outcomes(passed=1, errors=1, failed=1)


def test_a_declared_warning_passes_and_must_come(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import logging, pytest

        @pytest.mark.expect_log("disk .* full")
        def test_marked():
            logging.getLogger("x").warning("disk 7 is full")

        def test_fixture(expect_log):
            logging.getLogger("x").error("gone")
            expect_log("ERROR x gone")
            expect_log("may come", optional=True)

        def test_never_comes(expect_log):
            expect_log("late")

        def test_other(expect_log):
            expect_log("this")
            logging.getLogger("x").warning("this")
            logging.getLogger("x").warning("that")
        """
    )
    run(suite).assert_outcomes(passed=2, failed=2)


def test_replacing_the_root_handlers_is_noticed(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import logging

        def test_deaf():
            logging.getLogger().handlers.clear()
        """
    )
    result = run(suite)
    result.stdout.fnmatch_lines(["*threw the log guard off*"])


CAPABILITY_SUITE = """
    import pytest

    @pytest.mark.capability("command:no-such-program")
    def test_marked(): pass

    def test_called(capability):
        capability("module:no_such_module")

    @pytest.mark.capability("command:sh")
    def test_there(): pass

    @pytest.mark.capability("telepathy")
    def test_unknown(): pass
"""


def test_a_missing_capability_skips_loudly(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    suite.makepyfile(CAPABILITY_SUITE)
    result = run(suite)
    result.assert_outcomes(passed=1, skipped=2, errors=1)
    result.stdout.fnmatch_lines(["*NOT TESTED HERE*", "missing capability command:no-such-program: *"])


def test_a_missing_capability_fails_under_ci(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(CAPABILITY_SUITE)
    run(suite).assert_outcomes(passed=1, failed=1, errors=2)


def test_the_end_of_the_output_says_why(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        def few(count):
            assert count > 3, f"{count} are too few"

        def test_wrong():
            print("noise\\n" * 1000)
            few(2)
        """
    )
    result = run(suite)
    says = ["*! WHY !*", "*::test_wrong (call)", "*.py:6 > *.py:2", "AssertionError: 2 are too few*", "assert 2 > 3"]
    result.stdout.fnmatch_lines(says)
    assert len(result.outlines) - result.outlines.index(next(line for line in result.outlines if "WHY" in line)) < 12


def test_seeds_are_given_to_whoever_asks(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_seeded(seed): assert seed in (3, 4, 5)")
    run(suite, "--seeds=3..5").assert_outcomes(passed=3)
    run(suite, "--seeds=3,5").assert_outcomes(passed=2)


def test_poll_returns_what_it_waited_for() -> None:
    answers = iter([0, None, "here"])
    assert poll(lambda: next(answers), 5, interval=0) == "here"


def test_poll_names_what_it_saw_last() -> None:
    with pytest.raises(NotReached, match=r"four replicas; last seen: 0"):
        poll(lambda: 0, 0.01, interval=0.001, what="four replicas")


def test_poll_tolerates_only_what_it_is_told() -> None:
    def refuse() -> bool:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(NotReached, match="nobody there"):
        poll(refuse, 0.01, interval=0.001, tolerate=OSError)
    with pytest.raises(ConnectionRefusedError):
        poll(refuse, 0.01, interval=0.001)


def test_a_busy_machine_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor is the number of processes for each processor, up to a bound; a late success is no failure."""
    monkeypatch.setattr(polling.os, "cpu_count", lambda: 2)
    for load, times in (0.5, 1.0), (6.0, 3.0), (99.0, polling.PATIENCE_MAX):
        monkeypatch.setattr(polling.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert polling.patience() == times
    since = time.monotonic()
    assert poll(lambda: time.monotonic() - since > 0.15, 0.05, interval=0.001)


async def test_poll_async_waits_on_the_loop() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, done.set)

    async def look() -> bool:
        return done.is_set()

    assert await poll_async(look, 5, interval=0.005)
    assert await poll_async(done.is_set, 5)
    with pytest.raises(NotReached):
        await poll_async(lambda: False, 0.01, interval=0.001)


def test_a_client_without_its_program_is_no_failure_of_the_server(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps({"user_proxy": "", "ca_dir": str(tmp_path)}))
    bench = clients.Bench(cluster, cluster, tmp_path)

    def client(bench: clients.Bench) -> list[clients.Step]:
        return [("look", lambda: clients.told(bench, "true")), ("test", lambda: clients.told(bench, "no-such-tester"))]

    told = clients.row(bench, "x", client, ("true", "--version"))
    assert told.endswith("| 1 of 2 | test: no no-such-tester here |\n")


def test_each_table_of_clients_is_written_in_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "TABLE", tmp_path / "conform.md")
    clients.TABLE.write_text("# One\n\n| a |\n")
    for part in ("# Two\n\n| b |\n", "# One\n\n| c |\n", "# Two\n\n| d |\n"):
        clients.write_part(part)
    assert clients.TABLE.read_text() == "# One\n\n| c |\n\n# Two\n\n| d |\n"


def test_what_a_test_leaves_changed_to_others_fails_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import logging, os

        def test_level():
            logging.getLogger("chelonia.x").setLevel("INFO")

        def test_root():
            logging.getLogger().setLevel("DEBUG")

        def test_environment():
            os.environ["CHELONIA_X"] = "left"

        def test_given_back(monkeypatch, caplog):
            monkeypatch.setenv("CHELONIA_X", "mine")
            caplog.set_level("DEBUG")
        """
    )
    result = run(suite)
    result.assert_outcomes(passed=4, errors=3)
    result.stdout.fnmatch_lines(["*logger chelonia.x: None, now (20, True, False)*"])
    result.stdout.fnmatch_lines(["*environment CHELONIA_X: None, now 'left'*"])


def test_a_cluster_s_complaints_are_those_of_its_log_and_of_python_itself(tmp_path: Path) -> None:
    loud = [
        "time=x level=WARNING node=core at=asyncio SSL connection is closed",
        "chelonia/a.py:7: RuntimeWarning: coroutine 'f' was never awaited",
        "sys:1: ResourceWarning: unclosed file",
        "Exception ignored in: <function f>",
        "Traceback (most recent call last):",
        "msgspec.ValidationError: no",
    ]
    quiet = ["time=x level=INFO node=core at=x Warning: it is only said", "  | ValueError: in a trace of ours"]
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "core.log").write_text("\n".join([*quiet, *loud, "time=x level=ERROR node=core at=x expected"]))
    cluster = Cluster(tmp_path, expected=["expected"])
    assert cluster.complaints() == [f"core.log: {line}" for line in loud]
