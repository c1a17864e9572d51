"""A file as a page: a picture, or the beginning of a text. Nothing in it runs.

It shows any text as text, and loads a picture as a picture, so that scripts within do not run. The page may load
nothing else.
"""

from __future__ import annotations

import html
import mimetypes
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from chelonia.core.contents.extents import ByteRange
from chelonia.core.ports.files import Attributes, Looked, Want
from chelonia.hosting.doors.plain import frame
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, carrying, look, reader
from chelonia.hosting.doors.tokens.bearer import query_of
from chelonia.hosting.net.http_messages import HttpResponse

BINARY: Final = "application/octet-stream"
VIEW: Final = "view"
"""`/lab/plot.png?view`."""
TEXT_BYTES: Final = 64 * 1024
"""Bytes of a text that are shown."""
PICTURE_BYTES_MAX: Final = 32 * 2**20
"""Largest picture that is shown: browsers lay pictures out whole."""
PICTURES: Final = frozenset(f"image/{kind}" for kind in ("avif", "bmp", "gif", "jpeg", "png", "svg+xml", "webp"))
TEXTS: Final = frozenset(f"application/{kind}" for kind in ("json", "toml", "x-sh", "xml", "yaml"))
SUFFIXES: Final = (".cfg", ".ini", ".log", ".md", ".toml", ".xrsl", ".yaml", ".yml")
"""Suffixes of texts that no type is registered for."""
STYLE: Final = f"{frame.TABLES}img{{max-width:100%}}pre{{overflow-x:auto;padding:1rem;border:1px solid #8884}}"
RULES: Final = frame.policy(STYLE, "img-src 'self'; ")


def type_of(name: str) -> str:
    """Return the media type of a file of this name."""
    _, dot, suffix = name.rpartition(".")
    return _type_of(suffix) if dot else BINARY


@lru_cache(maxsize=1024)  # guessing costs as much as all other header fields
def _type_of(suffix: str) -> str:
    guessed, encoding = mimetypes.guess_type(f"name.{suffix}")
    return guessed if guessed and not encoding else BINARY


def may_show(name: str) -> bool:
    """Return whether a file's name promises a picture or a text."""
    kind = type_of(name)
    return kind in PICTURES or kind in TEXTS or kind.startswith("text/") or name.lower().endswith(SUFFIXES)


async def page(parts: DoorParts, exchange: Exchange, attributes: Attributes) -> HttpResponse:
    """Answer GET and HEAD of `?view`. Raises: as reading the file fails."""
    name, query = exchange.place.name, query_of(exchange.request)
    href = "./" + quote(name, safe="")
    if type_of(name) in PICTURES and attributes.size <= PICTURE_BYTES_MAX:
        source = html.escape(f"{href}?proxy{query.replace('?', '&', 1)}")
        content = f'<p><img src="{source}" alt="{html.escape(name)}"></p>'
    else:
        content = await _text(parts, exchange)
    down = f'<p><a href="{html.escape(href + query)}" download>Download</a> ({attributes.size:,} bytes)</p>'
    return frame.answer(
        exchange,
        frame.headers(RULES),
        f"{frame.head(str(exchange.place), STYLE)}{frame.crumbs(exchange, exchange.place.parent)}"
        f"<main><h1>{html.escape(name)}</h1>{down}{content}</main></body></html>\n",
    )


async def _text(parts: DoorParts, exchange: Exchange) -> str:
    entry = await look(parts, carrying(parts, exchange.call), exchange.place, Want.SOURCES | Want.EXTENTS | Want.BYTES)
    size = entry.attributes.size
    begin = await _beginning(parts, exchange, entry)
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:  # the last character may be cut
        text = begin[: error.start].decode() if len(begin) - error.start < 4 and size > len(begin) else "\0"
    if "\0" in text:
        return "<p>It is no picture and no text, so there is no preview.</p>"
    cut = f"<p>This is its beginning: {len(begin):,} of {size:,} bytes.</p>" if size > len(begin) else ""
    return f"{cut}<pre>{html.escape(text)}</pre>"


async def _beginning(parts: DoorParts, exchange: Exchange, entry: Looked) -> bytes:
    span = ByteRange(0, min(entry.attributes.size, TEXT_BYTES))
    body = reader(parts, exchange.call, exchange.place).body(entry, span)
    return body if isinstance(body, bytes) else b"".join([chunk async for chunk in body])
