"""`GET /jobs`: the background jobs of this node's services, for administrators and Bartenders, as JSON.

A process has one list, as jobs belong to nodes, and a node may host no service that could return them. Bartenders show
it to administrators (`doors.plain.cluster_page`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.jobs import NodeJobs
from chelonia.hosting.doors.calls import call_of
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, error_answer, text_answer


async def serve_jobs(registry: RoleRegistry, look: Callable[[], NodeJobs], request: HttpRequest) -> HttpResponse:
    """Answer with what `look` returns."""
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
