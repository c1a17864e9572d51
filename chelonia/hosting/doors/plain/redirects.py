"""Redirects large bodies (307), so that they go straight between a client and a Shepherd:

- a GET with a certificate and no token, but not of browsers or clients known not to follow; the ticket is bound to it
- any other GET, if the client is known to follow, or says so (`?redirect`); its ticket is good for any bearer
- a PUT, as any other GET, if the client also waits for `100 Continue`: one that does not follow has lost its body

`?proxy` keeps all bodies here. The Shepherd commits a redirected PUT before its 201, so a PUT whose conditions are more
than the name's absence stays here. Its ticket is for one body of that size, under that name, once.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from chelonia.core.caller import Call
from chelonia.core.ids import ANONYMOUS
from chelonia.core.ports.files import Attributes, Looked, Placed, Placing, Reserving, Setting, Want
from chelonia.hosting.doors.plain.frame import is_browser
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, look
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.tickets import NAME

REDIRECTED_BYTES_MIN: Final = 256 * 1024
"""Smallest body that is worth a second connection."""
COPIER: Final = "Chelonia-copy"
"""Another cluster that fetches a file for a user: it does not show the user's proxy to a Shepherd."""
STAY_HERE: Final = (COPIER, "curl/", "davfs2/", "cadaver/", "litmus/", "Microsoft-WebDAV", "WebDAVFS/", "gvfs/")
"""Clients (`User-Agent`) that do not follow redirects by default, or follow them without a certificate."""
FOLLOW: Final = ("ARC", "libdavix/", "davix/", "gfal2")
"""Clients that follow redirects, also of a PUT. Browsers are not sent: they may not know a Shepherd's CA, or not reach
its port, and they ask for the certificate once more."""
_CONDITIONS: Final = ("If-Match", "If-Unmodified-Since", "If", "Content-Range")


async def download(parts: DoorParts, exchange: Exchange, attributes: Attributes) -> HttpResponse | None:
    """Return the 307 for a GET of a file of one blob, None where this node serves it."""
    agent, query = exchange.header("User-Agent"), exchange.request.query
    # A browser that saves a link (`download`) asks for no page, but says what it is as with all it fetches.
    stays = agent.startswith(STAY_HERE) or is_browser(exchange.request) or bool(exchange.header("Sec-Fetch-Site"))
    follows = not stays if is_bound(exchange) else agent.startswith(FOLLOW)
    if attributes.size < REDIRECTED_BYTES_MIN or "proxy" in query or not (follows or "redirect" in query):
        return None
    entry = await look(parts, _carried(exchange), exchange.place, Want.SOURCES)
    # Other bytes by now? The request's conditions were about these.
    sources = entry.sources if entry.attributes.etag == attributes.etag else ()
    return sent_to(f"{sources[0]}&{NAME}={quote(exchange.place.name, safe='')}") if sources else None


async def upload(parts: DoorParts, exchange: Exchange, entry: Looked | None, setting: Setting) -> HttpResponse | None:
    """Return the 307 for a PUT, None where this node takes its bytes."""
    request = exchange.request
    follows = exchange.header("User-Agent").startswith(FOLLOW) or "redirect" in request.query
    waits = "100-continue" in exchange.header("Expect").lower()
    stays = any(exchange.header(name) for name in _CONDITIONS) or (
        entry is not None and bool(exchange.header("If-None-Match"))
    )
    if request.length < REDIRECTED_BYTES_MIN or "proxy" in request.query or not (follows and waits) or stays:
        return None
    copies = entry.attributes.wanted if entry and entry.attributes.wanted else parts.copies
    reserving = Reserving(setting, exchange.when)
    placing = Placing(exchange.place, request.length, wanted=copies, reserving=reserving)
    (placed,) = await parts.files.place(_carried(exchange), (placing,))
    return sent_to(placed.turl) if isinstance(placed, Placed) else None


def sent_to(turl: str) -> HttpResponse:
    """Return the redirect to a Shepherd."""
    return HttpResponse(307, (("Location", turl), ("Cache-Control", "no-store")), b"", 0)


def _carried(exchange: Exchange) -> Call:
    """Return the call for tickets that are bound to the caller if they can be, else good for any bearer."""
    return exchange.call if is_bound(exchange) else msgspec.structs.replace(exchange.call, carrier=ANONYMOUS)


def is_bound(exchange: Exchange) -> bool:
    """Return whether a ticket can be bound to the caller's certificate, which a Shepherd will see as well."""
    return exchange.call.dn != ANONYMOUS and not exchange.call.via
