"""Plumbing of every test: markers by folder, the log guard, capabilities, seeds of the simulator.

Its parts stand in tests/support/:
- `log_guard`: a test fails on a WARNING it did not declare
- `process_state`: it fails on changes that it leaves to others
- `capabilities`: a missing one fails under CI and skips loudly elsewhere
- `polling`
"""

import os
import resource
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

pytest.register_assert_rewrite("tests.support")

from tests.support import capabilities  # noqa: E402 - after its registration for rewriting
from tests.support.log_guard import LogGuard  # noqa: E402
from tests.support.polling import patience  # noqa: E402
from tests.support.process_state import changed, process_state  # noqa: E402

# A user has it not: then lines that somebody waits for must come by themselves.
os.environ.pop("PYTHONUNBUFFERED", None)

# Neither this: every worker and every daemon would compile each module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# As the daemons do for themselves: tests are thousands of clients, and a login shell allows 1 024 files.
FILES_MAX = 20_000
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if 0 <= soft < FILES_MAX:  # negative: without end
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX if hard < 0 else min(hard, FILES_MAX), hard))

# A folder under tests/ that names a kind of test marks all in it.
KINDS = {"contract", "sim", "cluster", "conform"}

# Folders whose tests start daemons: the first process begins with them, and the others end with them.
DAEMONS = {"cluster", "conform", "history"}

# How long one of these may take: on a machine ten times as slow as ours.
ON_DAEMONS_S = 600

# The simulator's seeds where nobody asks for others: a smoke, not a campaign.
SMOKE_SEEDS = "1..12"

# How much of a failure's message is repeated at the end of the output.
WHY_CHARS_MAX = 3000

# Saved examples are kept under a test's name, not its parameters: replayed in another case they mean nothing, and
# hypothesis takes what they draw there for a flaky strategy.
hypothesis.settings.register_profile("chelonia", database=None, deadline=None)  # machines are shared: no timed tests
hypothesis.settings.load_profile("chelonia")

GUARD = pytest.StashKey[LogGuard]()
BEFORE = pytest.StashKey[dict[str, object]]()


# ------------------------------------------------------------------------------------------------- options, collection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", default=SMOKE_SEEDS, help="seeds for tests with a `seed` argument: 7, or 1..200")


def parse_seeds(text: str) -> list[int]:
    """Read `1..200`, or a count (`200`, meaning 1..200), or single seeds (`7,7001`)."""
    first, dots, last = text.partition("..")
    if dots:
        return list(range(int(first), int(last) + 1))
    if "," in text:
        return [int(seed) for seed in text.split(",") if seed]
    return list(range(1, int(text) + 1))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = any("seed" in str(mark.args[:1]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "seed" in metafunc.fixturenames and not own:
        metafunc.parametrize("seed", parse_seeds(metafunc.config.getoption("--seeds")))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """A file at a time on each core; real clusters, which mostly wait, beside what computes while there is some."""
    return _ByFile(config, log)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        first = node is self.nodes[0]
        wanted = (path for path in self.workqueue if (path.split("/")[1] in DAEMONS) is first)
        self.workqueue.move_to_end(next(wanted, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            folder = item.path.relative_to(here).parts[:1]
            for kind in KINDS.intersection(folder):
                item.add_marker(kind)
            if DAEMONS.intersection(folder) and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(ON_DAEMONS_S))


def _give_time(item: pytest.Item) -> None:
    """Give a test longer on a busy machine. It has to happen before pytest-timeout reads the limit."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark is not None else item.config.getini("timeout") or 0)  # 0: none
    item.add_marker(pytest.mark.timeout(seconds * patience()), append=False)


# -------------------------------------------------------------------------------------------------------- capabilities


def needed_capabilities(item: pytest.Item) -> list[str]:
    """List what a test's markers ask for: `capability("root", ...)` and the short `needs_root`."""
    asked = [str(name) for mark in item.iter_markers("capability") for name in mark.args]
    short = [mark.name.removeprefix("needs_") for mark in item.iter_markers() if mark.name.startswith("needs_")]
    return sorted({*asked, *short})


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in needed_capabilities(item):
        capabilities.capability(name)


@pytest.fixture
def capability() -> Callable[[str], None]:
    """Give `capability(name)`, for a test that learns only while running what it needs."""
    return capabilities.capability


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _say_missing(terminalreporter)
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    if failed:  # where only the end of the output is kept, this is what must be in it
        terminalreporter.section("WHY", sep="!", red=True, bold=True)
        for report in failed:
            terminalreporter.write_line(f"{report.nodeid} ({report.when})\n{_why(report)}")


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The lines that led to a failure, and its message."""
    trace = getattr(report.longrepr, "reprtraceback", None)
    crash = getattr(report.longrepr, "reprcrash", None)
    if trace is None or crash is None:
        return str(report.longrepr)[-WHY_CHARS_MAX:]
    places = [entry.reprfileloc for entry in trace.reprentries if getattr(entry, "reprfileloc", None)]
    lines = " > ".join(f"{Path(place.path).name}:{place.lineno}" for place in places)
    return f"{lines}\n{crash.message[:WHY_CHARS_MAX]}"


def _say_missing(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    lost = sorted({line for text in reasons if (line := _missing_line(text))})
    if lost:
        terminalreporter.section("NOT TESTED HERE (fails under CI)", sep="!", red=True, bold=True)
        for line in lost:
            terminalreporter.write_line(line, red=True)


def _missing_line(text: str) -> str:
    _, prefix, rest = text.partition(capabilities.MISSING_PREFIX)
    return f"{prefix}{rest}".rstrip("')") if prefix else ""


# ----------------------------------------------------------------------------------------------------------- log guard


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _give_time(item)
    guard = item.stash[GUARD] = LogGuard()
    for mark in item.iter_markers("expect_log"):
        guard.expect(*mark.args, **mark.kwargs)
    guard.start()
    item.stash[BEFORE] = process_state()
    try:
        return (yield)
    finally:
        guard.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield  # a test that failed by itself keeps its own failure
    _judge(item, "test")
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    _judge(item, "teardown")
    if left := changed(item.stash[BEFORE], process_state()):
        pytest.fail("the test leaves its process changed:\n  " + "\n  ".join(left), pytrace=False)
    return result


def _judge(item: pytest.Item, phase: str) -> None:
    guard = item.stash[GUARD]
    if undeclared := guard.undeclared():
        pytest.fail(f"undeclared in the {phase}'s log (see expect_log):\n  " + "\n  ".join(undeclared), pytrace=False)
    if not guard.is_listening():
        pytest.fail("the test threw the log guard off the root logger (handlers replaced?)", pytrace=False)
    if phase == "test" and (absent := guard.not_seen()):
        pytest.fail(f"declared with expect_log but never logged: {absent}", pytrace=False)


@pytest.fixture
def expect_log(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Give `expect_log(pattern, optional=False)`: declares a log line of WARNING or worse that the test provokes."""
    return request.node.stash[GUARD].expect
