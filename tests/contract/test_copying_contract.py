"""The contract of the port `Files`: copies by reference (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

import hashlib

from chelonia.core.errors import Kind
from chelonia.core.ports.files import (
    ANY,
    Clone,
    Content,
    Make,
    Remove,
    Set,
    Setting,
    Splice,
    Want,
    When,
)
from tests.contract.test_contents_contract import lay, shape
from tests.support.files_worlds import World, applied, at, done, played, there, write
from tests.support.stage import EVE

S = 1_000_000_000


async def holds(world: World, name: str, data: bytes) -> bool:
    """Whether a file has these bytes."""
    return (await there(world, name, Want.CHECKSUMS)).checksums.sha256 == hashlib.sha256(data).hexdigest()


@played
async def test_a_copy_comes_with_its_rules(world: World) -> None:
    await write(world, "/f", b"bytes")
    await done(world, Set(at("/f"), policy={"ALL": "+read"}))
    await done(world, Clone(at("/g"), at("/f"), policy={EVE.dn: "+read +delete"}))
    assert (await there(world, "/g", Want.POLICY)).policy == {EVE.dn: "+read +delete"}
    assert await applied(world, Clone(at("/g"), at("/f"), policy={}), EVE) is Kind.DENIED
    await done(world, Set(at("/g"), policy={"ALL": "+read", "VOMS:/vo": "+read"}))
    await done(world, Clone(at("/g"), at("/f"), policy={}))
    assert (await there(world, "/g", Want.POLICY)).policy == {"VOMS:/vo": "+read"}


@played
async def test_a_copy_is_a_file_of_its_own_with_the_same_bytes(world: World) -> None:
    await write(world, "/f", b"12345", user={"note": "x"})
    copied = await done(world, Clone(at("/g"), at("/f"), Setting(modified_ns=7 * S)))
    source, copy = await there(world, "/f"), await there(world, "/g", Want.USER | Want.CHECKSUMS)
    assert copied.made
    assert copied.attributes == copy.attributes
    assert copy.attributes.guid != source.attributes.guid
    assert copy.attributes.modified_ns == 7 * S
    assert (copy.attributes.size, copy.attributes.wanted) == (5, source.attributes.wanted)
    assert copy.attributes.etag == source.attributes.etag
    assert copy.user == {"note": "x"}
    assert copy.checksums == (await there(world, "/f", Want.CHECKSUMS)).checksums
    assert await holds(world, "/g", b"12345")
    await write(world, "/f", b"other")
    assert await holds(world, "/g", b"12345")
    await done(world, Remove(at("/f")))
    assert await holds(world, "/g", b"12345")


@played
async def test_a_copy_over_a_file_leaves_it_its_name_and_nothing_it_said(world: World) -> None:
    await write(world, "/f", b"12345", user={"note": "x"})
    await write(world, "/g", b"old", user={"mine": "1"})
    before = (await there(world, "/g")).attributes.guid
    copied = await done(world, Clone(at("/g"), at("/f"), user={"new": "y"}))
    copy = await there(world, "/g", Want.USER)
    assert not copied.made
    assert copy.attributes.guid == before
    assert copy.user == {"new": "y"}
    assert await holds(world, "/g", b"12345")


@played
async def test_a_copy_of_extents_is_changed_by_itself(world: World) -> None:
    await lay(world, "/f", (0, b"abc"), (3, b"def"), (10, b"ghi"))
    await done(world, Clone(at("/g"), at("/f")))
    assert await shape(world, "/g") == await shape(world, "/f")
    await lay(world, "/g", (2, b"XY"))
    assert await shape(world, "/f") == [(0, 3, 0), (3, 3, 0), (10, 3, 0)]
    assert await shape(world, "/g") == [(0, 2, 0), (2, 2, 0), (4, 2, 1), (10, 3, 0)]
    await done(world, Remove(at("/f")))
    assert (await there(world, "/g")).attributes.size == 13


@played
async def test_a_file_made_without_bytes_is_copied_and_copied_over(world: World) -> None:
    await done(world, Splice(at("/f"), Content(size=0, whole=True), when=When(absent=True)))
    await done(world, Clone(at("/g"), at("/f")))
    assert (await there(world, "/g", Want.SOURCES)).attributes.size == 0
    await write(world, "/h", b"12345")
    await done(world, Clone(at("/h"), at("/f")))
    assert (await there(world, "/h", Want.SOURCES)).attributes.size == 0
    await write(world, "/i", b"12345")
    await done(world, Clone(at("/g"), at("/i")))
    assert await holds(world, "/g", b"12345")
    await done(world, Splice(at("/j"), Content(size=0, whole=True)))
    await lay(world, "/k", (0, b"abc"), (10, b"def"))
    await done(world, Clone(at("/j"), at("/k")))
    assert await shape(world, "/j") == [(0, 3, 0), (10, 3, 0)]
    await done(world, Clone(at("/j"), at("/f")))
    assert await shape(world, "/j") == []


@played
async def test_conditions_hold_of_either_side(world: World) -> None:
    await write(world, "/f", b"12345")
    await write(world, "/g", b"old")
    etag = (await there(world, "/f")).attributes.etag
    assert await applied(world, Clone(at("/g"), at("/f"), when=When(absent=True))) is Kind.PRECONDITION
    assert await applied(world, Clone(at("/g"), at("/f"), of=When(etags=("x",)))) is Kind.PRECONDITION
    assert await holds(world, "/g", b"old")
    await done(world, Clone(at("/h"), at("/f"), when=When(absent=True), of=When(etags=(etag,))))


@played
async def test_who_copies_may_read_the_one_and_write_the_other(world: World) -> None:
    await done(world, Make(at("/d"), "collection"))
    await done(world, Set(at("/d"), policy={EVE.dn: "+read +addEntry"}))
    await write(world, "/f", b"12345")
    await write(world, "/d/mine", b"joe's")
    copy = Clone(at("/d/g"), at("/f"))
    assert await applied(world, copy, EVE) is Kind.DENIED
    await done(world, Set(at("/f"), policy={EVE.dn: "+read"}))
    assert await applied(world, Clone(at("/g"), at("/f")), EVE) is Kind.DENIED
    assert await applied(world, Clone(at("/d/mine"), at("/f")), EVE) is Kind.DENIED
    copied = await done(world, copy, EVE)
    assert copied.attributes is not None
    assert copied.attributes.owner == EVE.dn


@played
async def test_what_is_no_file_is_not_copied_nor_a_file_onto_itself(world: World) -> None:
    await done(world, Make(at("/d"), "collection"))
    await write(world, "/f", b"12345")
    assert await applied(world, Clone(at("/g"), at("/d"))) is Kind.NOT_A_FILE
    assert await applied(world, Clone(at("/g"), at("/none"))) is Kind.NOT_FOUND
    assert await applied(world, Clone(at("/d"), at("/f"))) is Kind.NOT_A_FILE
    assert await applied(world, Clone(at("/f"), at("/f"))) is Kind.BAD_REQUEST
    assert await applied(world, Clone(at("/x/y/g"), at("/f"))) is Kind.NO_PARENT
    await done(world, Clone(at("/x/y/g"), at("/f"), parents=True, when=ANY))
    assert await holds(world, "/x/y/g", b"12345")
