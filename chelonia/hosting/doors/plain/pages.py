"""A collection as a page for browsers, as bare links for programs, or as lines for clients that want no HTML.

It escapes names. A page may load nothing but its own style and script (their hashes stand in its
Content-Security-Policy). It works without the script, which adds dropping, several files at a time, progress and
replacing.
"""

from __future__ import annotations

import html
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from chelonia.core.bounds import PAGE_ENTRIES_MAX
from chelonia.core.caller import Call
from chelonia.core.ids import ANONYMOUS
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.ports.files import Listing, Named
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import READING, Share
from chelonia.core.timing.clock import stamp
from chelonia.hosting.doors.plain import preview, trash
from chelonia.hosting.doors.plain.cluster_page import CLUSTER, may_see
from chelonia.hosting.doors.plain.frame import (
    HTML,
    TABLES,
    answer,
    crumbs,
    head,
    headers,
    is_browser,
    policy,
    require_own,
    sha256_source,
    top_of,
)
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, list_pages
from chelonia.hosting.doors.tokens.bearer import query_of
from chelonia.hosting.net.http_messages import TEXT, HttpResponse
from chelonia.wire.web.conditions import NS_PER_S
from chelonia.wire.web.dav import href_of

ROWS_MAX: Final = 2_000
"""Entries of one page for browsers, which lay out more only slowly. Programs get all."""
AFTER: Final = "after"
"""`/lab/?after=name`: the page that follows a name."""
LINK: Final = "link"
"""`/lab/?link`: the target of the button that makes a link."""
DAY_MS: Final = 24 * 3_600 * 1000
"""Lifetime of such a link."""
STYLE: Final = f"""{TABLES}
td a{{white-space:pre-wrap;overflow-wrap:anywhere}}
tr:hover,tr:focus-within{{background:#8882}}
#drop{{margin-top:1.5rem;padding:1rem;border:2px dashed #8888;border-radius:.5rem}}
#drop.over{{border-color:#06c}}progress{{width:100%}}
"""
SCRIPT: Final = """
'use strict';
const drop=document.getElementById('drop'),pick=document.getElementById('pick'),told=document.getElementById('told');
drop.querySelector('button').hidden=true;pick.multiple=true;
function send(file,over){return new Promise(done=>{
 const row=document.createElement('p'),bar=document.createElement('progress');
 bar.setAttribute('aria-label',file.name);row.textContent=file.name+' ';row.append(bar);told.append(row);
 const ask=new XMLHttpRequest();
 ask.upload.onprogress=e=>{bar.max=e.total;bar.value=e.loaded};
 ask.onload=()=>{
  if(ask.status==412&&!over&&confirm(file.name+' is there already. Replace it?')){
   row.remove();done(send(file,true));return}
  row.textContent=file.name+(ask.status<300?' stored':': '+ask.responseText);done(ask.status<300)};
 ask.onerror=()=>{row.textContent=file.name+': the connection broke; nothing was stored';done(false)};
 ask.open('PUT',location.pathname.replace(/\\/?$/,'/')+encodeURIComponent(file.name)+location.search);
 if(!over)ask.setRequestHeader('If-None-Match','*');
 ask.send(file)})}
async function all(files){let good=true;for(const file of files)good=await send(file)&&good;if(good)location.reload()}
drop.onsubmit=e=>e.preventDefault();pick.onchange=()=>all(pick.files);
document.ondragover=e=>{e.preventDefault();drop.classList.add('over')};
document.ondragleave=()=>drop.classList.remove('over');
document.ondrop=e=>{e.preventDefault();drop.classList.remove('over');all(e.dataTransfer.files)};
"""
POLICY: Final = policy(STYLE, f"script-src {sha256_source(SCRIPT)}; connect-src 'self'; ", "'self'")


async def collection(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer a GET of a collection. Its URL ends in a slash, as its links are relative to it."""
    request = exchange.request
    if trash.TRASH in request.query:
        return await trash.show(parts, exchange)
    if not request.path.endswith("/"):
        to = href_of(exchange.place.parts, collection=True) + query_of(request)
        return HttpResponse(301, (("Location", to),), b"", 0)
    lines, varies = _takes_lines(exchange), ("Vary", "Accept, User-Agent")
    fields = (*headers(POLICY, TEXT if lines else HTML, "private, no-cache"), varies)
    if lines:
        return HttpResponse(200, fields, _lines(parts, exchange))
    return HttpResponse(200, fields, (_page if is_browser(request) else _links)(parts, exchange))


def _takes_lines(exchange: Exchange) -> bool:
    """Return whether a client gets bare names: it accepts text, or is curl in a terminal."""
    if is_browser(exchange.request):
        return False
    return "text/plain" in exchange.header("Accept") or exchange.header("User-Agent").startswith("curl/")


async def _links(parts: DoorParts, exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield a page of links to all entries and to nothing else: programs follow all they find."""
    query = html.escape(query_of(exchange.request))
    yield f"{head(str(exchange.place), STYLE)}<table><tbody>\n".encode()
    async for page in list_pages(parts, exchange.call, Listing(exchange.place)):
        yield "".join(_row(entry, query, view=False) for entry in page.entries).encode()
    yield b"</tbody></table></body></html>\n"


async def _lines(parts: DoorParts, exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield one name a line; a collection's has a slash."""
    async for page in list_pages(parts, exchange.call, Listing(exchange.place)):
        yield "".join(f"{_label(entry)}\n" for entry in page.entries).encode()


async def _page(parts: DoorParts, exchange: Exchange) -> AsyncIterator[bytes]:
    query, title = html.escape(query_of(exchange.request)), html.escape(str(exchange.place))
    yield (
        f"{head(str(exchange.place), STYLE)}{crumbs(exchange, exchange.place)}"
        f'<main><h1 class="aloud">{title}</h1>'
        f'<table aria-label="Entries of {title}"><thead><tr><th scope="col">Name</th>'
        '<th scope="col" class="n">Size</th><th scope="col" class="n">Modified (UTC)</th><td></td></tr>'
        "</thead><tbody>\n"
    ).encode()
    if len(exchange.place.parts) > top_of(exchange):
        up = f'<a href="../{query}" aria-label="The collection above">..</a>'
        yield f"<tr><td>{up}</td><td></td><td></td><td></td></tr>\n".encode()
    begin, further, count = exchange.request.query.get(AFTER, ""), "", 0
    ask = Listing(exchange.place, begin, min(ROWS_MAX, PAGE_ENTRIES_MAX))
    async for page in list_pages(parts, exchange.call, ask):
        yield "".join(_row(entry, query, view=True) for entry in page.entries).encode()
        further, count = page.after, count + len(page.entries)
        if count >= ROWS_MAX:
            break
    yield f"</tbody></table>{_leaf(query, begin, further)}{_foot(parts, exchange)}</body></html>\n".encode()


def _leaf(query: str, begin: str, further: str) -> str:
    """Return links to the other pages of a large collection."""
    joined = f"{query}&amp;" if query else "?"
    first = f'<a href="./{query}">the first</a> ' if begin else ""
    more = f'<a rel="next" href="{joined}{AFTER}={quote(further, safe="")}">the next entries</a>' if further else ""
    return f'<nav aria-label="pages">{first}{more}</nav>' if first or more else ""


def _label(entry: Named) -> str:
    return entry.name + ("/" if entry.attributes.type == TYPE_COLLECTION else "")


def _foot(parts: DoorParts, exchange: Exchange) -> str:
    """Return the reader's name, further links, and the form for new files."""
    call = exchange.call
    reader = f"shared with you ({call.via})" if call.via else call.dn
    cluster_link = f' \u00b7 <a href="/?{CLUSTER}">the cluster</a>' if may_see(call) else ""
    trash_link = f' \u00b7 <a href="?{trash.TRASH}">deleted from here</a>' if trash.may_see(call) else ""
    footer = f"<footer>{html.escape(reader)}{trash_link}{cluster_link}</footer>"
    if call.scopes and not any(scope.covers(Action.ADD_ENTRY, exchange.place) for scope in call.scopes):
        return f"</main>{footer}"
    return (
        '<form id="drop" method="post" enctype="multipart/form-data"><label>Add files, or drop them on this page: '
        '<input type="file" name="file" id="pick" required></label> <button>Add it</button>'
        f'<div id="told" role="status"></div></form>{_share(call)}</main>{footer}<script>{SCRIPT}</script>'
    )


async def link(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer the button of a collection's page with a page that has a link to it, good for a day.

    Raises: DENIED to a form of another site; as `share`.
    """
    require_own(exchange)
    shared = await parts.files.share(exchange.call, Share(exchange.place, READING, DAY_MS, capped=True))
    to = html.escape(shared.link)
    text = (
        f"{head(f'A link to {exchange.place}', TABLES)}{crumbs(exchange, exchange.place)}"
        f"<main><h1>A link to {html.escape(str(exchange.place))}</h1><p>Whoever has it may read what is there until "
        f'{stamp(shared.expires_ms)}, as long as you may:</p><nav><a href="{to}">{to}</a></nav></main></body></html>\n'
    )
    return answer(exchange, headers(policy(TABLES)), text)


def _share(call: Call) -> str:
    """Return the button for a link to this collection, if the caller may have one."""
    if call.via or call.dn == ANONYMOUS:
        return ""
    button = "<button>Make a link by which anybody can read this collection for a day</button>"
    return f'<form id="share" method="post" action="?{LINK}">{button}</form>'


def _row(entry: Named, query: str, *, view: bool) -> str:
    attributes, is_collection = entry.attributes, entry.attributes.type == TYPE_COLLECTION
    href = href_of((entry.name,), collection=is_collection).removeprefix("/")
    moment = datetime.fromtimestamp(attributes.modified_ns // NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M")
    size = "" if is_collection else f"{attributes.size:,}".replace(",", "\u202f")
    # No `./`: programs compare with patterns. A name looks like no scheme, as its colons are encoded.
    link = f'<a href="{html.escape(href)}{query}"><bdi>{html.escape(_label(entry))}</bdi></a>'
    name, asks = html.escape(entry.name), f"{preview.VIEW}{query.replace('?', '&amp;', 1)}"
    look = f'<a href="{html.escape(href)}?{asks}" aria-label="View {name}">view</a>'
    look = look if view and not is_collection and preview.may_show(entry.name) else ""
    return f'<tr><td>{link}</td><td class="n">{size}</td><td class="n">{moment}</td><td>{look}</td></tr>\n'
