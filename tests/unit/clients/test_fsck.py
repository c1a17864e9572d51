"""`chelonia admin fsck` for administrators, on a real Librarian over a memory store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from chelonia.core.ids import ROOT, ObjectId, RequestKey
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import drop, put
from chelonia_clients.administrator import Administrator
from tests.support.admin_cli import run_admin
from tests.support.ahash import LIBRARIAN
from tests.support.librarian import Bench, bench
from tests.unit.clients.test_ahash import MASTER, PaperAHash, view

STRAY = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
async def made() -> AsyncIterator[Bench]:
    async with bench() as one:
        await one.collection("data")
        await one.file("f")
        yield one


async def run(made: Bench, monkeypatch: pytest.MonkeyPatch, *words: str, as_json: bool = False) -> tuple[int, str]:
    """`chelonia admin <words>`: exit code and standard output."""
    said = await run_admin(made, monkeypatch, *words, as_json=as_json)
    return said.code, said.stdout


async def damage(made: Bench, *elements: object) -> None:
    assert (await made.ahash.transact(LIBRARIAN, RequestKey(""), elements)).applied  # type: ignore[arg-type]


async def test_a_clean_cluster_is_clean(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = await run(made, monkeypatch, "fsck")
    assert code == 0
    assert "objects checked: clean" in said


async def test_replicas_of_two_histories_make_a_clean_namespace_fail(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = replace(MASTER, replicas=(view(1, "parted", -1), view(2, "master"), view(3)))
    monkeypatch.setattr(Administrator, "ahashes", {"https://a/AHash": PaperAHash(torn)})
    said = await run_admin(made, monkeypatch, "fsck")
    assert said.code == 1
    assert "replicas 1 and 2 of the A-Hash have two histories" in said.stdout + said.stderr


async def test_work_in_hand_is_named_to_who_asks_for_more(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await made.file("many", wanted=9)
    said = (await run(made, monkeypatch, "fsck"))[1]
    assert "1 in hand" in said
    assert "/many" not in said
    more = await run_admin(made, monkeypatch, "fsck", verbose=1)
    assert more.code == 0
    assert "alive, alive on 2 Shepherds, wanted 9: /many" in more.stdout


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
