"""Which bytes go straight between a client and a Shepherd (307), so that they do not pass this node.

Only large ones. Who shows a certificate and no token has a ticket bound to it, and a GET of his is redirected unless
his client is known not to follow. A ticket for anybody else is good for whoever has it, and his GET is redirected where
his client is known to follow, or says so (`?redirect`): browsers do not know the CAs of Shepherds. A PUT is redirected
where the client is known to follow, or says so, and waits for `100 Continue`: who does not follow a PUT has lost it.
`?proxy` keeps all here. A redirected PUT is committed by the Shepherd before its 201; so it goes only where nothing but
the absence of the name has to hold then. Its ticket is for one body of that size, under that name, once.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from chelonia.core.caller import Call
from chelonia.core.ids import ANONYMOUS
from chelonia.core.ports.files import Attributes, Looked, Placed, Placing, Reserving, Setting, Want
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, look
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.tickets import NAME

REDIRECTED_BYTES_MIN: Final = 256 * 1024
"""A file this large is worth a second connection."""
COPIER: Final = "Chelonia-copy"
"""Another cluster that fetches a file for a user: it does not show his proxy to a Shepherd."""
STAY_HERE: Final = (COPIER, "curl/", "davfs2/", "cadaver/", "litmus/", "Microsoft-WebDAV", "WebDAVFS/", "gvfs/")
"""Clients (`User-Agent`) that do not follow a redirect unless told to, or follow it without a certificate."""
FOLLOW: Final = ("ARC", "libdavix/", "davix/", "gfal2")
"""Clients that ask again where they are sent to, also with a PUT."""
_CONDITIONS: Final = ("If-Match", "If-Unmodified-Since", "If", "Content-Range")


async def download(parts: DoorParts, exchange: Exchange, known: Attributes) -> HttpResponse | None:
    """The 307 for a GET of a file of one blob, None where it is served here."""
    agent, query = exchange.header("User-Agent"), exchange.request.query
    follows = not agent.startswith(STAY_HERE) if _is_bound(exchange) else agent.startswith(FOLLOW)
    if known.size < REDIRECTED_BYTES_MIN or "proxy" in query or not (follows or "redirect" in query):
        return None
    there = await look(parts, _carried(exchange), exchange.place, Want.SOURCES)
    sources = there.sources  # none where it is of several blobs by now
    return sent_to(f"{sources[0]}&{NAME}={quote(exchange.place.name, safe='')}") if sources else None


async def upload(parts: DoorParts, exchange: Exchange, there: Looked | None, setting: Setting) -> HttpResponse | None:
    """The 307 for a PUT, None where its bytes are taken here."""
    request = exchange.request
    follows = exchange.header("User-Agent").startswith(FOLLOW) or "redirect" in request.query
    waits = "100-continue" in exchange.header("Expect").lower()
    stays = any(exchange.header(name) for name in _CONDITIONS) or (
        there is not None and bool(exchange.header("If-None-Match"))
    )
    if request.length < REDIRECTED_BYTES_MIN or "proxy" in request.query or not (follows and waits) or stays:
        return None
    copies = there.attributes.wanted if there and there.attributes.wanted else parts.copies
    reserving = Reserving(setting, exchange.when)
    asked = Placing(exchange.place, request.length, wanted=copies, reserving=reserving)
    (placed,) = await parts.files.place(_carried(exchange), (asked,))
    return sent_to(placed.turl) if isinstance(placed, Placed) else None


def sent_to(turl: str) -> HttpResponse:
    """The redirect to a Shepherd."""
    return HttpResponse(307, (("Location", turl), ("Cache-Control", "no-store")), b"", 0)


def _carried(exchange: Exchange) -> Call:
    """The caller's request, for tickets that are bound to him if they can be, and else good for whoever has them."""
    return exchange.call if _is_bound(exchange) else msgspec.structs.replace(exchange.call, carrier=ANONYMOUS)


def _is_bound(exchange: Exchange) -> bool:
    """Whether a ticket can be bound to who asks: by a certificate, which he shows to a Shepherd as well."""
    return exchange.call.dn != ANONYMOUS and not exchange.call.via
