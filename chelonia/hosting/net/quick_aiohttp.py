"""aiohttp, loaded in half the time: it reads the system's CAs twice at import, which we never trust.

For a daemon at its start, before it has threads or children: they would miss the CAs, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

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


with _without_cas():
    import aiohttp
