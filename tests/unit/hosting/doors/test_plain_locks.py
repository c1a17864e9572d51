"""Locks at the plain door, for WebDAV clients that lock, and for others beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

import pytest
from lxml import etree

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.ids import ANONYMOUS, Dn, Ms
from chelonia.core.ports.files import Listed, Listing, Look, Placing, Set
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import ADDING, READING, Scope
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import content, locks
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, apply, place_of
from chelonia.wire.shares import ShareToken, issue
from tests.support.stage import KEY
from tests.unit.hosting.doors.test_plain_door import EVE, JOE, Bench, Seen

DAV = "{DAV:}"
INFO = b"<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:%s/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockinfo>"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def lock(bench: Bench, path: str, scope: bytes = b"exclusive", **headers: str) -> str:
    """Take a lock; returns its token in the form of an `If`."""
    answer = bench.ask("LOCK", path, INFO % scope, **headers)
    assert answer.status in (200, 201), answer
    return f"({answer.headers['Lock-Token']})"


def lock_of(bench: Bench, path: str, dn: Dn) -> str:
    """Take another's lock; returns its token as `lock` does."""
    return f"({bench.ask('LOCK', path, INFO % b'exclusive', dn).headers['Lock-Token']})"


def unlock(bench: Bench, path: str, held: str, **more: object) -> Seen:
    return bench.ask("UNLOCK", path, Lock_Token=held.strip("()"), **more)  # type: ignore[arg-type]


def test_a_locked_file_changes_only_for_who_shows_the_token(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"1")
    held = lock(bench, "/f", Timeout="Second-60")
    for ask in (("PUT", b"2"), ("PUT", b"2", "bytes 0-0/*"), ("DELETE", b""), ("PROPPATCH", PATCH), ("MOVE", b"")):
        more = {"Content_Range": ask[2]} if len(ask) > 2 else {}
        refused = bench.ask(ask[0], "/f", ask[1], Destination="/g", **more)
        assert refused.status == 423, ask
    assert "/CN=joe has locked it for " in refused.text
    assert bench.ask("PUT", "/f", b"2", If=held).status == 204
    assert bench.ask("COPY", "/f", Destination="/copy").status == 201
    assert bench.ask("COPY", "/copy", Destination="/f").status == 423
    assert unlock(bench, "/f", held).status == 204
    assert bench.ask("PUT", "/f", b"3").status == 204
    assert unlock(bench, "/f", held).status == 409
    assert bench.ask("PUT", "/f", b"2", If=held).status == 412


PATCH = b"<propertyupdate xmlns='DAV:'><set><prop><x xmlns='u:'>1</x></prop></set></propertyupdate>"


def test_nothing_makes_way_for_what_is_locked_and_stays(bench: Bench) -> None:
    bench.ask("PUT", "/s", b"1")
    for path in ("/d", "/d/e"):
        bench.ask("MKCOL", path)
    bench.ask("PUT", "/d/e/f", b"2")
    held = lock(bench, "/s")
    assert bench.ask("MOVE", "/s", Destination="https://se:1/d").status == 423
    assert bench.ask("GET", "/d/e/f").body == b"2"
    assert bench.ask("MOVE", "/s", Destination="https://se:1/d", If=held).status == 204
    assert bench.ask("GET", "/d").body == b"1"


def test_a_name_that_leads_nowhere_is_locked_as_an_empty_file(bench: Bench) -> None:
    answer = bench.ask("LOCK", "/new", INFO % b"exclusive", Timeout="Infinite")
    assert answer.status == 201
    told = etree.fromstring(answer.body)
    assert int(told.findtext(f".//{DAV}timeout").removeprefix("Second-")) <= bounds.LOCK_MS_MAX // 1000
    assert bench.ask("GET", "/new").body == b""
    assert bench.ask("LOCK", "/no/new", INFO % b"exclusive").status == 409


def test_a_name_that_its_maker_could_not_lock_is_not_made(bench: Bench) -> None:
    """An empty file would stay, in the way of a client that signs in after the answer."""
    bench.files.allow("/", ALL="+read +addEntry")
    refused = bench.ask("LOCK", "/new", INFO % b"exclusive", dn=ANONYMOUS)
    assert (refused.status, "Basic" in refused.headers["WWW-Authenticate"]) == (401, True)
    assert bench.ask("GET", "/new").status == 404
    assert bench.ask("LOCK", "/new", INFO % b"exclusive", dn=EVE).status == 201

    for right, status in ((Action.READ, 403), (Action.MODIFY_METADATA, 201), (Action.DELETE, 201)):
        actions, name = (*READING, *ADDING, right), f"/{right.value}"
        now = bench.clock.now_ms()
        token = issue(KEY, ShareToken("id", JOE, "", Scope(actions, ()), Ms(now), Ms(now + 60_000)))
        answer = bench.ask("LOCK", name, INFO % b"exclusive", dn=ANONYMOUS, Authorization=f"Bearer {token}")
        assert answer.status == status, answer
        assert bench.ask("GET", name).status == (404 if status == 403 else 200)


def test_a_lock_that_is_refused_makes_no_file(bench: Bench) -> None:
    note = b"<D:owner>" + b"x" * bounds.LOCK_NOTE_BYTES_MAX + b"y</D:owner></D:lockinfo>"
    told = bench.ask("LOCK", "/new", (INFO % b"exclusive").replace(b"</D:lockinfo>", note))
    assert (told.status, bench.files.names()) == (413, [])


def test_a_lock_of_a_tree(bench: Bench) -> None:
    for path in ("/d", "/d/e"):
        bench.ask("MKCOL", path)
    bench.ask("PUT", "/d/e/f", b"1")
    inner = lock(bench, "/d/e/f")
    assert bench.ask("LOCK", "/d", INFO % b"exclusive").status == 423
    unlock(bench, "/d/e/f", inner)
    held = lock(bench, "/d", Depth="infinity")
    assert bench.ask("PUT", "/d/e/f", b"2").status == 423
    assert bench.ask("MKCOL", "/d/e/new").status == 423
    assert bench.ask("MOVE", "/d/e", Destination="/e").status == 423
    assert bench.ask("DELETE", "/d").status == 423
    assert bench.ask("PUT", "/d/e/f", b"2", If=f"</d> {held}").status == 204
    assert bench.ask("LOCK", "/d/e/f", If=held, Timeout="Second-7").status == 200
    assert unlock(bench, "/d/e/f", held).status == 204
    assert bench.ask("DELETE", "/d").status == 204


async def test_a_lock_of_a_tree_and_one_in_it_that_cross_are_not_both_given(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.look("MKCOL", "/a")
    await apply(bench.parts, Call(dn=JOE), Set(place_of("/a"), policy={"ALL": "+read +addEntry"}))
    await bench.look("PUT", "/a/f", b"1", EVE)
    below = locks.list_pages

    async def late(parts: DoorParts, call: Call, ask: Listing) -> AsyncIterator[Listed]:
        async for page in below(parts, call, ask):
            yield page
        seen.append((await bench.look("LOCK", "/a/f", INFO % b"exclusive", EVE)).status)

    seen: list[int] = []
    monkeypatch.setattr(locks, "list_pages", late)
    seen.append((await bench.look("LOCK", "/a", INFO % b"exclusive")).status)
    assert sorted(seen) == [200, 423]
    refused = (await bench.look("LOCK", "/a", INFO % b"exclusive", Depth="0")).status == 423
    assert refused is (seen[-1] == 200), "a lock that is refused is not kept"


@pytest.mark.parametrize("inside", ["/d/hers", "/d/closed/f"])
@pytest.mark.parametrize("method", ["LOCK", "MOVE", "COPY"])
def test_a_lock_that_its_caller_may_not_read_is_in_the_way_of_a_tree(bench: Bench, method: str, inside: str) -> None:
    for path in ("/d", "/s"):
        bench.ask("MKCOL", path)
    bench.files.allow("/d", **{EVE: "+read +addEntry"})
    bench.ask("MKCOL", "/d/closed", dn=EVE)
    bench.ask("PUT", inside, b"1", EVE)
    held = lock_of(bench, inside, EVE)
    source, target = ("/s", "/d") if method == "COPY" else ("/d", "/new")
    ask = (method, source, INFO % b"exclusive" if method == "LOCK" else b"")
    refused = bench.ask(*ask, Destination=target)
    assert refused.status == 423
    assert not any(word in refused.text for word in (EVE, inside)), "that is nothing for him"
    assert bench.ask("GET", inside, dn=EVE).status == 200
    unlock(bench, "/d", lock(bench, "/d", Depth="0"))  # no lock of the tree was left
    unlock(bench, inside, held, dn=EVE)
    if method != "COPY":
        assert bench.ask(*ask, Destination=target).status in (200, 201)


def test_a_tree_that_holds_locks_moves_for_who_shows_them(bench: Bench) -> None:
    for path in ("/d", "/d/e"):
        bench.ask("MKCOL", path)
    bench.ask("PUT", "/d/e/f", b"1")
    held = lock(bench, "/d/e/f")
    refused = bench.ask("MOVE", "/d", Destination="/new")
    assert (refused.status, JOE in refused.text) == (423, True)
    assert bench.ask("MOVE", "/d", Destination="/new", If=f"</d/e/f> {held}").status == 201


def test_a_lock_of_a_tree_looks_at_so_many_entries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LOCKED_BELOW_MAX", 2)
    for path in ("/d", "/d/a", "/d/a/b"):
        bench.ask("MKCOL", path)
    unlock(bench, "/d", lock(bench, "/d"))
    bench.ask("MKCOL", "/d/a/b/c")
    assert bench.ask("LOCK", "/d", INFO % b"exclusive").status == 413
    lock(bench, "/d", Depth="0")


@pytest.mark.parametrize("method", ["LOCK", "MOVE", "COPY"])
async def test_a_look_for_locks_below_a_tree_ends_with_its_client(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It went on: who had no patience with a large tree, and asked again and again, had as many looks at work."""
    for path in ("/d", "/s"):
        await bench.look("MKCOL", path)
    pages, closing = list[Listing](), dict[Hashable, Callable[[], None]]()

    async def endless(parts: DoorParts, call: Call, ask: Listing) -> AsyncIterator[Listed]:
        while True:
            pages.append(ask)
            yield Listed(())
            for callback in list(closing.values()) if len(pages) == 3 else ():
                callback()
            await asyncio.sleep(0)

    monkeypatch.setattr(locks, "list_pages", endless)
    source, target = ("/s", "/d") if method == "COPY" else ("/d", "/new")
    body = INFO % b"exclusive" if method == "LOCK" else b""
    request = bench._request(method, source, body, JOE, {"Destination": target})
    async with asyncio.timeout(5):
        answer = await bench.door.serve(replace(request, when_closed=closing.__setitem__))
    assert (answer.status, len(pages)) == (499, 3)
    monkeypatch.undo()
    assert bench.files.names() == ["/d", "/s"]
    assert (await bench.look("LOCK", "/d", INFO % b"exclusive", Depth="0")).status == 200, "no lock was left"


def test_conditions_of_if(bench: Bench) -> None:
    etag = bench.ask("PUT", "/f", b"1").headers["ETag"]
    bench.ask("PUT", "/g", b"1")
    assert bench.ask("PUT", "/f", b"2", If='(["other"])').status == 412
    assert bench.ask("PUT", "/g", b"2", If=f"<https://se:1/f> ([{etag}])").status == 204
    assert bench.ask("PUT", "/g", b"2", If=f"<https://elsewhere/f> ([{etag}])").status == 412
    assert bench.ask("PUT", "/f", b"2", If="(Not <DAV:no-lock>)").status == 204
    assert bench.ask("PUT", "/f", b"2", If="(<urn:x").status == 400
    held = lock(bench, "/f")
    assert bench.ask("PUT", "/f", b"2", If=f"(<urn:x>) {held}").status == 204
    assert bench.ask("PUT", "/f", b"2", If="(Not <urn:x>)").status == 423
    assert bench.ask("PUT", "/below/f", b"2", If="(<urn:x>)").status == 412


@pytest.mark.parametrize(
    "condition", ["([{etag}])", "(Not <no-lock:> [{etag}])", "</f> ([{etag}])", '(Not ["x"] [{etag}])']
)
async def test_an_etag_in_if_holds_until_the_change_applies(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    etag = (await bench.look("PUT", "/f", b"1")).headers["ETag"]
    sent = content.for_write

    async def late(parts: DoorParts, exchange: Exchange, placing: Placing) -> Any:
        if "If" in exchange.request.headers:
            await bench.look("PUT", "/f", b"2")
        return await sent(parts, exchange, placing)

    monkeypatch.setattr(content, "for_write", late)
    assert (await bench.look("PUT", "/f", b"3", If=condition.format(etag=etag))).status == 412
    assert (await bench.look("GET", "/f")).body == b"2"


def test_an_if_of_names_far_below_anything_costs_few_questions(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request of 10 KB had caused 5,040 looks: all the way up from each of its names."""
    bench.ask("MKCOL", "/d")
    bench.ask("MKCOL", "/d/e")
    held, look, asked = lock(bench, "/d"), bench.files.look, list[Look]()

    async def counted(call: Call, looks: tuple[Look, ...]) -> object:
        asked.extend(looks)
        return await look(call, looks)

    monkeypatch.setattr(bench.files, "look", counted)
    for n in range(3, bounds.LN_DEPTH_MAX + 1, 11):
        asked.clear()
        assert bench.ask("PROPPATCH", "/d/e", If=f"<https://se:1/d/e{'/x' * (n - 2)}> {held}").status == 400
        assert len(asked) <= 10, n
    lists = " ".join(f"<https://se:1/{n}{'/x' * (bounds.LN_DEPTH_MAX - 1)}> (<urn:x>)" for n in range(20))
    asked.clear()
    assert bench.ask("GET", "/d", If=lists).status == 412
    assert len(asked) <= 20 * 10


def test_locks_are_told_as_properties(bench: Bench) -> None:
    bench.ask("MKCOL", "/d")
    bench.ask("PUT", "/d/f", b"1")
    lock(bench, "/d", b"shared")
    lock(bench, "/d/f", b"shared", Depth="0")
    found = etree.fromstring(bench.ask("PROPFIND", "/d", Depth="1").body)
    told = {
        one.findtext(f"{DAV}href"): len(one.findall(f".//{DAV}activelock")) for one in found.findall(f"{DAV}response")
    }
    assert told == {"/d/": 1, "/d/f": 2}
    assert len(found.findall(f".//{DAV}lockentry")) == 4
    assert "2" in bench.ask("OPTIONS", "/d").headers["DAV"]


def test_a_lock_is_of_who_took_it(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"1")
    bench.files.allow("/f", **{EVE: "+read +delete"})
    held = lock(bench, "/f")
    assert bench.ask("PUT", "/f", b"2", dn=EVE, If=held).status == 423
    assert unlock(bench, "/f", held, dn=EVE).status == 403
    assert bench.ask("LOCK", "/f", dn=EVE, If=held).status == 403
    assert unlock(bench, "/f", held, dn=JOE).status == 204
    assert bench.ask("LOCK", "/f", INFO % b"exclusive", dn=EVE).status == 200
    assert bench.ask("LOCK", "/f", b"<x/>").status == 400
    assert bench.ask("LOCK", "/f").status == 412
    assert bench.ask("UNLOCK", "/f").status == 400
