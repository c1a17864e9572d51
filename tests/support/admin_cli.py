"""`chelonia admin` in this process: by an administrator that a test has made, or on a Librarian of its own.

Every caller of that Librarian is the administrator.
"""

import io
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

import pytest

from chelonia.core.caller import Call
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.arguments import Arguments
from chelonia_clients.output import Output
from chelonia_clients.session import Session
from chelonia_clients.verbs.admin import admin
from tests.support.bartender import FakeBartender
from tests.support.librarian import ADMIN, Bench
from tests.unit.clients.faking import administrator_on, client_on


class AsAdmin:
    """A Librarian whose every caller is the administrator."""

    def __init__(self, made: Bench) -> None:
        self._service = made.service

    def __getattr__(self, name: str) -> object:
        method = getattr(self._service, name)

        def called(_: Call, *args: object) -> object:
            return method(ADMIN, *args)

        return called


@dataclass
class Said:
    """A command's exit code and output."""

    code: int
    stdout: str
    stderr: str = field(repr=False)


async def run_admin(
    made: Bench, monkeypatch: pytest.MonkeyPatch, *words: str, as_json: bool = False, verbose: int = 0, **values: str
) -> Said:
    """Run `chelonia admin <words>` on this Librarian; as `run_as`, but an error ends as output of the command."""
    administrator = administrator_on(FakeBartender(), AsAdmin(made))
    administrator.clock = made.clock  # type: ignore[misc]
    return await run_as(administrator, monkeypatch, *words, as_json=as_json, verbose=verbose, tells=True, **values)


async def run_as(
    administrator: Administrator, monkeypatch: pytest.MonkeyPatch, *words: str,
    as_json: bool = False, verbose: int = 0, tells: bool = False, **values: str | tuple[str, ...],
) -> Said:  # fmt: skip
    """`chelonia admin <words>`, `values` for options that take one. Raises: what the verb raises, unless it `tells`."""
    monkeypatch.setattr(connect, "open_client", lambda *_: client_on(FakeBartender(), retry_ms=0))
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator)
    monkeypatch.setattr(Session, "settings", lambda _: type("S", (), {"origins": {}, "bartenders": ("https://b",)})())
    out = Output(io.StringIO(), io.StringIO(), as_json=as_json, verbose=verbose)
    flags = {word: ("yes",) for word in words if word.startswith("--")}
    for name, value in values.items():
        flags[f"--{name.replace('_', '-')}"] = (value,) if isinstance(value, str) else value
    operands = tuple(word for word in words if not word.startswith("--"))
    with out.trying() if tells else nullcontext():
        await admin(Session(Arguments((), {}), out, {"HOME": "/nonexistent"}), Arguments(operands, flags))
    out.finish("admin")
    told = (cast(io.StringIO, stream).getvalue() for stream in (out.stdout, out.stderr))
    return Said(out.exit_code, *told)
