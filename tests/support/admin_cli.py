"""`chelonia admin` on a Librarian in this process, every caller of which is the administrator."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia_clients import connect
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
    """What a command did."""

    code: int
    stdout: str
    stderr: str = field(repr=False)


async def run_admin(
    made: Bench, monkeypatch: pytest.MonkeyPatch, *words: str, as_json: bool = False, verbose: int = 0, **values: str
) -> Said:
    """`chelonia admin <words>`, `values` for options that take one; an error is told as the command tells it."""
    fake = FakeBartender()
    client, administrator = client_on(fake), administrator_on(fake, AsAdmin(made))
    administrator.clock = made.clock  # type: ignore[misc]
    monkeypatch.setattr(connect, "open_client", lambda *_: client)
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator)
    out = Output(io.StringIO(), io.StringIO(), as_json=as_json, verbose=verbose)
    session = Session(Arguments((), {}), out, {"HOME": str(Path("/nonexistent"))})
    monkeypatch.setattr(Session, "settings", lambda _: type("S", (), {"origins": {}, "bartenders": ("https://b",)})())
    flags = {word: ("yes",) for word in words if word.startswith("--")}
    flags |= {f"--{name}": (value,) for name, value in values.items()}
    try:
        await admin(session, Arguments(tuple(word for word in words if not word.startswith("--")), flags))
    except CheloniaError as error:
        out.failure(error)
    out.finish("admin")
    told = (cast(io.StringIO, stream).getvalue() for stream in (out.stdout, out.stderr))
    return Said(out.exit_code, *told)
