"""The contract of write locks in the port `Files` (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

from chelonia.core import bounds
from chelonia.core.errors import Kind
from chelonia.core.ports.files import (
    Change,
    Done,
    Failure,
    Listing,
    Make,
    Move,
    Over,
    Placing,
    Remove,
    Removing,
    Reserving,
    Set,
    Setting,
    Want,
    When,
)
from chelonia.core.rights.locks import Lock
from tests.support.failing import failure_kind
from tests.support.files_worlds import World, applied, at, collection, done, looked, played, there, write
from tests.support.stage import EVE, JOE

HELD = When(tokens=("urn:a",))
FREE = When(tokens=())
SET = Setting(mode=1)


def lock(token: str = "urn:a", *, shared: bool = False, deep: bool = False, lasts_ms: int = 60_000) -> Lock:
    return Lock(token, shared=shared, deep=deep, note="<x/>", lasts_ms=lasts_ms)


async def locked(world: World, name: str) -> list[str]:
    return [each.token for each in (await there(world, name, Want.LOCKS)).locks]


@played
async def test_a_lock_keeps_out_who_does_not_show_its_token(world: World) -> None:
    await write(world, "/f")
    await done(world, Set(at("/f"), locks=(lock(),)))
    (told,) = (await there(world, "/f", Want.LOCKS)).locks
    assert (told.owner, told.note, told.root) == (JOE.dn, "<x/>", at("/f"))
    assert 0 < told.lasts_ms <= 60_000
    for when in (FREE, When(tokens=("urn:b",))):
        assert await write(world, "/f", when=when) is Kind.LOCKED
        assert await applied(world, Set(at("/f"), Setting(mode=1), when=when)) is Kind.LOCKED
        assert await applied(world, Move(at("/f"), at("/g"), when=when)) is Kind.LOCKED
        assert await applied(world, Remove(at("/f"), when=when)) is Kind.LOCKED
        (placed,) = await world.files.place(JOE, (Placing(at("/f"), 3, reserving=Reserving(when=when)),))
        assert failure_kind(placed) is Kind.LOCKED
    assert isinstance(await write(world, "/f", when=HELD), Done)
    assert isinstance(await write(world, "/f"), Done)  # a writer without locks
    assert await locked(world, "/f") == ["urn:a"]
    await done(world, Set(at("/f"), locks=(lock(lasts_ms=0),)))
    assert isinstance(await write(world, "/f", when=FREE), Done)


@played
async def test_a_lock_keeps_no_collection_that_is_only_part_of_a_name(world: World) -> None:
    """It stayed for good, an S3 bucket with it, though the lock had ended."""
    assert isinstance(await write(world, "/a/key", parents=True), Done)
    for held in (lock(), lock(lasts_ms=0), lock(deep=True)):
        await done(world, Set(at("/a"), locks=(held,)))
        assert (await there(world, "/a")).attributes.implied
    await done(world, Remove(at("/a/key"), Removing.KEY))
    assert await looked(world, "/a") is Kind.NOT_FOUND


@played
async def test_who_may_not_change_an_entry_learns_nothing_of_its_lock(world: World) -> None:
    """A removal was refused for the lock, with its holder's name."""
    await write(world, "/f")
    await done(world, Set(at("/f"), locks=(lock(),)))
    for change in (Remove(at("/f"), when=FREE), Move(at("/f"), at("/g"), when=FREE), Set(at("/f"), SET, when=FREE)):
        assert await applied(world, change, EVE) is Kind.DENIED, change
    assert await write(world, "/f", call=EVE, when=FREE) is Kind.DENIED


@played
async def test_a_collection_s_lock_covers_its_names_and_a_deep_one_all_below(world: World) -> None:
    for name in ("/d", "/d/e", "/d/e/h"):
        await collection(world, name)
    await write(world, "/d/f")
    await done(world, Set(at("/d"), locks=(lock(),)))
    assert isinstance(await write(world, "/d/f", when=FREE), Done)
    assert await write(world, "/d/new", when=FREE) is Kind.LOCKED
    assert await applied(world, Make(at("/d/x"), "collection", when=FREE)) is Kind.LOCKED
    assert isinstance(await applied(world, Make(at("/d/e/x"), "collection", when=FREE)), Done)
    assert await applied(world, Remove(at("/d/f"), when=FREE)) is Kind.LOCKED
    assert await applied(world, Move(at("/d/e/x"), at("/d/x"), when=FREE)) is Kind.LOCKED
    await done(world, Set(at("/d"), locks=(lock(lasts_ms=0), lock("urn:b", deep=True))))
    assert await locked(world, "/d/e/h") == ["urn:b"]
    assert await write(world, "/d/f", when=FREE) is Kind.LOCKED
    assert await write(world, "/d/e/h/new", when=FREE) is Kind.LOCKED
    assert isinstance(await write(world, "/d/e/h/new", when=When(tokens=("urn:b",))), Done)
    assert await applied(world, Set(at("/d/f"), locks=(lock(),))) is Kind.LOCKED


@played
async def test_whatever_loses_its_name_loses_its_locks(world: World) -> None:
    for name, token in (("/f", "urn:a"), ("/g", "urn:b"), ("/h", "urn:c")):
        await write(world, name)
        await done(world, Set(at(name), locks=(lock(token),)))
    await done(world, Move(at("/f"), at("/g"), Over.EXCHANGE))
    await done(world, Move(at("/h"), at("/i")))
    assert [await locked(world, name) for name in ("/f", "/g", "/i")] == [[], [], []]
    await done(world, Set(at("/f"), locks=(lock(),)))
    await done(world, Move(at("/f"), at("/k"), keep=True))
    assert await locked(world, "/f") == ["urn:a"]


@played
async def test_shared_locks_stand_beside_each_other_and_exclusive_ones_alone(world: World) -> None:
    await write(world, "/f")
    await done(world, Set(at("/f"), locks=(lock(shared=True),)))
    await done(world, Set(at("/f"), locks=(lock("urn:b", shared=True),)))
    assert await applied(world, Set(at("/f"), locks=(lock("urn:c"),))) is Kind.LOCKED
    assert isinstance(await write(world, "/f", when=HELD), Done)
    assert await write(world, "/f", when=FREE) is Kind.LOCKED
    await done(world, Set(at("/f"), locks=(lock(lasts_ms=0), lock("urn:b", lasts_ms=0))))
    await done(world, Set(at("/f"), locks=(lock("urn:c"),)))
    assert await applied(world, Set(at("/f"), locks=(lock(shared=True),))) is Kind.LOCKED
    await done(world, Set(at("/f"), locks=(lock("urn:c", lasts_ms=90_000),)))
    (told,) = (await there(world, "/f", Want.LOCKS)).locks
    assert told.lasts_ms > 60_000


@played
async def test_a_lock_is_its_owner_s(world: World) -> None:
    await done(world, Make(at("/d"), "collection"))
    await done(world, Set(at("/d"), policy={EVE.dn: "+read +addEntry +delete +modifyMetadata"}))

    async def as_eve(change: Change) -> Kind | None:
        (answer,) = await world.files.apply(EVE, (change,))
        return answer.kind if isinstance(answer, Failure) else None

    await done(world, Set(at("/d"), locks=(lock(),)))
    assert await as_eve(Make(at("/d/x"), "collection", when=HELD)) is Kind.LOCKED
    assert await as_eve(Set(at("/d"), locks=(lock(lasts_ms=0),))) is Kind.DENIED
    assert await as_eve(Set(at("/d"), locks=(lock(),))) is Kind.DENIED
    await done(world, Set(at("/d"), locks=(lock(lasts_ms=0),)))
    assert await as_eve(Set(at("/d"), locks=(lock("urn:eve"),))) is None
    await done(world, Set(at("/d"), locks=(lock("urn:eve", lasts_ms=0),)))  # the owner of what is locked ends it
    await done(world, Set(at("/d"), policy={EVE.dn: "+read"}))
    assert await as_eve(Set(at("/d"), locks=(lock(),))) is Kind.DENIED


@played
async def test_who_may_write_about_a_file_may_lock_it_however_deep(world: World) -> None:
    """Clients that state no depth request a deep lock: for a file it makes no difference."""
    await write(world, "/f")
    await done(world, Make(at("/d"), "collection"))
    for path, answers in (("/f", Done), ("/d", Failure)):
        await done(world, Set(at(path), policy={EVE.dn: "+read +modifyMetadata"}))
        (answer,) = await world.files.apply(EVE, (Set(at(path), locks=(lock(deep=True),)),))
        assert isinstance(answer, answers), answer


@played
async def test_who_has_lost_the_right_to_lock_may_end_his_lock_and_not_refresh_it(world: World) -> None:
    await write(world, "/f")
    await done(world, Set(at("/f"), policy={EVE.dn: "+modifyMetadata"}))
    await done(world, Set(at("/f"), locks=(lock(),)), EVE)
    await done(world, Set(at("/f"), locks=(lock(),)), EVE)
    await done(world, Set(at("/f"), policy={EVE.dn: None}))
    assert await applied(world, Set(at("/f"), locks=(lock(),)), EVE) is Kind.DENIED
    await done(world, Set(at("/f"), locks=(lock(lasts_ms=0),)), EVE)
    assert await locked(world, "/f") == []


@played
async def test_locks_are_bounded_and_go_with_the_name(world: World) -> None:
    await write(world, "/f")
    assert await applied(world, Set(at("/f"), locks=(lock(lasts_ms=bounds.LOCK_MS_MAX + 1),))) is Kind.BAD_REQUEST
    assert await applied(world, Set(at("/f"), locks=(lock("urn:\0"),))) is Kind.BAD_REQUEST
    assert await applied(world, Set(at("/f"), locks=(lock(lasts_ms=0),))) is Kind.PRECONDITION
    for n in range(bounds.LOCKS_PER_ENTRY_MAX):
        await done(world, Set(at("/f"), locks=(lock(f"urn:{n}", shared=True),)))
    assert await applied(world, Set(at("/f"), locks=(lock("urn:more", shared=True),))) is Kind.TOO_LARGE
    (told,) = (await world.files.list(JOE, Listing(at("/"), want=Want.LOCKS))).entries
    assert len(told.locks) == bounds.LOCKS_PER_ENTRY_MAX
    await done(world, Move(at("/f"), at("/g"), Over.REFUSE))
    assert await locked(world, "/g") == []
