"""Simulated users of an S3 bucket whose versions are kept, suspended, and kept again.

They put, with conditions too, remove one by one and many at once, erase versions, and bring old ones back by copies.
They upload in parts; others complete or abort uploads that they have not begun. Each sends requests to a front end of
his own, which may die in the middle of one. They share one name, as an upload is its opener's. `key_history.KeyHistory`
and `upload_history.UploadHistory` check their answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from chelonia.core.errors import CheloniaError
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3.versions import ENABLED, NULL, SUSPENDED
from tests.sim.front_ends import FrontEnd, tag, whole
from tests.sim.key_history import (
    ABSENT,
    DONE,
    ERASE,
    NOTHING,
    REFUSED,
    REMOVE,
    WRITE,
    Content,
    Deed,
    KeyHistory,
    Shown,
    Switches,
)
from tests.sim.model import Violation
from tests.sim.upload_history import Attempt, Order, UploadHistory
from tests.sim.users import User, Users
from tests.sim.world import World

BUCKET = "/objects"
KEYS = ("a/b", "c//d")
KINDS = {"put": 22, "remove": 9, "erase": 12, "restore": 9, "read": 9, "see": 7, "list": 5, "bulk": 5, "upload": 16,
         "rival": 12, "switch": 3}  # fmt: skip
"""Users' operations, and how often each comes."""
CONDITIONAL = 0.25
REPEATS = 0.7
"""How often a completion of unknown outcome is sent again; REPEATED: one that was answered."""
REPEATED = 0.25
BULK_MAX = 3

Fields = Mapping[str, str]


class Objects:
    """The bucket and its users."""

    def __init__(self, world: World, users: Users, rng: random.Random) -> None:
        self._world, self._users, self._rng = world, users, rng
        self._now: Callable[[], int] = itertools.count(1).__next__
        self._switches = Switches()
        self._keys = [KeyHistory(name, self._switches, self._now) for name in KEYS]
        self._uploads: list[UploadHistory] = []
        self._sizes: dict[str, int] = {}
        self._known: set[Content] = set()
        self._settling: dict[asyncio.Task[None], None] = {}
        self._checked = True

    async def prepare(self, user: User) -> None:
        """Make the bucket. A third of them never keep versions, as Amazon requires a pause when a bucket begins to."""
        front = FrontEnd(self._world, user, self._rng)
        assert (await front.ask(0, "PUT", BUCKET)).status == 200
        for key in self._keys if self._rng.random() < 0.5 else ():
            await self._put(front, key)
        await self._settled()
        state = self._rng.choice(("", ENABLED, SUSPENDED))
        if state:
            assert (await front.ask(0, "PUT", f"{BUCKET}?versioning", _versioning(state))).status == 200
            self._switches.deeds = [(Deed(0, WRITE, self._now(), ended=self._now(), told=DONE), state)]
        self._switches.fixed = not state

    async def work(self, user: User, rounds: int) -> None:
        front = FrontEnd(self._world, User(0, user.node), self._rng)
        for _ in range(rounds):
            await self._world.clock.sleep(self._rng.randint(0, 3_000))
            key = self._rng.choice(self._keys)
            [kind] = self._rng.choices(list(KINDS), weights=list(KINDS.values()))
            await getattr(self, f"_{kind}")(front, key)

    # --- what users do ----------------------------------------------------------------------------------------------

    async def _put(self, front: FrontEnd, key: KeyHistory) -> None:
        op, content, unless = self._op(), self._new("object"), self._condition(key)
        deed = key.begin(op, WRITE, [content], unless=unless)
        fields = {"x-amz-meta-op": str(op), **_conditions(unless)}
        answer = await self._asked(front, deed, "PUT", _place(key), content.data, fields)
        if answer is not None:
            self._told(key, deed, answer, dict(answer.headers).get("ETag", ""))

    async def _restore(self, front: FrontEnd, key: KeyHistory) -> None:
        known = [each.version for each in key.made() if each.kind == WRITE]
        if not known:
            return await self._put(front, key)
        op, version = self._op(), self._rng.choice(known)
        deed = key.copy(op, version)
        copied = {"x-amz-copy-source": f"{_place(key)}?versionId={version}", "x-amz-metadata-directive": "REPLACE"}
        answer = await self._asked(front, deed, "PUT", _place(key), b"", {**copied, "x-amz-meta-op": str(op)})
        if answer is not None and answer.status != 200:
            deed.told = REFUSED
            return self._judge(key.read, NOTHING if answer.status == 404 else REMOVE, "", deed.span, version)
        if answer is not None:
            etag = tag((await whole(answer)).decode(), "ETag")
            self._told(key, deed, answer, etag)
            self._judge(key.read, WRITE, _bare(etag), deed.span, version)

    async def _remove(self, front: FrontEnd, key: KeyHistory) -> None:
        condition = self._condition(key)
        deed = key.begin(self._op(), REMOVE, unless="" if condition == ABSENT else condition)
        answer = await self._asked(front, deed, "DELETE", _place(key), b"", _conditions(deed.unless))
        if answer is not None:
            self._told(key, deed, answer)

    async def _erase(self, front: FrontEnd, key: KeyHistory) -> None:
        deed = self._erasing(key)
        answer = await self._asked(front, deed, "DELETE", f"{_place(key)}?versionId={deed.version}")
        if answer is not None:
            self._judge(_require, answer.status == 204, f"{deed} is told {answer.status}")
            deed.told = DONE

    async def _bulk(self, front: FrontEnd, key: KeyHistory) -> None:
        """Of this key and the others: removals and erasures, each of its own."""
        deeds = dict[tuple[str, str], tuple[KeyHistory, Deed]]()
        op = self._op()
        for _ in range(self._rng.randint(1, BULK_MAX)):
            deed = self._erasing(key, op) if self._rng.random() < 0.5 else key.begin(op, REMOVE)
            deeds.setdefault((key.name, deed.version), (key, deed))
            if deeds[key.name, deed.version][1] is not deed:
                key.deeds.remove(deed)
            key = self._rng.choice(self._keys)
        body = "".join(_doomed(name, version) for name, version in deeds)
        each = [deed for _, deed in deeds.values()]
        answer = await self._asked(front, each, "POST", f"{BUCKET}?delete", f"<Delete>{body}</Delete>".encode())
        told = (await whole(answer)).decode() if answer is not None else ""
        for text in re.findall("<Deleted>(.*?)</Deleted>", told):
            history, deed = deeds[tag(text, "Key"), tag(text, "VersionId", "")]
            if deed.kind == ERASE:
                deed.told = DONE
            else:
                self._judge(history.done, deed, tag(text, "DeleteMarkerVersionId", ""))

    async def _switch(self, front: FrontEnd, key: KeyHistory) -> None:
        del key
        if self._switches.fixed:
            return
        state = self._rng.choice((ENABLED, SUSPENDED))
        deed = Deed(self._op(), WRITE, self._now())
        self._switches.deeds.append((deed, state))
        answer = await self._asked(front, deed, "PUT", f"{BUCKET}?versioning", _versioning(state))
        if answer is not None:
            deed.told = DONE if answer.status == 200 else deed.told

    async def _read(self, front: FrontEnd, key: KeyHistory, version: str = "") -> None:
        began, op = self._now(), self._op()
        target = f"{_place(key)}?versionId={version}" if version else _place(key)
        answer = await front.answer(op, "GET", target)
        if answer is None or answer.status >= 500:
            return
        try:
            data = await whole(answer)
        except CheloniaError:
            return
        self._note(op, f"{key.name} read {version} -> {answer.status} {data[:20]!r}")
        self._seen(key, version, answer, data, (began, self._now()))

    def _seen(self, key: KeyHistory, version: str, answer: HttpResponse, data: bytes, span: tuple[int, int]) -> None:
        if not self._checked:
            return
        if answer.status != 200:
            kind = {404: NOTHING, 405: REMOVE}[answer.status]
            return self._judge(key.read, kind, "", span, version)
        headers = dict(answer.headers)
        etag, told = _bare(headers["ETag"]), headers.get("x-amz-version-id", version)
        self._judge(_require, Content(data, etag) in self._known, f"{data[:40]!r} was read with the etag {etag}")
        self._judge(key.read, WRITE, etag, span, version)
        if told:
            self._judge(key.met, int(headers["x-amz-meta-op"]), told, span)

    async def _see(self, front: FrontEnd, key: KeyHistory) -> None:
        known = [each.version for each in key.made()]
        await self._read(front, key, self._rng.choice(known) if known else NULL)

    async def _list(self, front: FrontEnd, key: KeyHistory) -> None:
        began = self._now()
        answer = await front.answer(self._op(), "GET", f"{BUCKET}?versions&prefix={key.name}")
        if answer is not None and answer.status == 200 and self._checked:
            shown = self._shown(key, (await whole(answer)).decode())
            self._judge(key.listed, shown, (began, self._now()))

    def _shown(self, key: KeyHistory, text: str) -> list[Shown]:
        shown = []
        for kind, item in re.findall(r"<(Version|DeleteMarker)>(.*?)</\1>", text):
            etag, size = _bare(tag(item, "ETag", "")), tag(item, "Size", "")
            made = WRITE if kind == "Version" else REMOVE
            self._judge(_require, made == REMOVE or self._sizes.get(etag) == int(size), f"{etag} has {size} bytes")
            self._judge(_require, tag(item, "Key") == key.name, f"{tag(item, 'Key')} is no key")
            shown.append(Shown(tag(item, "VersionId"), made, etag, tag(item, "IsLatest") == "true"))
        return shown

    # --- uploads in parts -------------------------------------------------------------------------------------------

    async def _upload(self, front: FrontEnd, key: KeyHistory) -> None:
        """Open an upload, send parts, and complete it, unless another user does."""
        op = self._op()
        answer = await front.answer(op, "POST", f"{_place(key)}?uploads", b"", {"x-amz-meta-op": str(op)})
        if answer is None or answer.status != 200:
            return
        upload = UploadHistory(key, op, tag((await whole(answer)).decode(), "UploadId"), self._now)
        self._uploads.append(upload)
        for number in range(1, self._rng.randint(1, 3) + 1):
            await self._part(front, upload, number)
            await self._world.clock.sleep(self._rng.randint(0, 500))
        if self._rng.random() < 0.8:
            await self._complete(front, upload, upload.order, self._condition(key))

    async def _part(self, front: FrontEnd, upload: UploadHistory, number: int) -> None:
        data = self._new("part").data
        attempt, what = upload.put(number, data), f"partNumber={number}&uploadId={upload.upload}"
        answer = await self._asked(front, (upload, attempt), "PUT", f"{_place(upload.key)}?{what}", data)
        if answer is None:
            return
        if answer.status == 404:
            return self._judge(upload.none_such, attempt)
        etag = _bare(dict(answer.headers).get("ETag", ""))
        self._judge(_require, answer.status == 200 and etag == attempt.order[0][1], f"a part is told {answer}")
        attempt.told, upload.parts[number] = DONE, data

    async def _complete(self, front: FrontEnd, upload: UploadHistory, order: Order, unless: str = "") -> None:
        """Complete an upload; also again, with the same parts."""
        for _ in range(3):
            if not order:
                return
            content = upload.content(order)
            self._know(content)
            attempt = upload.complete(order, unless)
            what = (upload, attempt), "POST", f"{_place(upload.key)}?uploadId={upload.upload}"
            answer = await self._asked(front, *what, _completion(order), _conditions(unless))
            if answer is not None:
                self._completed(upload, attempt, answer, (await whole(answer)).decode())
            if self._rng.random() > (REPEATS if answer is None else REPEATED):
                return

    def _completed(self, upload: UploadHistory, attempt: Attempt, answer: HttpResponse, text: str) -> None:
        version = dict(answer.headers).get("x-amz-version-id", "")
        match answer.status, tag(text, "Code", ""):
            case 200, _:
                self._judge(upload.completed, attempt, version, _bare(tag(text, "ETag")))
            case 412, _:
                self._judge(upload.not_so, attempt)
            case 404, "NoSuchKey":
                self._judge(upload.not_so, attempt)
            case 404, "NoSuchUpload":
                self._judge(upload.none_such, attempt)
            case 400, "InvalidPart":
                self._judge(upload.other_part, attempt)
            case told:
                self._judge(_require, False, f"a completion is told {told}")

    async def _rival(self, front: FrontEnd, key: KeyHistory) -> None:
        """Meddle with an upload, as a rule a recent one."""
        if not self._uploads:
            return await self._upload(front, key)
        upload = self._rng.choice(self._uploads[-2:])
        match self._rng.choice(("complete", "complete", "fewer", "part", "abort", "abort")):
            case "complete":
                await self._complete(front, upload, upload.order)
            case "fewer":
                await self._complete(front, upload, upload.order[:1])
            case "part":
                await self._part(front, upload, self._rng.randint(1, 3))
            case _:
                await self._abort(front, upload)

    async def _abort(self, front: FrontEnd, upload: UploadHistory) -> None:
        attempt, target = upload.abort(), f"{_place(upload.key)}?uploadId={upload.upload}"
        answer = await self._asked(front, (upload, attempt), "DELETE", target)
        if answer is not None:
            self._judge(upload.aborted if answer.status == 204 else upload.none_such, attempt)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _asked(
        self, front: FrontEnd, of: Any, method: str, target: str, body: bytes = b"", fields: Fields | None = None
    ) -> HttpResponse | None:
        """Send a request and return its answer, None where its outcome is unknown. The unknown ends when no part of the
        request is under way. A removal of something absent leaves no memo, so a late second copy of the request may
        remove something."""
        op = self._op() if isinstance(of, tuple) else (of[0] if isinstance(of, list) else of).id
        answer = await front.answer(op, method, target, body, fields)
        self._note(op, f"{method} {target} {fields or ''} -> {answer and (answer.status, answer.headers)}")
        is_known = answer is not None and answer.status != 409 and answer.status < 500
        stays = answer is not None and answer.status < 300 and method == "PUT"
        if answer is not None and is_known and (stays or not self._world.network.flying(f"op{op}")):
            self._ends(of)
            return answer
        settling = asyncio.ensure_future(self._settle(op, of))
        self._settling[settling] = None
        if self._rng.random() < 0.5:
            await settling
        return None

    async def _settle(self, op: int, of: Any) -> None:
        while self._world.network.flying(f"op{op}"):
            await self._world.clock.sleep(200)
        self._ends(of)

    def _ends(self, of: Any) -> None:
        if isinstance(of, tuple):
            upload, attempt = of
            return upload.over(attempt)
        for deed in of if isinstance(of, list) else [of]:
            deed.ended = self._now()

    def _told(self, key: KeyHistory, deed: Deed, answer: HttpResponse, etag: str = "") -> None:
        """Note the answer to a write or a removal."""
        if answer.status in (200, 204):
            version = dict(answer.headers).get("x-amz-version-id", "")
            return self._judge(key.done, deed, version, _bare(etag))
        self._judge(_require, answer.status in (404, 412), f"{deed} is told {answer.status}")
        self._judge(key.not_so, deed)

    def _judge(self, rule: Callable[..., None], *told: Any) -> None:
        if self._checked:
            rule(*told)

    def _note(self, op: int, what: str) -> None:
        self._world.note(f"OBJECTS #{op} {what}")

    def _op(self) -> int:
        self._users.asked += 1
        return self._users.asked

    def _new(self, what: str) -> Content:
        data = f"{what} {self._op()} ".encode() * self._rng.randint(1, 9)
        return self._know(Content(data, hashlib.md5(data, usedforsecurity=False).hexdigest()))

    def _know(self, content: Content) -> Content:
        self._known.add(content)
        self._sizes[content.etag] = len(content.data)
        return content

    def _condition(self, key: KeyHistory) -> str:
        """Draw a write's condition: none as a rule, else that nothing is there, or that a certain content is."""
        if self._rng.random() >= CONDITIONAL:
            return ""
        known = [each.contents[0].etag for each in key.made() if each.kind == WRITE]
        return self._rng.choice((ABSENT, *known[-2:]))

    def _erasing(self, key: KeyHistory, op: int = 0) -> Deed:
        known = [each.version for each in key.made()]
        return key.begin(op or self._op(), ERASE, version=self._rng.choice(known) if known else NULL)

    # --- at the end -------------------------------------------------------------------------------------------------

    async def rest(self, user: User) -> None:
        """Wait until nothing is under way any more, and abort the open uploads. Raises: Violation."""
        await self._settled()
        front = FrontEnd(self._world, User(0, user.node), random.Random(0))
        listed = await self._sure(front, "GET", f"{BUCKET}?uploads")
        for upload in self._uploads:
            self._judge(lambda upload=upload: upload.rested(is_open=upload.upload in listed))
        for text in re.findall("<Upload>(.*?)</Upload>", listed):
            await self._sure(front, "DELETE", f"{BUCKET}/{tag(text, 'Key')}?uploadId={tag(text, 'UploadId')}")

    async def _settled(self) -> None:
        for task in list(self._settling):
            await task
        self._settling.clear()

    async def _sure(self, front: FrontEnd, method: str, target: str) -> str:
        """The body of an answer, repeated until one comes."""
        while (answer := await front.ask(self._op(), method, target)).status >= 500:
            await self._world.clock.sleep(1_000)
        return (await whole(answer)).decode()

    def unjudged(self) -> None:
        """Check no answer from now on."""
        self._checked = False

    async def check(self, user: User) -> None:
        """Check that earlier answers explain the present state, and that all versions have their bytes. Raises:
        Violation."""
        front = FrontEnd(self._world, User(0, user.node), random.Random(0))
        for key in self._keys if self._checked else ():
            began = self._now()
            shown = self._shown(key, await self._sure(front, "GET", f"{BUCKET}?versions&prefix={key.name}"))
            self._note(0, f"{key.name} has {shown}")
            key.listed(shown, (began, self._now()))
            for version in ("", *(each.version for each in shown)):
                target = f"{_place(key)}?versionId={version}" if version else _place(key)
                answer, began = await front.ask(self._op(), "GET", target), self._now()
                self._seen(key, version, answer, await whole(answer), (began, self._now()))
            key.rested()


def _place(key: KeyHistory) -> str:
    return f"{BUCKET}/{key.name}"


def _bare(etag: str) -> str:
    return etag.replace("&quot;", "").strip('"')


def _conditions(unless: str) -> Fields:
    return {} if not unless else {"If-None-Match": "*"} if unless == ABSENT else {"If-Match": f'"{unless}"'}


def _versioning(state: str) -> bytes:
    return f"<VersioningConfiguration><Status>{state}</Status></VersioningConfiguration>".encode()


def _doomed(name: str, version: str) -> str:
    named = f"<VersionId>{version}</VersionId>" if version else ""
    return f"<Object><Key>{name}</Key>{named}</Object>"


def _completion(order: Order) -> bytes:
    parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in order)
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)
