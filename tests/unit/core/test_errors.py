"""One error value: total over its kinds at every door, and the same after a trip over the wire."""

import ast
import errno
from pathlib import Path
from typing import TypeGuard

import pytest

from chelonia.core.errors import TABLE, CheloniaError, ExitCode, Kind, kind_from_wire

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_a_code_at_every_door(kind: Kind) -> None:
    meaning = TABLE[kind]
    assert 400 <= meaning.http < 600
    assert meaning.fault in ("Client", "Server")
    assert meaning.s3
    assert meaning.errno in errno.errorcode
    assert meaning.exit_code is not ExitCode.OK


def test_the_table_has_no_row_too_many() -> None:
    assert set(TABLE) == set(Kind)


def test_server_faults_are_the_servers_http_errors() -> None:
    assert [kind for kind, meaning in TABLE.items() if meaning.fault == "Server" and meaning.http < 500] == []


def test_only_what_no_entry_has_is_not_found() -> None:
    """A client whose replica has gone meanwhile would take the file for gone."""
    assert [kind for kind, meaning in TABLE.items() if meaning.http == 404] == [Kind.NOT_FOUND]


@pytest.mark.parametrize("kind", list(Kind))
def test_a_kind_survives_the_wire(kind: Kind) -> None:
    assert kind_from_wire(kind.value) is kind


def test_an_unknown_kind_of_a_newer_peer_reads_as_internal() -> None:
    assert kind_from_wire("invented-tomorrow") is Kind.INTERNAL


def test_the_cli_can_tell_what_scripts_ask_about() -> None:
    codes = {
        Kind.NOT_FOUND: 3, Kind.NO_PARENT: 3, Kind.DENIED: 4, Kind.EXISTS: 5, Kind.NOT_EMPTY: 5, Kind.QUOTA: 6,
        Kind.NETWORK: 7, Kind.UNAVAILABLE: 7, Kind.CHECKSUM: 8, Kind.BAD_NAME: 2,
    }  # fmt: skip
    assert {kind: int(TABLE[kind].exit_code) for kind in codes} == codes


def test_only_what_may_pass_by_itself_is_retryable() -> None:
    assert TABLE[Kind.OUTCOME_UNKNOWN].retryable
    assert TABLE[Kind.CONFLICT].retryable
    assert not any(TABLE[kind].retryable for kind in (Kind.DENIED, Kind.EXISTS, Kind.NOT_FOUND, Kind.CHECKSUM))


def test_text_leaves_empty_parts_out() -> None:
    assert str(CheloniaError(Kind.DENIED, "stat", "/f", "no rule allows it")) == "stat: /f: denied: no rule allows it"
    assert str(CheloniaError(Kind.NOT_EMPTY)) == "not-empty"


def test_meaning_is_the_row_of_its_kind() -> None:
    assert CheloniaError(Kind.NO_SPACE).meaning is TABLE[Kind.NO_SPACE]


def test_no_error_is_its_own_cause() -> None:
    # It would wait for the collector, with all that the frames of its traceback hold.
    texts = [(path, path.read_text("utf-8")) for path in sorted((ROOT / "chelonia").rglob("*.py"))]
    trees = [(path, ast.parse(text)) for path, text in texts if "return error" in text or "from error" in text]
    nodes = [(path, node) for path, tree in trees for node in ast.walk(tree)]
    judges = {node.name for _, node in nodes if _may_return_the_error_it_is_given(node)}
    assert "overtaken" in judges
    assert [f"{path.name}:{node.lineno}" for path, node in nodes if _from_itself(node, judges)] == []


def _may_return_the_error_it_is_given(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    errors = {
        each.arg for each in node.args.args if each.annotation and ast.unparse(each.annotation) == "CheloniaError"
    }
    returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
    return any(isinstance(each, ast.Name) and each.id in errors for value in returned for each in _outcomes(value))


def _from_itself(node: ast.AST, judges: set[str]) -> TypeGuard[ast.Raise]:
    if not (isinstance(node, ast.Raise) and isinstance(node.cause, ast.Name) and node.exc is not None):
        return False
    outcomes = [each.value if isinstance(each, ast.Await) else each for each in _outcomes(node.exc)]
    same = any(isinstance(each, ast.Name) and each.id == node.cause.id for each in outcomes)
    calls = [each.func for each in outcomes if isinstance(each, ast.Call)]
    return same or any(isinstance(each, ast.Name) and each.id in judges for each in calls)


def _outcomes(value: ast.expr) -> tuple[ast.expr, ...]:
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
