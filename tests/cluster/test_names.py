"""The name law at the doors: what is no name is refused everywhere, what is one is kept to the byte."""

import pytest

from chelonia.core.errors import CheloniaError
from chelonia.core.metadata import Triple
from chelonia.core.ports.bartender import (
    GetFileRequest,
    ListRequest,
    MakeRequest,
    MoveRequest,
    NameRequest,
)
from chelonia_clients.client import Client, new_call
from tests.cluster.harness import Cluster
from tests.cluster.load import fetch, put, turl_for_put

BAD = [
    "/..", "/a/../b", "/../etc", "/" + "x" * 256, "/" + "é" * 128, "relative", "relative/name", "sys:services",
    "sys:services/x", "blob:00000000-0000-4000-8000-000000000001", "ABCDEF00-0000-4000-8000-000000000001",
    "/tab\there", "/new\nline", "/del\x7f", "/next\x85line", "/" + "d/" * 257, "/" + "y" * 20_000, "1", "00",
]  # fmt: skip
GOOD = [
    "a b", " lead", "trail ", "\u00e9", "e\u0301", "日本語", "🐢", "\"double\" 'single'", "<&>", "a;b|c$d`e`", "-n",
    "--json", "%2F", "%00", "back\\slash", "...", "a.", "~", "x" * 255, "\u00e9" * 127, "\u202ertl", "sys:x", "blob:x",
    "#", "?a=b",
]  # fmt: skip


@pytest.mark.parametrize("ln", BAD, ids=lambda ln: ascii(ln[:40]))
async def test_what_is_no_name_is_refused_by_every_operation(cluster: Cluster, ln: str) -> None:
    async with cluster.client("user") as client:
        if not await client.exists("/movable"):
            await put(client, "/movable", b"x", 1)
        bartender, name = client.bartender, (NameRequest("0", ln),)
        kinds = {
            "stat": (await bartender.stat(new_call(), name))[0].kind,
            "list": (await bartender.list(new_call(), (ListRequest("0", ln),), (), False))[0].kind,
            "make": (await bartender.make_collection(new_call(), (MakeRequest("0", ln),)))[0].kind,
            "unmake": (await bartender.unmake_collection(new_call(), name))[0].kind,
            "get": (await bartender.get_file(new_call(), (GetFileRequest("0", ln, ("http",)),)))[0].kind,
            "move": (await bartender.move(new_call(), (MoveRequest("0", "/movable", ln),)))[0].kind,
            "delete": (await bartender.del_file(new_call(), name))[0].kind,
            "unlink": (await bartender.unlink(new_call(), name))[0].kind,
            "put": await put_kind(client, ln),
        }
    assert set(kinds.values()) == {"bad-name"}, kinds


async def put_kind(client: Client, ln: str) -> str:
    try:
        await turl_for_put(client, ln, b"x")
    except CheloniaError as error:
        return error.kind.value
    return ""


async def test_what_is_a_name_is_kept_to_the_byte(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await client.make_collection("/names")
        for name in GOOD:
            await put(client, f"/names/{name}", name.encode())
            await client.make_collection(f"/names/{name[:120]}-dir")
        for name in GOOD:
            assert await fetch(client, f"/names/{name}") == name.encode()
        listed = [entry.name async for entry in client.list("/names")]
        assert sorted(listed) == sorted([*GOOD, *(f"{name[:120]}-dir" for name in GOOD)])


async def test_metadata_that_is_the_systems_own_cannot_be_set_by_users(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await put(client, "/whitelist", b"x")
        before = await client.stat("/whitelist")
        for section, prop, value in (
            ("entry", "owner", "/CN=me"),
            ("entry", "type", "collection"),
            ("locations", "a b", "alive"),
            ("states", "size", "5"),
            ("states", "checksum", "0"),
            ("blobs", "00000000", "x"),
            ("parents", "0/x", "parent"),
            ("entries", "x", "0"),
            ("put", "seal", ""),
            ("timestamps", "created", "1"),
        ):
            triple = Triple(section, prop, value)
            with pytest.raises(CheloniaError) as caught:
                await client.modify("/whitelist", "set", triple)
            assert caught.value.kind.value in ("denied", "bad-request"), triple
        after = await client.stat("/whitelist")
        assert "a b" not in after["locations"]
        assert {**after, "locations": {}} == {**before, "locations": {}}, "but for where copies are just now"
