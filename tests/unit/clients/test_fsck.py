"""`chelonia admin fsck` as administrators see it, on a real Librarian over a memory store."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from chelonia.core.caller import Call
from chelonia.core.ids import ROOT, ObjectId, RequestKey
from chelonia.librarian.elements import drop, put
from chelonia_clients import connect
from chelonia_clients.arguments import Arguments
from chelonia_clients.output import Output
from chelonia_clients.session import Session
from chelonia_clients.verbs_admin import admin
from tests.support.ahash import LIBRARIAN
from tests.support.bartender import FakeBartender
from tests.support.librarian import ADMIN, Bench, bench
from tests.unit.clients.faking import administrator_on, client_on

STRAY = "11111111-1111-4111-8111-111111111111"


class AsAdmin:
    """A Librarian whose every caller is the administrator."""

    def __init__(self, made: Bench) -> None:
        self._service = made.service

    def __getattr__(self, name: str) -> object:
        method = getattr(self._service, name)

        def called(_: Call, *args: object) -> object:
            return method(ADMIN, *args)

        return called


@pytest.fixture
async def made() -> AsyncIterator[Bench]:
    async with bench() as one:
        await one.collection("data")
        await one.file("f")
        yield one


async def run(made: Bench, monkeypatch: pytest.MonkeyPatch, *words: str, as_json: bool = False) -> tuple[int, str]:
    """`chelonia admin <words>`: exit code and standard output."""
    fake = FakeBartender()
    client, administrator = client_on(fake), administrator_on(fake, AsAdmin(made))
    monkeypatch.setattr(connect, "open_client", lambda *_: client)
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator)
    out = Output(io.StringIO(), io.StringIO(), as_json=as_json)
    session = Session(Arguments((), {}), out, {"HOME": str(Path("/nonexistent"))})
    monkeypatch.setattr(Session, "settings", lambda _: type("S", (), {"origins": {}, "bartenders": ()})())
    flags = {word: ("yes",) for word in words if word.startswith("--")}
    await admin(session, Arguments(tuple(word for word in words if not word.startswith("--")), flags))
    out.finish("admin")
    return out.exit_code, cast(io.StringIO, out.stdout).getvalue()


async def damage(made: Bench, *elements: object) -> None:
    assert (await made.ahash.transact(LIBRARIAN, RequestKey(""), elements)).applied  # type: ignore[arg-type]


async def test_a_clean_cluster_is_clean(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = await run(made, monkeypatch, "fsck")
    assert code == 0
    assert "objects checked: clean" in said


async def test_findings_are_told_with_their_cure_and_make_it_fail(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await damage(made, put(ObjectId(ROOT), "entries", "ghost", STRAY))
    code, said = await run(made, monkeypatch, "fsck")
    assert code == 1
    assert f"disagreement: 0: 'ghost' leads to {STRAY}, which is no entry [--repair]" in said
    assert "name-dangling  disagreement     1         0" in said


async def test_repair_says_what_it_did_and_ends_clean(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    names = await made.names()
    await damage(made, drop(ObjectId(ROOT), "entries", "data/"), drop(ObjectId(names["data"]), "parents", "0/data"))
    code, said = await run(made, monkeypatch, "fsck", "--repair")
    assert code == 0
    assert f"repaired: {names['data']}: no name leads to it: moved to /lost+found" in said
    assert "objects checked: clean" in said
    assert (await run(made, monkeypatch, "fsck"))[0] == 0


async def test_what_repair_may_not_do_is_left_and_fails(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await damage(made, put(ObjectId("odd"), "s", "p", "v"), put(ObjectId(ROOT), "entries", "ghost", STRAY))
    code, said = await run(made, monkeypatch, "fsck", "--repair", as_json=True)
    document = json.loads(said)
    assert (code, document["exit_code"], document["findings"]) == (1, 1, 1)
    assert (document["left"], document["repaired"]) == ({"strange": 1}, {"name-dangling": 1})
    assert [result["rule"] for result in document["results"]] == ["name-dangling", "strange"]


async def test_a_name_limits_it_to_what_is_below(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await damage(made, put(ObjectId(ROOT), "entries", "ghost", STRAY))
    assert (await run(made, monkeypatch, "fsck", "/data"))[0] == 0
    assert (await run(made, monkeypatch, "fsck", "/"))[0] == 1
