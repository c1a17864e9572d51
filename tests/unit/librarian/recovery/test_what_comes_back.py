"""The table of docs/operate/all-metadata-lost.md: what a rebuild brings back of all that the A-Hash holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import HealAction, HealOrder
from chelonia.core.cluster.quotas import Quota
from chelonia.core.contents.uploads import CopyFile, parse_part_name
from chelonia.core.ids import ROOT, SNAPSHOTS_OBJECT, Dn, Guid, Ms, ObjectId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.access_keys import AccessKey, SealedKey
from chelonia.core.ports.librarian import Delete, MakeEntry, MoveEntry
from chelonia.librarian.metadata.contents import OPEN
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.metadata.records import PlannedTransact
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.librarian import ADMIN, BARTENDER, EVE, JOE
from tests.support.namespace_snapshot import NamespaceSnapshot
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.namespace.test_trash import snapshot
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot, rebuilt
from tests.unit.librarian.recovery.test_rebuilding_contents import _upload as upload

ANEW = {
    "entry/entries", "entry/summaries", "sys:cluster/cluster", "sys:repair/lease", "sys:repair/summaries",
    "sys:shepherd/node", "sys:snapshots/snapshot", "snapshot/blob", "sys:quotas/tally",
    "sys:quota/tally",
}  # fmt: skip
"""Sections that are derived from others, or reported anew."""
LOST = {
    "entry/locks", "entry/tally", "entry/uploads", "upload/content", "upload/named", "upload/parts", "upload/tally",
    "part/blob", "sys:access/key", "sys:repair/control", "sys:pending/due",
}  # fmt: skip
"""Sections that never come back as they were: in the document, row by row."""


def kind(obj: StoredObject) -> str:
    if obj.id.startswith("sys:"):
        return ":".join(obj.id.split(":")[:2])
    if obj.value("content", "state") == OPEN:
        return "upload"
    if obj.value("blob", "file") == SNAPSHOTS_OBJECT:
        return "snapshot"
    return "part" if parse_part_name(obj.value("blob", "name")) else obj.id.rpartition(":")[0] or "entry"


Sections = dict[str, dict[ObjectId, Mapping[str, str]]]
"""The sections of all objects, by kind and name."""


def sections(seen: NamespaceSnapshot) -> Sections:
    found: Sections = {}
    for obj in seen.objects.values():
        for section, props in obj.sections.items():
            found.setdefault(f"{kind(obj)}/{section}", {})[obj.id] = props
    return found


async def filled(k: Keepers) -> None:
    """Make one of each thing in the metadata."""
    service, records = k.bench.service, k.bench.service._parts.records
    given = {
        "policy": {EVE: "+read"}, "defaultPolicy": {"ALL": "+read"},
        "metadata": {"x:user.a": "tb", "t:project": "x", "h:Content-Type": "text/plain", "note": "mine"},
        "posix": {"mode": "420", "uid": "7", "gid": "8"}, "timestamps": {"modified": "1600000000.000000001"},
    }  # fmt: skip
    data = await service.make_entry(BARTENDER, MakeEntry(ROOT, "data", "collection", JOE, given))
    assert isinstance(data, str)
    file, _ = await k.upload("/data/f", sections={key: given[key] for key in ("policy", "metadata", "posix")})
    await k.splice("/data/f", file, 3, b"abc")
    await service.move(BARTENDER, MoveEntry(file, data, "f", ROOT, "link", keep=True))
    await service.make_entry(BARTENDER, MakeEntry(data, "s", "symlink", JOE, {"node": {"target": "/data/f"}}))
    await service.make_entry(BARTENDER, MakeEntry(data, "m", "mountpoint", JOE, {"mountpoint": {"externalURL": "x:y"}}))
    shared, _ = await k.upload("/data/g")
    await service.copy_file(BARTENDER, CopyFile(shared, k.bench.begin("copy")))
    gone, _ = await k.upload("/data/gone")
    await service.delete(BARTENDER, Delete(gone))
    locked = put(ObjectId(file), "locks", "token", "exclusive 0 1800000000000\n/CN=joe\n")
    await records.attempt(LIBRARIAN, PlannedTransact([locked]))
    await service.set_quota(ADMIN, Quota(JOE, Guid(""), files=100))
    await service.keep_access_key(BARTENDER, SealedKey(AccessKey("AKIA1", Dn(JOE), Ms(1)), "c2VjcmV0"))
    await service.heal_order(ADMIN, HealOrder(HealAction.RATE, bytes_per_s=10**6))
    await upload(k, "/open", b"a part")


@virtual
async def test_what_the_documents_say_comes_back_does_and_nothing_else_is_lost() -> None:
    k = keepers()
    async with k.running(BEFORE):
        await filled(k)
        await next_snapshot(k)
        before = sections(await snapshot(k.bench))
    async with rebuilt(k) as (k, _):
        after = await snapshot(k.bench)
    differs = {
        name
        for name, objects in before.items()
        for obj, props in objects.items()
        if after.section(obj, name.rpartition("/")[2]) != props
    }
    assert differs == ANEW | LOST
    assert {"entry/metadata", "entry/policy", "entry/posix", "entry/trashed", "blob/owners"} < {*before} - differs


@pytest.mark.parametrize("root", [False, True], ids=["file", "root"])
@virtual
async def test_an_entry_of_more_properties_than_a_transact_takes_comes_back(root: bool) -> None:
    """Users add them in several changes. A file came back without name, owner and policy, the root without policy."""
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f")
        entry = ROOT if root else file
        for first in (0, 1000, 2000):
            rules = [put(ObjectId(entry), "policy", f"/CN={n}", "+read") for n in range(first, first + 1000)]
            await k.bench.service._parts.records.attempt(Call(), PlannedTransact(rules))
        await next_snapshot(k)
        before = await k.bench.stored(entry)
    async with rebuilt(k) as (k, _):
        assert await k.paths() == {"/f": file}
        assert (await k.bench.stored(entry)).sections["policy"] == before.sections["policy"]
