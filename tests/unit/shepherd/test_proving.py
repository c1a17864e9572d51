"""A Shepherd proves that it has the bytes, and cannot without them."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import Challenge, Question
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.shepherd import ADMINISTRATOR, BARTENDER, LIBRARIAN, World, numbered, served

DATA = bytes(range(256)) * 400
WHOLE = (ByteRange(0, len(DATA) // 2), ByteRange(1000, 7))
GONE = ReferenceId(numbered("9", 9))


async def proofs(world: World, *references: ReferenceId, nonce: str = "00ff", spans: tuple[ByteRange, ...] = WHOLE):  # type: ignore[no-untyped-def]
    return await world.service.prove(LIBRARIAN, Challenge(nonce, tuple(Question(r, spans) for r in references)))


@virtual
async def test_holders_of_the_same_bytes_answer_alike_and_each_nonce_anew() -> None:
    one, two = await World("s1").start(), await World("s2").start()
    mine, yours, other = await one.store(DATA, 1), await two.store(DATA, 1), await one.store(DATA, 2)
    [first, second, nothing] = await proofs(one, mine, other, GONE)
    assert (await proofs(two, yours)) == (first,)
    assert second != first, "another blob, though it has the same bytes"
    assert nothing == ""
    assert await proofs(one, mine, nonce="00fe") != (first,)
    assert await proofs(one, mine, spans=WHOLE[:1]) != (first,)


@virtual
async def test_who_has_not_the_bytes_proves_nothing(expect_log: Callable[..., None]) -> None:
    expect_log("replica is invalid")
    world = await World().start(run=True)
    rotten, short, lost = [await world.store(DATA, number) for number in (1, 2, 3)]
    before = await proofs(world, rotten, short, lost)
    world.blobs.flip(rotten, 1003)
    world.blobs.truncate(short, 500)
    world.blobs.lose(lost)
    after = await proofs(world, rotten, short, lost)
    assert after[0] not in ("", before[0])
    assert after[1:] == ("", "")
    await world.pass_ms(1_000)
    assert await world.state_of(short) == "invalid", "what could not be read was checked at once"


@served
async def test_only_librarians_ask_and_never_for_much(world: World) -> None:
    reference = await world.store(DATA)
    for call in (ADMINISTRATOR, BARTENDER):
        with fails(Kind.DENIED):
            await world.service.prove(call, Challenge("", ()))
    question = Question(reference, (ByteRange(0, bounds.PROOF_BYTES_MAX + 1),))
    many = (Question(reference, ()),) * (bounds.PROOF_QUESTIONS_MAX + 1)
    for challenge in (Challenge("00", (question,)), Challenge("00", many), Challenge("0" * 129, ())):
        with fails(Kind.BAD_REQUEST):
            await world.service.prove(LIBRARIAN, challenge)
    beyond = (ByteRange(len(DATA) - 1, 2), ByteRange(-1, 2), ByteRange(3, -1))
    assert [await proofs(world, reference, spans=(span,)) for span in beyond] == [("",)] * 3


@virtual
async def test_the_digest_is_that_of_the_document() -> None:
    text = (Path(__file__).parents[3] / "docs/formats/proofs.md").read_text()
    hashed, expected = re.findall(r"^    (.*)$", text, re.MULTILINE)[-2:]
    assert hashlib.sha256(hashed.encode().decode("unicode_escape").encode()).hexdigest() == expected
    world = await World().start()
    reference = await world.store(b"0123456789")
    asked = (ByteRange(0, 4), ByteRange(7, 2))
    assert await proofs(world, reference, nonce="c0ffee", spans=asked) == (expected,)
