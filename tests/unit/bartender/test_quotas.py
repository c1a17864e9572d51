"""Quotas for users: their own are shown to them, and every operation refuses what does not fit."""

import msgspec

from chelonia.core.cluster.quotas import Quota
from chelonia.core.errors import Kind
from chelonia.core.ids import Dn, Guid, Ms
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.ports.files import Done, Failure, Inline, Make, Placing, Remove, Removing, Write
from chelonia.core.rights.scopes import ADDING, Scope
from chelonia.librarian.leadership.counting import Counting
from tests.support.failing import failure_kind
from tests.support.files_worlds import at
from tests.support.stage import ADMIN, EVE, JOE, Stage, scene


async def counted(stage: Stage, quota: Quota) -> None:
    """Set a quota and have it counted, as if this Librarian led repair."""
    await stage.librarian.set_quota(ADMIN, quota)
    counting: Counting = stage.librarian._parts.healer._counting
    await stage.librarian._parts.healer.heed()
    await counting.step()


async def write(stage: Stage, name: str, size: int) -> Done | Failure:
    (answer,) = await stage.bartender.files.apply(JOE, (Write(at(name), inline=Inline(b"x" * size, 2)),))
    return answer


@scene
async def test_what_does_not_fit_is_refused_before_and_at_the_commit(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    await counted(stage, Quota(JOE.dn, Guid(""), 100))
    assert isinstance(await write(stage, "/f", 60), Done)
    refused = await write(stage, "/g", 41)
    assert failure_kind(refused) is Kind.QUOTA
    assert "60 of 100 bytes are in use, and this takes 41 bytes more" in refused.cause
    (placed,) = await stage.bartender.files.place(JOE, (Placing(at("/g"), 41, wanted=2),))
    assert failure_kind(placed) is Kind.QUOTA
    assert isinstance(await write(stage, "/f", 100), Done), "an overwrite takes the difference"
    refused = await write(stage, "/f", 101)
    assert failure_kind(refused) is Kind.QUOTA


@scene
async def test_a_collection_with_a_quota_does_not_go_with_its_last_key(stage: Stage) -> None:
    """One that was only part of keys did: the next key made another of its name, in which no quota counted."""
    await stage.add_shepherds("s1", "s2")

    async def put(size: int) -> Done | Failure:
        change = Write(at("/b/p/f"), inline=Inline(b"x" * size, 2), parents=True)
        (answer,) = await stage.bartender.files.apply(JOE, (change,))
        return answer

    async def remove() -> None:
        (answer,) = await stage.bartender.files.apply(JOE, (Remove(at("/b/p/f"), Removing.KEY),))
        assert isinstance(answer, Done), answer

    await put(1)
    of_tree = Quota(Dn(""), await stage.guid("/b/p"), 100)
    await stage.bartender.files.apply(JOE, (Remove(at("/b"), Removing.MARK),))
    await counted(stage, of_tree)
    await remove()
    assert failure_kind(await put(101)) is Kind.QUOTA
    assert isinstance(await put(100), Done)
    await stage.librarian.set_quota(ADMIN, msgspec.structs.replace(of_tree, bytes=-1))
    await remove()
    assert not await stage.exists("/b")


@scene
async def test_who_comes_by_a_token_hears_of_no_tree_nor_of_what_is_in_it(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    await stage.bartender.files.apply(JOE, (Make(at("/atlas"), TYPE_COLLECTION),))
    await stage.bartender.files.apply(JOE, (Make(at("/atlas/in"), TYPE_COLLECTION),))
    await counted(stage, Quota(Dn(""), await stage.guid("/atlas"), 100))
    guest = msgspec.structs.replace(JOE, scopes=(Scope(ADDING, ("atlas", "in")),), via="link 1")
    (written,) = await stage.bartender.files.apply(guest, (Write(at("/atlas/in/g"), inline=Inline(b"x" * 101, 2)),))
    (placed,) = await stage.bartender.files.place(guest, (Placing(at("/atlas/in/g"), 101, wanted=2),))
    for refused in (placed, written):
        assert failure_kind(refused) is Kind.QUOTA
        assert "ask who gave you the token" in refused.cause
        assert not {"atlas", "100"} & set(refused.cause.replace("/", " ").split()), refused.cause
        assert refused.subject != "/atlas"


@scene
async def test_space_tells_the_quotas_that_bind_below_what_the_caller_may_read(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    for name in ("/atlas", "/atlas/run"):
        await stage.bartender.files.apply(JOE, (Make(at(name), TYPE_COLLECTION),))
    await counted(stage, Quota(Dn(""), await stage.guid("/atlas"), 1000))
    await counted(stage, Quota(EVE.dn, Guid(""), 50, 5))
    await write(stage, "/atlas/run/f", 10)
    joes = (await stage.bartender.files.space(JOE, at("/atlas/run"))).quotas
    assert [(use.name, use.bytes, use.bytes_left) for use in joes] == [("/atlas", 10, 990)]
    eves = await stage.bartender.files.space(EVE, at("/atlas/run"))
    assert [use.name for use in eves.quotas] == [EVE.dn], "she may not read it"
    assert eves.of_files(2)[1] == 50
    assert (await stage.bartender.files.space(JOE, at("/no"))).quotas == ()


@scene
async def test_the_space_of_a_shepherd_in_maintenance_counts_for_nothing(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    await stage.librarian.maintenance(ADMIN, stage.named("s1").service, Ms(2**53))
    told = await stage.bartender.files.space(JOE)
    assert (told.free, told.total) == (2 << 30, 8 << 30)
