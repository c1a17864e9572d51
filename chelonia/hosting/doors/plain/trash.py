"""The trash of a collection as a page: entries that the reader deleted, each with a button that brings it back.

It works without scripts, and refuses forms of other sites. The Bartender decides whose an entry is. Links and tokens
see no trash: they narrow their giver's rights on entries that exist.
"""

from __future__ import annotations

import html
from typing import Final
from urllib.parse import parse_qsl, quote

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Ms
from chelonia.core.ports.bartender import (
    Bartender,
    DeletedEntry,
    ListDeletedOutcome,
    ListRequest,
    Outcome,
    UndeleteRequest,
)
from chelonia.core.timing.clock import stamp
from chelonia.hosting.doors.plain import frame
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange
from chelonia.hosting.net.http_messages import HttpResponse, Whole, read_whole
from chelonia.wire.web.dav import href_of

TRASH: Final = "trash"
"""`/lab/?trash`: a query, because every path is a name."""
FORM: Final = "application/x-www-form-urlencoded"
FORM_BYTES_MAX: Final = 16 * 1024
"""A GUID, and a name of at most 255 bytes, each byte as three."""
STYLE: Final = f"{frame.TABLES}form{{margin:0}}"


def may_see(call: Call) -> bool:
    """Return whether a caller can have deleted anything."""
    return not call.via and not call.scopes and call.dn != ANONYMOUS


async def show(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer GET and HEAD. Raises: DENIED to links, tokens and ANONYMOUS; as `list_deleted` fails."""
    trash = _trash(parts, exchange)
    after = exchange.request.query.get("after", "")
    (page,) = await trash.list_deleted(exchange.call, (ListRequest("0", str(exchange.place), after),))
    _check(page, exchange)
    rows = "".join(_row(entry) for entry in page.entries)
    further = quote(page.after, safe="")
    nothing = (
        "Nothing of yours on this page." if after or further else "Nothing of yours that was deleted from here is kept."
    )
    none = "" if rows else f"<p>{nothing}</p>"  # one page reads only so many of all users'
    more = f'<p><a href="?{TRASH}&amp;after={further}">more</a></p>' if further else ""
    columns = "".join(f'<th scope="col">{name}</th>' for name in ("Name", "Size", "Deleted", "Kept until", ""))
    return frame.answer(
        exchange,
        frame.headers(frame.policy(STYLE, forms="'self'")),
        f"{frame.head(f'Deleted from {exchange.place}', STYLE)}{frame.crumbs(exchange, exchange.place)}"
        f"<main><h1>Deleted from here</h1>{none}<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"
        f"{more}</main><footer>{html.escape(exchange.call.dn)}</footer></body></html>\n",
    )


async def bring_back(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer POST of the form: 303 to the collection. Raises: DENIED, BAD_REQUEST; as `undelete` fails."""
    trash = _trash(parts, exchange)
    frame.require_own(exchange)
    body = await read_whole(exchange.request, Whole(FORM_BYTES_MAX))
    form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    guid, name = form.get("guid", ""), form.get("name", "")
    if not guid or not name or "/" in name or "/" in guid:
        raise CheloniaError(Kind.BAD_REQUEST, "undelete", cause="the form has a guid and a name")
    target = str(exchange.place).rstrip("/") + "/" + name
    (done,) = await trash.undelete(exchange.call, (UndeleteRequest("0", guid, target),))
    _check(done, exchange)
    to = href_of(exchange.place.parts, collection=True)
    return HttpResponse(303, (("Location", to), ("Cache-Control", "no-store")), b"", 0)


def _trash(parts: DoorParts, exchange: Exchange) -> Bartender:
    if not may_see(exchange.call):
        cause = "what somebody deleted is shown to a certificate of his; a link or a token shows only what is there"
        raise CheloniaError(Kind.DENIED, TRASH, str(exchange.place), cause)
    return parts.bartender


def _check(outcome: ListDeletedOutcome | Outcome, exchange: Exchange) -> None:
    if outcome.kind:
        raise CheloniaError(Kind(outcome.kind), TRASH, str(exchange.place), outcome.cause)


def _row(entry: DeletedEntry) -> str:
    name, guid = html.escape(entry.name), html.escape(entry.guid)
    is_file = entry.type == "file"
    size = f"{entry.size:,}".replace(",", "\u202f") if is_file else ""
    form = (
        f'<form method="post" action="?{TRASH}"><input type="hidden" name="guid" value="{guid}">'
        f'<input type="hidden" name="name" value="{name}">'
        f'<button aria-label="Bring back {name}">Bring back</button></form>'
    )
    columns = (size, stamp(Ms(entry.deleted_ms)), stamp(Ms(entry.until_ms)))
    cells = "".join(f'<td class="n">{each}</td>' for each in columns)
    return f"<tr><td>{name}{'' if is_file else '/'}</td>{cells}<td>{form}</td></tr>\n"
