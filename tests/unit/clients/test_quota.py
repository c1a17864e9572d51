"""`chelonia admin quota` for administrators."""

import asyncio
import json

import pytest

from chelonia.core.cluster.quotas import Quota
from chelonia.core.ids import Dn, Guid
from chelonia.core.ports.librarian import Unmake
from tests.support.admin_cli import run_admin
from tests.support.librarian import ADMIN, BARTENDER, bench

JANE = "/DC=org/CN=Jane Doe"


async def test_quotas_are_set_changed_listed_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        tree = await b.collection("atlas")
        said = await run_admin(b, monkeypatch, "quota", "set", JANE, bytes="10G", files="100k")
        assert said.stdout == f"{JANE}: 10.0 GiB and 100000 files\n"
        assert "is being counted" in said.stderr
        await run_admin(b, monkeypatch, "quota", "set", "/atlas", bytes="2T")
        await run_admin(b, monkeypatch, "quota", "set", JANE, bytes="none")
        told = json.loads((await run_admin(b, monkeypatch, "quota", "list", as_json=True)).stdout)["results"]
        bounds = [(one["user"], one["tree"], one["bytes_max"], one["files_max"], one["counted"]) for one in told]
        assert bounds == [("", "/atlas", 2 << 40, -1, False), (JANE, "", -1, 100_000, False)]
        assert told[0]["guid"] == tree
        said = await run_admin(b, monkeypatch, "quota", "remove", "/atlas")
        assert said.stdout == "/atlas has no quota any more\n"
        [left] = await b.service.quotas(ADMIN, Dn(""), Guid(""))
        assert left.quota == Quota(Dn(JANE), Guid(""), -1, 100_000)


async def test_of_two_administrators_at_once_none_loses_his_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        sets = ({"bytes": "10G"}, {"files": "100"})
        await asyncio.gather(*(run_admin(b, monkeypatch, "quota", "set", JANE, **each) for each in sets))
        [use] = await b.service.quotas(ADMIN, Dn(""), Guid(""))
        assert use.quota == Quota(Dn(JANE), Guid(""), 10 << 30, 100)


async def test_a_quota_whose_last_bound_is_taken_away_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        await b.collection("atlas")
        await run_admin(b, monkeypatch, "quota", "set", "/atlas", bytes="2T")
        said = await run_admin(b, monkeypatch, "quota", "set", "/atlas", bytes="none")
        assert said.stdout == "/atlas: no quota\n"
        said = await run_admin(b, monkeypatch, "quota", "remove", "/atlas")
        assert "quota '/atlas': it has no quota" in said.stderr


async def test_the_quota_of_a_collection_that_is_gone_can_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was listed for ever: its collection had no name any more, and quotas were removed by name alone."""
    async with bench() as b:
        tree = await b.collection("atlas")
        await run_admin(b, monkeypatch, "quota", "set", "/atlas", bytes="2T")
        await b.service.unmake(BARTENDER, Unmake(tree))
        assert tree in (await run_admin(b, monkeypatch, "quota", "list")).stdout
        assert (await run_admin(b, monkeypatch, "quota", "set", tree, bytes="1T")).code == 3
        assert (await run_admin(b, monkeypatch, "quota", "remove", tree)).stdout == f"{tree} has no quota any more\n"
        assert await b.service.quotas(ADMIN, Dn(""), Guid("")) == ()


async def test_a_default_quota_is_set_told_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        said = await run_admin(b, monkeypatch, "quota", "set", "default", bytes="1G")
        assert said.stdout == "each user without a quota of his own: 1.0 GiB\n"
        await b.file("f", owner=Dn(JANE))
        told = json.loads((await run_admin(b, monkeypatch, "quota", "list", as_json=True)).stdout)["results"]
        assert [(one["user"], one["bytes_max"], one["default"]) for one in told] == [
            ("*", 1 << 30, False),
            (JANE, 1 << 30, True),
        ]
        await run_admin(b, monkeypatch, "quota", "set", JANE, bytes="2G")
        said = await run_admin(b, monkeypatch, "quota", "remove", JANE)
        assert said.stdout == f"{JANE} has 1.0 GiB, as each user\n"
        said = await run_admin(b, monkeypatch, "quota", "remove", "default")
        assert said.stdout == "each user without a quota of his own has no quota any more\n"
        assert (await run_admin(b, monkeypatch, "quota", "list")).stdout == ""


async def test_quotas_are_listed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        for name in ("b", "c", "a"):
            await b.collection(name)
            await run_admin(b, monkeypatch, "quota", "set", f"/{name}", bytes="1G")
        for whose in (JANE, "default"):
            await run_admin(b, monkeypatch, "quota", "set", whose, bytes="1G")
        told = json.loads((await run_admin(b, monkeypatch, "quota", "list", as_json=True)).stdout)["results"]
        assert [each["tree"] or each["user"] for each in told] == ["/a", "/b", "/c", "*", JANE]


@pytest.mark.parametrize(
    ("words", "values", "code", "told"),
    [
        (("set", JANE), {}, 2, "takes --bytes SIZE"),
        (("set", JANE), {"bytes": "lots"}, 2, "a size like"),
        (("set", JANE), {"files": "1.5"}, 2, "a number like"),
        (("set", "/no"), {"bytes": "1"}, 3, "no such name"),
        (("set", "atlas"), {"bytes": "1"}, 2, "a Logical Name starts with /"),
        (("set", "CN=Jane Doe,DC=org"), {"bytes": "1"}, 2, "a DN begins with /"),
        (("remove", JANE), {}, 3, "it has no quota"),
        (("set",), {"bytes": "1"}, 2, "admin quota set takes whose"),
        (("what",), {}, 2, "admin quota what: no such command"),
    ],
)
async def test_what_makes_no_sense_is_told(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], values: dict[str, str], code: int, told: str
) -> None:
    async with bench() as b:
        said = await run_admin(b, monkeypatch, "quota", *words, **values)
        assert said.code == code
        assert told in said.stderr
