"""Loads aiohttp without the system's CAs, which it reads twice at import and we never trust: a third of its start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["AbstractResolver", "ResponseHandler", "aiohttp"]


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


with _without_cas():
    import aiohttp
    from aiohttp.abc import AbstractResolver
    from aiohttp.client_proto import ResponseHandler
