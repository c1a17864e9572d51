"""Chooses the door of a listener by the path, and answers /healthz, /readyz, /jobs and, where served, /metrics.

A client without a certificate learns whether the node is ready, but no reasons and no metrics: both name other nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.timing.jobs import NodeJobs
from chelonia.hosting.doors.calls import call_of
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.logging_setup import ACCESS_LOGGER
from chelonia.hosting.metrics import CONTENT_TYPE, Metrics
from chelonia.hosting.net.http_messages import AccessNote, Door, HttpRequest, HttpResponse, error_answer, text_answer

access_log = logging.getLogger(ACCESS_LOGGER)
log = logging.getLogger("chelonia.readiness")

ANSWER_S: Final = 0.8
"""Time that parts have to say whether they can serve: whoever asks the node has its answer within a second."""
HANGS_S: Final = 5.0
"""Time after which a part that has not answered counts as one that cannot serve; until then, what it said last."""

Check = Callable[[], Awaitable[None]]
"""Returns when a part can serve. Raises: CheloniaError with the reason why it cannot."""


class _AskedPart:
    """A part and what it said last. One call of its check runs at a time: one that hangs is not repeated."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._call: asyncio.Task[None] | None = None
        self._began_s = 0.0
        self._said: str | None = None
        self.is_late = False
        """Whether it had not answered in time when it was last asked."""

    async def problem(self) -> str:
        """Return why it cannot serve, within `ANSWER_S`; empty when it can."""
        loop = asyncio.get_running_loop()
        if self._call is None or self._call.done():
            self._call, self._began_s = loop.create_task(self._ask()), loop.time()
        await asyncio.wait((self._call,), timeout=ANSWER_S)
        took_s, self.is_late = loop.time() - self._began_s, not self._call.done()
        if not self.is_late:
            self._call.result()
        elif self._said is None or took_s >= HANGS_S:
            return f"it has not answered for {took_s:.0f} s: what it waits for hangs"
        return self._said or ""

    async def _ask(self) -> None:
        try:
            await self._check()
            self._said = ""
        except CheloniaError as error:
            self._said = str(error)
        except Exception as error:  # the others' words and gauges are wanted most just then
            before, self._said = self._said, str(error) or repr(error)
            if self._said != before:
                log.exception("a part cannot say whether it can serve")


class Readiness:
    """Whether the node can serve: the checks of all hosted parts. No part that hangs or breaks holds up an answer."""

    def __init__(self) -> None:
        self._parts: dict[str, _AskedPart] = {}
        self._asking: asyncio.Task[dict[str, str]] | None = None
        self.held = "it is starting"
        """The reason why the node does not serve yet, or no more; empty while it serves."""

    def add(self, part: str, check: Check) -> None:
        """Add a part. Its check also brings its gauges up to date."""
        self._parts[part] = _AskedPart(check)

    async def problems(self) -> dict[str, str]:
        """Return why the node is not ready, by part; empty when it is. Callers share one round of checks."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        found = await asyncio.shield(self._asking)
        return {"node": self.held, **found} if self.held else found

    def gauge(self, metrics: Metrics) -> Check:
        """Return the reader of a gauge that says of each part whether it can serve, and has just said so."""

        async def read() -> None:
            problems = await self.problems()
            late = {name for name, part in self._parts.items() if part.is_late}
            ready = {name: name not in problems and name not in late for name in ("node", *self._parts)}
            metrics.gauges("ready", "Whether a part can serve; if not, its gauges may be old.", "part", ready)

        return read

    async def _ask(self) -> dict[str, str]:
        answers = await asyncio.gather(*(part.problem() for part in self._parts.values()))
        return {part: problem for part, problem in zip(self._parts, answers, strict=True) if problem}


class Routes:
    """The door of one listener: the first part of the path chooses, upper or lower case alike."""

    def __init__(self, doors: Mapping[str, Door], readiness: Readiness, metrics: Metrics | None) -> None:
        self._doors = doors
        self._readiness = readiness
        self._metrics = metrics

    async def serve(self, request: HttpRequest) -> HttpResponse:
        first = request.path.strip("/").partition("/")[0].lower()
        if (door := self._doors.get(first)) is not None:
            return await door(request)
        if request.method not in ("GET", "HEAD"):
            return self._nothing()
        match first:
            case "healthz":
                return text_answer(200, "ok\n")
            case "readyz":
                problems = await self._readiness.problems()
                reasons = dict.fromkeys(problems, "not ready") if request.peer.dn == ANONYMOUS else problems
                lines = "".join(f"{part}: {reason}\n" for part, reason in reasons.items())
                return text_answer(503 if problems else 200, lines or "ready\n")
            case "metrics" if self._metrics is not None and request.peer.dn == ANONYMOUS:
                return text_answer(403, "metrics are for those who show a certificate\n")
            case "metrics" if self._metrics is not None:
                return HttpResponse(200, (("Content-Type", CONTENT_TYPE),), await self._metrics.expose())
            case _:
                return self._nothing()

    def _nothing(self) -> HttpResponse:
        here = " ".join(f"/{name}" for name in self._doors)
        return text_answer(404, f"nothing is served here; this listener has: {here} /healthz /readyz\n")


def observer(metrics: Metrics) -> Callable[[HttpRequest, HttpResponse, int, int], None]:
    """Return a function that counts answers and logs accesses; neither has the query, which may hold a ticket."""

    def observe(request: HttpRequest, answer: HttpResponse, sent: int, took_ms: int) -> None:
        if sent >= 0:
            metrics.answered(answer.status)
        if not access_log.isEnabledFor(logging.INFO):
            return
        note = answer.accessed or AccessNote(request.peer.dn, request.method)
        access_log.info(
            "%s %r status=%d body=%d sent=%d ms=%d request=%s who=%r from=%s agent=%r operation=%s%s",
            request.method, request.path, answer.status, request.length, sent, took_ms, request.request_id, note.who,
            request.peer.address, request.headers.get("User-Agent", ""), note.operation,
            f" error={note.error}" if note.error else "",
        )  # fmt: skip

    return observe


async def serve_jobs(registry: RoleRegistry, look: Callable[[], NodeJobs], request: HttpRequest) -> HttpResponse:
    """Answer `GET /jobs` with what `look` returns, as JSON, for administrators and Bartenders.

    A process has one list, as jobs belong to nodes, and a node may host no service that could return them. Bartenders
    show it to administrators (`doors.plain.cluster_page`).
    """
    if request.method != "GET":
        return text_answer(405, "jobs are listed: GET\n", (("Allow", "GET"),))
    try:
        call = await call_of(request, registry)
    except CheloniaError as error:
        return error_answer(error)
    if not (call.has(Role.ADMINISTRATOR) or call.has(Role.BARTENDER)):
        cause = f"{call.dn} is no administrator of this cluster (trust.administrators)"
        return error_answer(CheloniaError(Kind.DENIED, "jobs", cause=cause))
    return HttpResponse(200, (("Content-Type", "application/json"),), msgspec.json.encode(look()))
