"""Pages of a listing, made of keys in order: sums by a delimiter, and two listings as one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from chelonia.wire.s3.answers import Asked, Item


def summed_up(items: Iterable[Item], asked: Asked, after: str) -> list[Item]:
    """Return the keys with the prefix behind `after`, those with the delimiter summed up as common prefixes.

    Args: `items`: in order of their keys.
    """
    page: list[Item] = []
    for item in items:
        if not item.key.startswith(asked.prefix):
            continue
        end = item.key.find(asked.delimiter, len(asked.prefix)) if asked.delimiter else -1
        entry = Item(item.key[: end + len(asked.delimiter)], common=True) if end >= 0 else item
        if entry.key.encode() > (page[-1].key if page else after).encode():
            page.append(entry)
    return page


def merged(first: Iterable[Item], second: Iterable[Item], limit: int) -> list[Item]:
    """Return at most `limit` items of two listings in byte order. For a key of both the first's item counts, but the
    second's if the key is a collection's."""
    found: dict[str, Item] = {}
    for item in (*first, *second):
        if item.key not in found or item.key.endswith("/"):
            found[item.key] = item
    return sorted(found.values(), key=lambda item: item.key.encode())[:limit]
