"""Simulated users: each works on the few names of its group, one operation after the other, and notes the answers.

`model.Story` checks these. A user repeats a request under one request key until an answer comes, at any Bartender.
While the network has anything of a request under way, a failure is not final: it may take effect yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import TABLE, CheloniaError, Kind
from chelonia.core.ids import Dn, RequestKey
from chelonia.core.metadata import Triple, from_triples
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import (
    GetFileRequest,
    MakeRequest,
    ModifyRequest,
    MoveRequest,
    NameRequest,
    PutFileRequest,
    UndeleteRequest,
)
from chelonia.core.ports.files import Arrived, Clone, Done, Failure, Placed, Placing, Write
from chelonia.core.values import replace
from chelonia.wire import receipts
from tests.sim.model import DONE, NOTHING, Op, Story, Violation
from tests.sim.process import Node
from tests.sim.world import World

NAMES = ("a", "b", "c")
NAMES_EACH = len(NAMES)
TRIES = 30
"""Repeats of one request before its user gives up and never learns its outcome."""
PAUSE_MS = 500
OPEN_MAX = 4
"""With so many operations of open outcome, a group only waits: the possible answers become too many to follow."""
UNKNOWN = "unknown"
KINDS = {
    "put": 26, "put_file": 12, "delete": 7, "unlink": 9, "move": 10, "link": 12, "note": 4, "wanted": 7, "bar": 3,
    "unbar": 2, "read": 6, "stat": 2,
}  # fmt: skip
"""Users' operations, and how often each comes."""
REGRET = {"delete": 14, "unlink": 14, "undelete": 14}
"""The same where deleted files are kept."""

COPIES = 0.25
"""Where users copy, the share of copies."""
JOINED = 0.4
"""Where users remove several names in one call, the share of removals that are."""

Send = Callable[[Any, Call], Awaitable[Any]]


@dataclass(slots=True)
class Group:
    """Some users, the collection they share, the answers about its names, and the newest position in any of these.

    A request with that position sees everything that any of them knows.
    `untold`: the last `put_file`, until an answer has its position. The Shepherd that commits it answers none: a false
    one would bind its reader.
    `beside`: a collection with the last of the names instead, "" for none.
    """

    path: str
    story: Story = field(default_factory=lambda: Story(NAMES_EACH))
    horizon: Horizon = field(default_factory=Horizon)
    untold: int | None = None
    beside: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.beside) if self.beside else (self.path,)

    def ln(self, name: int) -> str:
        """The Logical Name of a name."""
        return f"{self.paths[-1] if name == NAMES_EACH - 1 else self.path}/{NAMES[name]}"


class Contents:
    """All bytes ever written, by number: everything read is one of them."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.laid = False
        """Whether users lay pieces over others."""
        self.large: random.Random | None = None
        """If given, one in four has more bytes than one chunk."""

    def after(self, before: int, *, piece: int, at: int, end: int) -> int:
        """The number of the bytes that a piece laid at an offset makes of others; `end`: there they end, -1: the rest
        follows."""
        old, new = self.bytes_of(before) if before else b"", self.bytes_of(piece)
        new = new if end < 0 else new[: end - at]
        data = old[:at].ljust(at, b"\0") + new + (old[at + len(new) :] if end < 0 else b"")
        return self._numbers.setdefault(data, len(self._numbers) + 1)

    def new(self, rng: random.Random, *, small: bool = False) -> int:
        """Make new bytes; `small`: never many."""
        number = len(self._numbers) + 1
        data = f"content {number} ".encode() * rng.randint(2, 20)
        if self.large is not None and not small and self.large.random() < 0.25:
            data += bytes(self.large.randint(bounds.CHUNK_BYTES, 2 * bounds.CHUNK_BYTES))
        self._numbers[data] = number
        return number

    def bytes_of(self, number: int) -> bytes:
        return next(data for data, known in self._numbers.items() if known == number)

    def number_with(self, sha256: str) -> int:
        """The number of the bytes with this checksum. Raises: Violation for bytes nobody wrote."""
        for data, number in self._numbers.items():
            if hashlib.sha256(data).hexdigest() == sha256:
                return number
        raise Violation(f"bytes with the checksum {sha256} are named, which nobody wrote")

    def number_of(self, data: bytes) -> int:
        """The number of bytes read. Raises: Violation for bytes nobody wrote. Where pieces are laid over others, no
        tree explains such bytes."""
        if self.laid:
            return self._numbers.setdefault(data, len(self._numbers) + 1)
        if data not in self._numbers:
            raise Violation(f"{data[:40]!r} was read, which nobody wrote")
        return self._numbers[data]


class Users:
    """All users of one run. `acknowledged` counts uploads with the answer `done`.

    `strong`: draws the strong readers where the A-Hash is a group.
    `kinds`: operations, and how often each comes. While `held` is not set no operation begins; `acting` counts those
    without an answer.
    """

    def __init__(self, world: World, rng: random.Random, strong: random.Random | None = None) -> None:
        self.world = world
        self.kinds = KINDS
        self.contents = Contents()
        self.acknowledged = 0
        self.asked = 0
        self.rng = rng
        self.strong = strong
        self.copying: random.Random | None = None
        """If given, users copy files by reference: it draws when."""
        self.laying: Any = None
        """If given (`laying.Laying`), users write in the middle of files and move one over another."""
        self.joining: random.Random | None = None
        """If given, users remove several names in one call: it draws when, and which."""
        self.held: asyncio.Event | None = None
        self.acting = 0
        self.waiting: dict[asyncio.Task[None], None] = {}

    def draw(self, group: Group, user: int, colleague: int) -> Op:
        """Draw this user's next operation."""
        rng = self.rng
        [kind] = rng.choices(list(self.kinds), weights=list(self.kinds.values()))
        if self.copying is not None and self.copying.random() < COPIES:
            kind = "copy"
        name, other = rng.sample(range(NAMES_EACH), 2)
        content = self.contents.new(rng) if kind in ("put", "put_file") else NOTHING
        self.asked += 1
        op = Op(self.asked, user, kind, name, other, content, rng.randint(2, 4), f"note {self.asked}", colleague)
        return op if self.laying is None else self.laying.drawn(op)

    async def work(self, group: Group, user: User, colleague: int, rounds: int) -> None:
        for _ in range(rounds):
            await self.world.clock.sleep(self.rng.randint(0, 4_000))
            if self.held is not None:
                await self.held.wait()
            if group.story.open < OPEN_MAX:
                op = self.draw(group, user.number, colleague)
                await asyncio.gather(self.act(group, user, op, *self._joined(group, op)), *self._duels(group, op))

    def _joined(self, group: Group, op: Op) -> list[Op]:
        """The removals of other names in the same call as this one."""
        room = min(OPEN_MAX - group.story.open, NAMES_EACH) - 1
        if op.kind not in ("delete", "unlink") or self.joining is None or room < 1 or self.joining.random() >= JOINED:
            return []
        others = [name for name in range(NAMES_EACH) if name != op.name]
        joined = self.joining.sample(others, self.joining.randint(1, room))
        ids = range(self.asked + 1, self.asked + 1 + len(joined))
        self.asked += len(joined)
        return [replace(op, id=number, name=name) for number, name in zip(ids, joined, strict=True)]

    def _duels(self, group: Group, op: Op) -> list[Any]:
        """The rival's use of a right at the moment when it is taken away."""
        if op.kind != "bar":
            return []
        self.asked += 1
        rival = User(op.target, self.world.client(f"user{op.target}"))
        return [self.act(group, rival, Op(self.asked, op.target, "delete", op.name))]

    async def act(self, group: Group, user: User, op: Op, *joined: Op) -> str:
        """Carry out an operation and others in the same call, and note the answers. Returns: its own answer."""
        self.acting += 1
        try:
            return await self._act(group, user, (op, *joined))
        finally:
            self.acting -= 1

    async def _act(self, group: Group, user: User, ops: tuple[Op, ...]) -> str:
        op = ops[0]
        call = user.call(op.id, self.world.ids.uuid())
        user.node.horizon = group.horizon
        if self.strong is not None and self.strong.random() < 0.5:
            call = call.strongly()
        untold = group.untold
        if untold is not None:
            call = call.strongly()
        for each in ops:
            group.story.begin(each)
        asking = _Asking(self, group, user, call)
        told = [await asking.ask(op)] if len(ops) == 1 else await asking.remove(ops)
        if op.kind == "put_file":
            group.untold = op.id
        elif UNKNOWN not in told and group.untold == untold:
            group.untold = None
        settling = [
            asyncio.ensure_future(self._settle(group, each, call))
            for each, answer in zip(ops, told, strict=True)
            if not self._is_answered(group, each, call, answer)
        ]
        self.waiting.update(dict.fromkeys(settling))
        if settling and self.rng.random() < 0.5:
            await asyncio.wait(settling)
        return UNKNOWN if settling else told[0]

    def _is_answered(self, group: Group, op: Op, call: Call, told: str) -> bool:
        """Note an answer; returns whether it is final. Raises: Violation."""
        if told != UNKNOWN and not (told.startswith("refused") and self.world.network.flying(call.request_id)):
            group.story.answered(op, told)
            self.acknowledged += told == "done" and op.content > 0
            return True
        group.story.unknown(op)
        return False

    async def _settle(self, group: Group, op: Op, call: Call) -> None:
        while self.world.network.flying(call.request_id):
            await self.world.clock.sleep(200)
        group.story.settled(op)

    async def settled(self) -> None:
        """Wait until nothing is under way any more."""
        for task in list(self.waiting):
            await task
        self.waiting.clear()

    async def idle(self) -> None:
        """Wait until every operation is answered or given up, and no part of it is under way any more."""
        while self.acting:
            await self.world.clock.sleep(200)
        await self.settled()

    async def make_collections(self, groups: list[Group], user: User) -> None:
        requests = tuple(MakeRequest(path, path) for group in groups for path in group.paths)
        port = self.world.bartender_port(user.node, user.dn_call)
        for outcome in await port.make_collection(user.call(0, "made"), requests):
            assert not outcome.kind, outcome
        made = user.node.horizon.newest
        if made is not None:
            for group in groups:
                group.horizon.saw(made)


@dataclass(frozen=True, slots=True)
class User:
    """A user: number and machine."""

    number: int
    node: Node

    @property
    def dn_call(self) -> Call:
        """The user's identity."""
        return Call(dn=dn_of(self.number))

    def call(self, op: int, key: str) -> Call:
        return structs.replace(self.dn_call, request_id=f"op{op}", request_key=RequestKey(key))


def dn_of(number: int) -> Dn:
    return Dn(f"/O=Sim/CN=user{number}")


class _Asking:
    """One operation of a user on its way through requests, repeats and answers."""

    def __init__(self, users: Users, group: Group, user: User, call: Call) -> None:
        self._users, self._group, self._user, self._call = users, group, user, call
        self._world = users.world

    async def ask(self, op: Op) -> str:
        """Do it. Returns: `done`, the content read, `refused <kind>`, or UNKNOWN."""
        match op.kind:
            case "put":
                return await self._put(op)
            case "put_file":
                return await self._put_file(op)
            case "copy":
                change = Clone(parse_ln(self._group.ln(op.other)), parse_ln(self._group.ln(op.name)))
                return await self._repeat(lambda port, call: port.apply(call, (change,)), "files")
            case "lay" | "cut" | "over" | "exchange":
                names = (parse_ln(self._group.ln(name)) for name in (op.name, op.other))
                change = self._users.laying.change(op, *names)
                return await self._repeat(lambda port, call: port.apply(call, (change,)), "files")
            case "read":
                return await self._read(op)
            case "stat":
                return await self._stat(op)
        return await self._repeat(self._sending(op))

    async def remove(self, ops: tuple[Op, ...]) -> list[str]:
        """Remove names in one call, each as `ask`."""
        names = tuple(NameRequest(str(op.id), self._group.ln(op.name)) for op in ops)
        return await self._repeat_all(lambda port, call: _removal(port, ops[0])(call, names), len(ops))

    def _sending(self, op: Op) -> Send:
        name, other = self._group.ln(op.name), self._group.ln(op.other)
        only = (NameRequest("0", name),)
        changes = {
            "note": ("set", "metadata", "note", op.value),
            "wanted": ("set", "states", "neededReplicas", str(op.wanted)),
            "bar": ("set", "policy", dn_of(op.target), "-delete"),
            "unbar": ("unset", "policy", dn_of(op.target), ""),
        }
        match op.kind:
            case "delete" | "unlink":
                return lambda port, call: _removal(port, op)(call, only)
            case "undelete":
                return lambda port, call: port.undelete(call, (UndeleteRequest("0", name),))
            case "move" | "link":
                moves = (MoveRequest("0", name, other, op.kind == "link"),)
                return lambda port, call: port.move(call, moves)
        modify = (ModifyRequest("0", name, *changes[op.kind]),)
        return lambda port, call: port.modify(call, modify)

    async def _repeat(self, send: Send, door: str = "") -> str:
        """Send until an answer comes, with pauses. Returns: `done`, `refused <kind>`, or UNKNOWN. UNKNOWN when the user
        gives up, or gets EXPIRED after a lost answer, which may have been a success."""
        return (await self._repeat_all(send, 1, door))[0]

    async def _repeat_all(self, send: Send, count: int, door: str = "") -> list[str]:
        """The same of so many in one call: failed ones are sent again with the others."""
        done = set[int]()
        for tried in range(TRIES):
            try:
                answers = await send(self._port(door), self._call)
            except CheloniaError:
                await self._world.clock.sleep(PAUSE_MS)
                continue
            told = [_told(answer, tried) for answer in answers]
            done |= {number for number, each in enumerate(told) if each == DONE}
            if all(each or number in done for number, each in enumerate(told)):
                return [DONE if number in done else each for number, each in enumerate(told)]
            await self._world.clock.sleep(PAUSE_MS)
        return [DONE if number in done else UNKNOWN for number in range(count)]

    def _port(self, door: str = "") -> Any:
        return self._world.bartender_port(self._user.node, self._user.dn_call, door)

    # --- uploads ----------------------------------------------------------------------------------------------------

    async def _put(self, op: Op) -> str:
        """Send bytes first, as the SDK does. Nothing takes effect before the commit."""
        data = self._users.contents.bytes_of(op.content)
        place = parse_ln(self._group.ln(op.name))
        for _ in range(TRIES // 3):
            try:
                asked = (Placing(place, len(data), wanted=op.wanted),)
                [start] = await self._port("files").place(self._fresh(), asked)
                if isinstance(start, Failure) and not start.error().meaning.retryable:
                    return f"refused {start.kind.value}"
                if isinstance(start, Placed):
                    uploaded = await self._world.put(start.turl, data, self._user.node, self._call)
                    words = tuple(receipts.to_text(receipt) for receipt in uploaded.receipts)
                    write = (Write(place, Arrived(start.put, words)),)
                    return await self._repeat(lambda port, call, write=write: port.apply(call, write), "files")
            except CheloniaError:
                pass
            await self._world.clock.sleep(PAUSE_MS)
        return "refused gave-up"

    async def _put_file(self, op: Op) -> str:
        """Store a file the original's way: the name is reserved, and becomes a file when the bytes have come."""
        data = self._users.contents.bytes_of(op.content)
        states = {
            "size": str(len(data)), "checksum": hashlib.md5(data).hexdigest(), "checksumType": "md5",
            "neededReplicas": str(op.wanted),
        }  # fmt: skip
        metadata = tuple(Triple("states", prop, value) for prop, value in states.items())
        request = (PutFileRequest("0", self._group.ln(op.name), metadata, ("http",), replace=True),)
        try:
            [answer] = await self._port().put_file(self._call, request)
        except CheloniaError:
            return "refused gave-up"
        if answer.kind:
            return f"refused {answer.kind}"
        try:
            await self._world.put(answer.turl, data, self._user.node, self._call)
        except CheloniaError:
            return UNKNOWN
        return "done"

    def _fresh(self) -> Call:
        """A call that no service takes for a repeat of another."""
        return self._call.keyed(RequestKey(self._world.ids.uuid()))

    # --- looking ----------------------------------------------------------------------------------------------------

    async def _read(self, op: Op) -> str:
        """Read a file whole and check it, as the SDK does, from any of its replicas."""
        try:
            request = (GetFileRequest("0", self._group.ln(op.name), ("http",)),)
            [answer] = await self._port().get_file(self._call, request)
        except CheloniaError:
            return "refused gave-up"
        if answer.kind == Kind.NOT_SUPPORTED.value and self._users.laying is not None:
            try:
                data = await self._users.laying.read(self._user, parse_ln(self._group.ln(op.name)), self._call)
            except CheloniaError:
                return "refused gave-up"
            return f"read {self._users.contents.number_of(data)}"
        if answer.kind:
            return f"read {NOTHING}" if answer.kind == "not-found" else f"refused {answer.kind}"
        for turl in (answer.turl, *answer.turls):
            try:
                data = await self._world.get(turl, self._user.node, self._call)
            except CheloniaError:
                continue
            if hashlib.new(answer.checksum_type, data).hexdigest() == answer.checksum:
                return f"read {self._users.contents.number_of(data)}"
        return "refused gave-up"

    async def _stat(self, op: Op) -> str:
        try:
            [answer] = await self._port().stat(self._call, (NameRequest("0", self._group.ln(op.name)),))
        except CheloniaError:
            return "refused gave-up"
        if not answer.metadata:
            return f"refused {answer.kind or 'not-found'}"
        sections = from_triples(answer.metadata)
        if "error" in sections:
            return "refused gave-up"
        wanted = sections.get("states", {}).get("neededReplicas", "")
        return f"stat {wanted} {sections.get('metadata', {}).get('note', '')}"


def _removal(port: Any, op: Op) -> Any:
    return port.del_file if op.kind == "delete" else port.unlink


def _told(answer: Any, tried: int) -> str:
    """The outcome in an answer, "" when the request is to be repeated."""
    if isinstance(answer, Done) or not answer.kind:
        return DONE
    if TABLE[Kind(answer.kind)].retryable:
        return ""
    late = tried and Kind(answer.kind) is Kind.EXPIRED
    return UNKNOWN if late else f"refused {Kind(answer.kind).value}"


def colleagues(count: int) -> Iterator[tuple[int, int]]:
    """(user, colleague) pairs."""
    for number in range(count):
        yield number, number ^ 1
