"""`cheloniad`, whose `dev` clusters have the intervals of production: those of people who watch, heartbeats four times a
second and a scrub of everything twice a minute, cost as much as the work that is measured.

Only what a bench waits for stays quick: repair begins at once.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from chelonia.core.ids import Dn, ServiceId
from chelonia.hosting import cheloniad
from chelonia.hosting.setup import dev
from chelonia.librarian.settings import LibrarianSettings
from chelonia.shepherd.settings import ShepherdSettings


def _shepherd(service_id: ServiceId, base_url: str) -> ShepherdSettings:
    return ShepherdSettings(service_id=service_id, base_url=base_url, min_free_bytes=16 * 1024 * 1024)


def _librarian(root_owner: Dn) -> LibrarianSettings:
    return replace(LibrarianSettings(), root_owner=root_owner, start_grace_ms=0, repair_delay_ms=0)


if __name__ == "__main__":
    dev.dev_shepherd = _shepherd
    LibrarianSettings.dev = staticmethod(_librarian)  # type: ignore[method-assign,assignment]
    sys.exit(cheloniad.main())
