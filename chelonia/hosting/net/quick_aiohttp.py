"""Loads aiohttp when `aiohttp` is first asked for here: a third of what a command takes to start, and many need none.

It reads the system's CAs twice at import, which we never trust, and a third of its start: they are hidden from it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

__all__ = ["aiohttp"]


@contextmanager
def _without_cas() -> Iterator[None]:
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def __getattr__(name: str) -> Any:
    if name != "aiohttp":
        raise AttributeError(name)
    with _without_cas():
        globals()[name] = importlib.import_module(name)
    return globals()[name]
