"""Full names of entries that are known by GUID, and all names that fit a pattern."""

from __future__ import annotations

from collections.abc import Iterable

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia_clients.choosing import below_fits, is_pattern, path_fits
from chelonia_clients.client import Client, Metadata


class Paths:
    """Finds the names of entries, and remembers those of collections."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known = {"0": ""}

    async def of(self, guid: str) -> str:
        """Return a full name of a collection without a slash at its end, "" for the root; `<GUID>` if not visible."""
        names: list[str] = []
        at, seen = guid, list[str]()
        while at not in self._known:
            seen.append(at)
            try:
                pairs = sorted((await self._client.stat(at)).get("parents", {}))
            except CheloniaError:
                pairs = []
            if not pairs or len(seen) > bounds.LN_DEPTH_MAX:
                self._known[at] = at
                break
            above, _, name = pairs[0].partition("/")
            names.append(name)
            at = above
        path = self._known[at]
        for each, name in zip(reversed(seen[: len(names)]), reversed(names), strict=True):
            path = f"{path}/{name}"
            self._known[each] = path
        return path

    async def all_of(self, metadata: Metadata) -> list[str]:
        """Return all full names of an entry, by its metadata."""
        pairs = [pair.partition("/") for pair in sorted(metadata.get("parents", {}))]
        return [f"{await self.of(parent)}/{name}" for parent, _, name in pairs]


async def expand(client: Client, texts: Iterable[str]) -> list[str]:
    """Return Logical Names in order, with the fitting names in place of patterns.

    A pattern that is the very name of an entry means that entry. Raises: NOT_FOUND where no name fits.
    """
    found: list[str] = []
    for text in texts:
        if not is_pattern(text) or await client.exists(text):
            found.append(text)
            continue
        fitting = await _fitting(client, text)
        if not fitting:
            raise CheloniaError(Kind.NOT_FOUND, "pattern", text, "no name fits this pattern")
        found += fitting
    return found


async def _fitting(client: Client, text: str) -> list[str]:
    ln = parse_ln(text)
    fixed = next(index for index, part in enumerate(ln.parts) if is_pattern(part))
    top = str(type(ln)(ln.start, ln.parts[:fixed]))
    pattern = ln.parts[fixed:]
    return [f"{top.rstrip('/')}/{name}" for name in await _walk(client, top, (), pattern)]


async def _walk(client: Client, top: str, path: tuple[str, ...], pattern: tuple[str, ...]) -> list[str]:
    """Names below `top` that fit, listing only collections below which a name may."""
    found: list[str] = []
    if "**" in pattern:
        return [e.name async for e in client.names(top, recursive=True) if path_fits(e.name.split("/"), pattern)]
    where = "/".join((top.rstrip("/"), *path)) or "/"
    async for entry in client.names(where):
        inner = (*path, entry.name)
        if path_fits(inner, pattern):
            found.append("/".join(inner))
        elif entry.type == "collection" and below_fits(inner, pattern):
            found += await _walk(client, top, inner, pattern)
    return found
