"""Chooses the door of a listener by the path, and answers /healthz, /readyz and, where served, /metrics.

A client without a certificate learns whether the node is ready, but no reasons and no metrics: both name other nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ANONYMOUS
from chelonia.hosting.logging_setup import ACCESS_LOGGER
from chelonia.hosting.metrics import CONTENT_TYPE, Metrics
from chelonia.hosting.net.http_messages import AccessNote, Door, HttpRequest, HttpResponse, text_answer

log = logging.getLogger(ACCESS_LOGGER)

Check = Callable[[], Awaitable[None]]
"""Returns when a part can serve. Raises: CheloniaError with the reason why it cannot."""


class Readiness:
    """Whether the node can serve: the checks of all hosted parts."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._asking: asyncio.Task[dict[str, str]] | None = None
        self.held = "it is starting"
        """The reason why the node does not serve yet, or no more; empty while it serves."""

    def add(self, part: str, check: Check) -> None:
        self._checks[part] = check

    async def problems(self) -> dict[str, str]:
        """Return why the node is not ready, by part; empty when it is. Callers share one round of checks."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        found = await asyncio.shield(self._asking)
        return {"node": self.held, **found} if self.held else found

    async def _ask(self) -> dict[str, str]:
        found = {}
        for part, check in self._checks.items():
            try:
                await check()
            except CheloniaError as error:
                found[part] = str(error)
        return found


class Routes:
    """The door of one listener: the first part of the path chooses, upper or lower case alike."""

    def __init__(self, doors: Mapping[str, Door], readiness: Readiness, metrics: Metrics | None) -> None:
        self._doors = doors
        self._readiness = readiness
        self._metrics = metrics

    async def serve(self, request: HttpRequest) -> HttpResponse:
        first = request.path.strip("/").partition("/")[0].lower()
        door = self._doors.get(first)
        if door is not None:
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
        if not log.isEnabledFor(logging.INFO):
            return
        note = answer.accessed or AccessNote(request.peer.dn, request.method)
        log.info(
            "%s %r status=%d body=%d sent=%d ms=%d request=%s who=%r from=%s agent=%r operation=%s%s",
            request.method, request.path, answer.status, request.length, sent, took_ms, request.request_id, note.who,
            request.peer.address, request.headers.get("User-Agent", ""), note.operation,
            f" error={note.error}" if note.error else "",
        )  # fmt: skip

    return observe
