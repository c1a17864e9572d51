"""Answers observed on the original, as tests: *kept*, or *changed* because they came from a defect.

joe owns the root; eve has no right anywhere. Vectors of reports and replicas are the Librarian's and the Shepherd's.
"""

from chelonia.core.contents.extents import Extent
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import INLINED, Content, Done, Inline, Splice
from tests.support.stage import EVE, JOE, Stage, scene

# --- changed ---------------------------------------------------------------------------------------------------------


@scene
async def test_changed_the_root_is_there_from_the_start(stage: Stage) -> None:
    """The original: `list /` -> `not found` until somebody made the root, and so owned it."""
    assert await stage.list("/") == ("found", [])
    assert (await stage.make("/")).status == "LN exists"
    root = await stage.stat("/")
    assert root["entry"] == {"type": "collection", "owner": JOE.dn, "GUID": "0"}
    assert root["states"] == {"closed": "no"}
    assert "created" in root["timestamps"]


@scene
async def test_changed_no_name_is_left_when_no_shepherd_takes_the_file(stage: Stage) -> None:
    """The original answered `no suitable shepherd found` and kept the name, which could not be put again."""
    assert (await stage.put_file("/g")).status == "no suitable shepherd found"
    assert not await stage.exists("/g")
    assert (await stage.make("/g")).status == "done"


@scene
async def test_changed_a_missing_name_is_missing_for_everybody(stage: Stage) -> None:
    """The original decided on the last ancestor found, so a stranger got `denied` for a name that was not there."""
    assert await stage.name_op("delFile", "/zz", JOE) == "nosuchLN"
    assert await stage.name_op("delFile", "/zz", EVE) == "nosuchLN"


@scene
async def test_changed_the_root_cannot_be_unmade(stage: Stage) -> None:
    """The original removed it when empty, and the next caller owned everything."""
    assert await stage.name_op("unmakeCollection", "/") == "denied"
    assert (await stage.list("/"))[0] == "found"


@scene
async def test_changed_a_file_of_several_blobs_has_no_turl(stage: Stage) -> None:
    """The original knew files of one replica alone. Its clients read the status, so this names the other way."""
    await stage.add_shepherds("s1", "s2")
    await stage.file("/f")
    assert (await stage.get_file("/f")).status == "done"
    append = Splice(parse_ln("/f"), Content((Extent(5, 3, INLINED),), size=8, inline=Inline(b"end")))
    (done,) = await stage.bartender.files.apply(JOE, (append,))
    assert isinstance(done, Done), done
    got = await stage.get_file("/f")
    assert (got.kind, got.turl) == ("not-supported", "")
    assert got.status.startswith("error while getting TURL (")
    assert "GET it at the plain HTTPS door https://door:1/" in got.status


# --- kept ------------------------------------------------------------------------------------------------------------


@scene
async def test_kept_make_collection(stage: Stage) -> None:
    assert (await stage.make("/a")).status == "done"
    assert (await stage.make("/a")).status == "LN exists"
    assert (await stage.make("/x/y")).status == "parent does not exist"


@scene
async def test_kept_a_stranger_may_not_add_nor_list(stage: Stage) -> None:
    assert (await stage.make("/e", EVE)).status == "failed to add child to parent"
    assert await stage.list("/", EVE) == ("denied", [])


@scene
async def test_kept_no_replicas_wanted_makes_the_name_at_once(stage: Stage) -> None:
    begun = await stage.put_file("/f", needed=0)
    assert (begun.status, begun.turl) == ("done", "")
    assert (await stage.stat("/f"))["entry"]["type"] == "file"
    assert (await stage.get_file("/f")).status == "file has no valid replica"


@scene
async def test_kept_put_on_what_exists(stage: Stage) -> None:
    await stage.make("/a")
    for ln in ("/", "/a", "/a/"):
        assert (await stage.put_file(ln, needed=0)).status == "LN exists"


@scene
async def test_kept_del_file_on_a_collection(stage: Stage) -> None:
    await stage.make("/a")
    assert await stage.name_op("delFile", "/a") == "nosuchLN"
    assert await stage.exists("/a")


@scene
async def test_kept_stat_of_nothing_and_of_the_forbidden(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    assert await stage.stat("/zz") == {}
    assert await stage.stat("/f", EVE) == {"error": {"permission denied": "you are not allowed to read"}}


@scene
async def test_kept_move(stage: Stage) -> None:
    await stage.make("/a")
    await stage.put_file("/f", needed=0)
    assert await stage.move("/f", "/a") == "targetexists"
    assert await stage.move("/f", "/a/") == "moved"
    assert await stage.move("/a", "/a/b") == "invalidtarget"
    assert await stage.move("/q", "/r") == "nosuchLN"
    assert await stage.move("/a/f", "/no/such") == "invalidtarget"
    assert await stage.list("/a") == ("found", ["f"])
    assert await stage.list("/") == ("found", ["a"])


@scene
async def test_kept_unlink(stage: Stage) -> None:
    await stage.make("/a")
    await stage.put_file("/a/n", needed=0)
    assert await stage.name_op("unlink", "/a/n") == "unset"
    assert await stage.name_op("unlink", "/") == "nothing to unlink"
    assert await stage.name_op("unlink", "/a/n") == "no such LN"


@scene
async def test_kept_unmake_collection(stage: Stage) -> None:
    await stage.make("/a")
    await stage.make("/a/b")
    assert await stage.name_op("unmakeCollection", "/a") == "collection is not empty"
    assert await stage.name_op("unmakeCollection", "/a/b") == "removed"
    assert await stage.name_op("unmakeCollection", "/a") == "removed"
    assert await stage.name_op("unmakeCollection", "/a") == "no such LN"
