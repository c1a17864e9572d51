"""Holds the code to the house's sizes: hard limits, and two shares that may only fall.

Hard limits: a module has at most 800 lines, a function at most 70 (without its docstring), a folder of `chelonia` at
most 20 modules. No file has an empty name.

The ratchet counts in parts per thousand of all functions: those over 20 lines, and those over five parameters. For the
pure rooms it counts how much fewer asserts there are than functions. The allowed shares stand in size_ratchet.json.
`make ratchet` lowers them to the present ones; a test compares the file with its own history, so that they never rise
in passing.

As a program: `test_size_ratchet.py check` for `make check`, `tighten` for `make ratchet`, `asserts` for those of each
room.
"""

import ast
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("size_ratchet.json")

# Code we ship, and code that shows or measures it. Tests are held to the module's length alone.
SHIPPED = ("chelonia", "clients", "fuse", "demo", "bench", "setup.py")
MODULES_ONLY = ("tests",)

MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
ROOM_MODULES_MAX = 20
LONG_FUNCTION_LINES = 20
PARAMETERS_ADVISED = 5
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager"}

# Rooms that decide: an assert states there what a reader may rely on, never what others send.
PURE = (
    "chelonia/core/rights", "chelonia/core/contents", "chelonia/core/cluster", "chelonia/core/timing",
    "chelonia/ahash/group", "chelonia/shepherd/rules", "chelonia/librarian/**/decide.py",
    "chelonia/ahash/engine.py", "chelonia/ahash/below.py", "chelonia/ahash/reads.py",
    "chelonia/shepherd/store/index.py", "chelonia/shepherd/store/lifecycle.py",
    "chelonia/librarian/metadata/blobs.py", "chelonia/librarian/metadata/elements.py",
    "chelonia/librarian/metadata/rebuild_record.py",
    "chelonia/librarian/namespace/tree.py", "chelonia/librarian/namespace/trash.py",
    "chelonia/librarian/namespace/summaries.py", "chelonia/librarian/namespace/view.py",
    "chelonia/librarian/presence/health.py", "chelonia/librarian/presence/failure_evidence.py",
    "chelonia/librarian/presence/identity.py", "chelonia/librarian/presence/listening.py",
    "chelonia/librarian/presence/quorum_verdict.py", "chelonia/librarian/presence/registry.py",
    "chelonia/librarian/presence/reports.py", "chelonia/librarian/leadership/operator_controls.py",
    "chelonia/librarian/repair/worklist.py", "chelonia/librarian/repair/guard.py",
    "chelonia/librarian/repair/tally.py", "chelonia/librarian/repair/forecast.py",
    "chelonia/librarian/repair/plan/changed.py",
    "chelonia/librarian/recovery/invariants.py", "chelonia/librarian/recovery/mends.py",
)  # fmt: skip
LACKING = "asserts_lacking_in_pure_rooms_per_mille"

# Below this many functions a share says little; from here on, slack in the ratchet is an error of its own.
FUNCTIONS_TO_ENGAGE = 1000
SLACK_PER_MILLE = 40
# What tightening leaves free, so that the next honest function does not break the build.
HEADROOM_PER_MILLE = 10

Shares = dict[str, int]


@dataclass(frozen=True, slots=True)
class Function:
    """One function for the ratchet."""

    where: str
    lines: int
    parameters: int


# ----------------------------------------------------------------------------------------------------------- measuring


def functions_of(source: str, path: str) -> Iterator[Function]:
    """Yield every function of a module; an inner function counts by itself and within its outer one."""
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(f"{path}:{node.lineno} {node.name}", count_lines(node), count_parameters(node))


def count_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count lines from `def` to the end, without decorators and docstring."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def count_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters a caller sees: all kinds, without `self` and `cls`."""
    taken = node.args
    names = [each.arg for each in [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]]
    names += [each.arg for each in (taken.vararg, taken.kwarg) if each is not None]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def python_files(*tops: str) -> list[Path]:
    """List the Python files under these paths, in a stable order."""
    found: list[Path] = []
    for top in tops:
        path = ROOT / top
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def shown(path: Path) -> str:
    """Return the path as a person would type it."""
    return str(path.relative_to(ROOT))


def all_functions() -> list[Function]:
    """Return every function of the code we ship."""
    return [each for path in python_files(*SHIPPED) for each in functions_of(path.read_text("utf-8"), shown(path))]


def shares_of(functions: list[Function]) -> Shares:
    """Return both shares, rounded up to whole parts per thousand."""
    total = max(len(functions), 1)
    long = sum(each.lines > LONG_FUNCTION_LINES for each in functions)
    wide = sum(each.parameters > PARAMETERS_ADVISED for each in functions)
    return {
        "functions_over_20_lines_per_mille": -(-1000 * long // total),
        "functions_over_5_parameters_per_mille": -(-1000 * wide // total),
    }


def asserts_in(sources: Iterable[str]) -> tuple[int, int]:
    """Count asserts, and functions except those that are only declared."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    with_body = [node for node in functions if not _is_declared(node)]
    return sum(isinstance(node, ast.Assert) for node in nodes), len(with_body)


def _is_declared(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has no body but its docstring, or `...`."""
    last = node.body[-1]
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)


def asserts_of_rooms() -> dict[str, tuple[int, int]]:
    """Asserts and functions of each pure room."""
    files = {room: [each for path in ROOT.glob(room) for each in python_files(shown(path))] for room in PURE}
    return {room: asserts_in(path.read_text("utf-8") for path in found) for room, found in files.items()}


def lacking_asserts(counted: Iterable[tuple[int, int]]) -> Shares:
    """Return how much fewer asserts than functions there are, rounded up to whole parts per thousand."""
    asserts, functions = (sum(each) for each in zip(*counted, strict=True))
    return {LACKING: 1000 - 1000 * asserts // max(functions, 1)}


def measured_shares(functions: list[Function]) -> Shares:
    return {**shares_of(functions), **lacking_asserts(asserts_of_rooms().values())}


# ------------------------------------------------------------------------------------------------------------- judging


def overlong_modules(sizes: dict[str, int]) -> list[str]:
    """Name the modules over the limit, given each one's number of lines."""
    return [f"{path}: {n} lines, at most {MODULE_LINES_MAX}" for path, n in sizes.items() if n > MODULE_LINES_MAX]


def crowded_rooms(paths: list[str]) -> list[str]:
    """Name the folders of `chelonia` with more modules than a reader can keep apart."""
    rooms = Counter(str(Path(path).parent) for path in paths if path.startswith("chelonia/"))
    return [f"{room}: {n} modules, at most {ROOM_MODULES_MAX}" for room, n in rooms.items() if n > ROOM_MODULES_MAX]


def overlong_functions(functions: list[Function]) -> list[str]:
    """Name the functions over the limit."""
    over = [each for each in functions if each.lines > FUNCTION_LINES_MAX]
    return [f"{each.where}: {each.lines} lines, at most {FUNCTION_LINES_MAX}" for each in over]


def empty_names(paths: list[str]) -> list[str]:
    """Name the files with an empty name."""
    return [f"{path}: says nothing of what it holds" for path in paths if Path(path).stem in EMPTY_NAMES]


def broken_shares(measured: Shares, allowed: Shares, functions: list[Function]) -> list[str]:
    """Return each share that is over the allowed one, or so far under it that the ratchet must be turned."""
    found = []
    for name, limit in allowed.items():
        now = measured[name]
        if now > limit:
            found.append(f"{name}: {now}, at most {limit}; the worst: {'; '.join(worst(functions, name))}")
        elif len(functions) >= FUNCTIONS_TO_ENGAGE and limit - now > SLACK_PER_MILLE:
            found.append(f"{name}: {now}, yet {limit} is allowed: run `make ratchet` and commit the file")
    return found


def worst(functions: list[Function], name: str) -> list[str]:
    """Name the five functions, or the rooms, most to blame for a share."""
    if name == LACKING:
        return [f"{room} ({asserts} in {of})" for room, (asserts, of) in asserts_of_rooms().items()]
    attribute = "lines" if "lines" in name else "parameters"
    ranked = sorted(functions, key=lambda each: (-getattr(each, attribute), each.where))
    return [f"{each.where} ({getattr(each, attribute)})" for each in ranked[:5]]


def loosened(history: list[Shares]) -> list[str]:
    """Return where a share rose, given the file's versions from the newest to the oldest."""
    return [
        f"{name}: raised from {older[name]} to {newer.get(name, 'nothing')}"
        for newer, older in itertools.pairwise(history)
        for name in older
        if newer.get(name, sys.maxsize) > older[name]
    ]


def tightened(measured: Shares, allowed: Shares) -> Shares:
    """Return the allowed shares, each lowered to the measured one plus headroom, never raised."""
    return {name: min(limit, measured[name] + HEADROOM_PER_MILLE) for name, limit in allowed.items()}


# ------------------------------------------------------------------------------------------------------- the real tree


def allowed_shares() -> Shares:
    shares: Shares = json.loads(DATA.read_text("utf-8"))
    return shares


def history_of_shares() -> list[Shares]:
    """Return the file now and at each commit that touched it, newest first; just now where there is no git."""
    path = shown(DATA)
    log = _git("log", "--format=%H", "--", path)
    texts = [_git("show", f"{commit}:{path}") for commit in log.split()]
    return [allowed_shares(), *(json.loads(text) for text in texts if text)]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def complaints() -> list[str]:
    """Return all faults of the tree's sizes."""
    functions = all_functions()
    files = python_files(*SHIPPED, *MODULES_ONLY)
    sizes = {shown(path): len(path.read_text("utf-8").splitlines()) for path in files}
    return [
        *overlong_modules(sizes),
        *crowded_rooms(list(sizes)),
        *overlong_functions(functions),
        *empty_names(list(sizes)),
        *broken_shares(measured_shares(functions), allowed_shares(), functions),
        *loosened(history_of_shares()),
    ]


def test_the_tree_keeps_its_sizes() -> None:
    assert complaints() == []


# ------------------------------------------------------------------------------------------- that the ratchet can fail


SAMPLE = '''
class Sample:
    def method(self, a, b, /, c, *rest, d=1, **more):
        """Two lines
        of words."""
        return a

    @staticmethod
    @property
    async def short():
        pass

def outer():
    def inner():
        pass
    return inner
'''


def test_lines_leave_out_docstring_and_decorators_and_parameters_leave_out_self() -> None:
    measured = {each.where.split()[1]: (each.lines, each.parameters) for each in functions_of(SAMPLE, "s.py")}
    assert measured == {"method": (2, 6), "short": (2, 0), "outer": (4, 0), "inner": (2, 0)}


def function(lines: int = 1, parameters: int = 0) -> Function:
    return Function("s.py:1 f", lines, parameters)


@pytest.mark.parametrize(
    "found",
    [
        overlong_modules({"a.py": MODULE_LINES_MAX + 1, "b.py": MODULE_LINES_MAX}),
        crowded_rooms([f"chelonia/core/m{n}.py" for n in range(ROOM_MODULES_MAX + 1)] + ["chelonia/wire/xml.py"]),
        overlong_functions([function(FUNCTION_LINES_MAX + 1), function(FUNCTION_LINES_MAX)]),
        empty_names(["chelonia/core/utils.py", "chelonia/core/ids.py"]),
        loosened([{"x": 5}, {"x": 4}, {"x": 4}]),
        loosened([{}, {"x": 4}]),
        broken_shares({"lines": 101}, {"lines": 100}, [function()]),
        broken_shares({"lines": 59}, {"lines": 100}, [function()] * FUNCTIONS_TO_ENGAGE),
    ],
    ids=["module", "room", "function", "name", "raised", "dropped", "share", "slack"],
)
def test_each_rule_can_fail(found: list[str]) -> None:
    assert len(found) == 1


def test_what_is_within_bounds_passes() -> None:
    assert not loosened([{"x": 3}, {"x": 4}])
    assert not broken_shares({"lines": 100}, {"lines": 100}, [function()])
    assert not broken_shares({"lines": 10}, {"lines": 100}, [function()])


def test_shares_round_up() -> None:
    some = [function(21), function(20), function(1, 6)]
    assert list(shares_of(some).values()) == [334, 334]
    assert list(shares_of([]).values()) == [0, 0]


def test_asserts_are_counted_in_modules_and_functions_but_none_of_what_is_declared() -> None:
    source = "assert 1\ndef f():\n    assert 2\n    f()\nclass P:\n    def declared(self):\n        ...\n"
    assert asserts_in([source, source]) == (4, 2)
    assert lacking_asserts([(1, 2), (0, 4)]) == {LACKING: 834}
    assert len(broken_shares({LACKING: 701}, {LACKING: 700}, [])) == 1


def test_tightening_never_raises() -> None:
    assert tightened({"a": 50, "b": 90}, {"a": 200, "b": 92}) == {"a": 50 + HEADROOM_PER_MILLE, "b": 92}


def main(task: str) -> int:
    """Check the tree's sizes, or tighten the ratchet; return the exit code."""
    if task == "tighten":
        shares = tightened(measured_shares(all_functions()), allowed_shares())
        DATA.write_text(json.dumps(shares, indent=2) + "\n", "utf-8")
    found = worst([], LACKING) if task == "asserts" else complaints()
    for line in found:
        print(line)
    return 1 if found and task != "asserts" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
