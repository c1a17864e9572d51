"""The common parts of the plain door's pages: their look, the reader's place, and their Content-Security-Policy.

It never holds a script of its own, and writes names as text everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
from http.client import responses
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.core.names import LogicalName
from chelonia.hosting.doors.plain.parts import Exchange, is_here, split_url
from chelonia.hosting.doors.tokens.bearer import query_of, token_of
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse
from chelonia.wire.web.dav import href_of

HTML: Final = "text/html; charset=utf-8"
TABLES: Final = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
nav{font-size:1.2rem;overflow-wrap:anywhere}nav a{text-decoration:none}
table{border-collapse:collapse;width:100%;margin-top:1rem}
th,td{text-align:left;padding:.35rem .75rem;border-bottom:1px solid #8884}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
footer{margin-top:2rem;opacity:.75;font-size:.85rem}
.aloud{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
"""


def sha256_source(text: str) -> str:
    """Return the Content-Security-Policy's source for a style or script within the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(style: str, more: str = "", forms: str = "'none'") -> str:
    """Return the Content-Security-Policy of a page: its style, `more` that it may load, where its `forms` may go."""
    loads = f"default-src 'none'; style-src {sha256_source(style)}; {more}"
    return f"{loads}base-uri 'none'; form-action {forms}; frame-ancestors 'none'"


def headers(rules: str, kind: str = HTML, cache: str = "no-store") -> tuple[tuple[str, str], ...]:
    """Return the header fields of a page with these rules."""
    return (
        ("Content-Type", kind), ("Cache-Control", cache), ("Referrer-Policy", "same-origin"),
        ("X-Content-Type-Options", "nosniff"), ("Content-Security-Policy", rules),
    )  # fmt: skip


def answer(exchange: Exchange, fields: tuple[tuple[str, str], ...], text: str) -> HttpResponse:
    """Answer with a whole page, or for HEAD without its body."""
    body = text.encode()
    return HttpResponse(200, fields, b"" if exchange.request.method == "HEAD" else body, len(body))


def head(title: str, style: str, more: str = "") -> str:
    """Return all before the body; `title` is text, `more` goes into the head."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)} - Chelonia</title>'
        f'<meta name="viewport" content="width=device-width">{more}<style>{style}</style></head><body>'
    )


def top_of(exchange: Exchange) -> int:
    """Return how many parts of the path lie above the entry that a link shares."""
    return len(exchange.call.scopes[0].path) if exchange.call.scopes else 0


def crumbs(exchange: Exchange, place: LogicalName) -> str:
    """Return the path of a collection, each part a link as far up as the reader may go."""
    query, top = html.escape(query_of(exchange.request)), top_of(exchange)
    path = "".join(
        f'/<a href="{href_of(place.parts[: n + 1], collection=True)}{query}">{html.escape(part)}</a>'
        if n + 1 >= top
        else f"/{html.escape(part)}"
        for n, part in enumerate(place.parts)
    )
    home = "Chelonia" if top else f'<a href="/{query}">Chelonia</a>'
    return f'<nav aria-label="path">{home} {path}</nav>'


def require_own(exchange: Exchange) -> None:
    """Require that, by the browser's word, a form is of a page of this site. Raises: DENIED."""
    site, origin = exchange.header("Sec-Fetch-Site"), exchange.header("Origin")
    same_host = not origin or is_here(split_url(origin), exchange.header("Host"))
    if not same_host or site not in ("", "same-origin") or not (site or origin):
        cause = "the form is of another site; open the page of the collection here, and press the button there"
        raise CheloniaError(Kind.DENIED, "form", str(exchange.place), cause)


def is_browser(request: HttpRequest) -> bool:
    """Return whether a client wants a page."""
    return "text/html" in request.headers.get("Accept", "")


def refused(request: HttpRequest, plain: HttpResponse, dn: Dn) -> HttpResponse:
    """Return an error as a page for a browser: its message, and what the reader can do."""
    if not is_browser(request) or request.method == "HEAD":
        return plain
    assert isinstance(plain.body, bytes), "an error is a line"
    line, phrase = html.escape(plain.body.decode().strip()), responses.get(plain.status, "Cancelled")
    by_token, above = token_of(request), html.escape(query_of(request)) if plain.status != 401 else ""
    if plain.status == 401:
        cure = "Copy the link whole, or ask whoever gave it to you for a new one."
    elif plain.status == 403 and dn == ANONYMOUS and not by_token:
        cure = "This server was shown no certificate: import yours into the browser, start it anew and choose it when "
        cure += "asked, or ask the owner for a share link."
    elif plain.status >= 500:
        cure = "Try it again in a moment."
    else:
        cure = f'<a href="{"../" if request.path.endswith("/") else "./"}{above}">The collection above</a>'
    kept = tuple(field for field in plain.headers if field[0] != "Content-Type")
    body = (
        f"{head(phrase, TABLES)}<main><h1>{plain.status} {phrase}</h1><p>{line}</p><p>{cure}</p></main></body></html>\n"
    )
    return HttpResponse(plain.status, (*headers(policy(TABLES)), *kept), body.encode(), close=plain.close)
