"""`cheloniad`, whose `dev` clusters have the intervals of production.

The heartbeats of `dev` every 250 ms, its reports every 20 ms and its scrub twice a minute would cost more than the
measured work. Only repair, which benches wait for, stays quick: it begins at once.
"""

from __future__ import annotations

import sys

from chelonia.core.ids import Dn, ServiceId
from chelonia.core.values import replace
from chelonia.hosting import cheloniad
from chelonia.hosting.setup import dev
from chelonia.librarian.settings import LibrarianSettings
from chelonia.shepherd.settings import ShepherdSettings


def _shepherd(service_id: ServiceId, base_url: str) -> ShepherdSettings:
    found = ShepherdSettings(service_id=service_id, base_url=base_url, min_free_bytes=16 * 1024 * 1024)
    return replace(found, uncommitted_report_ms=1_000, unknown_retry_ms=1_000, copy_retry_ms=200)


def _librarian(root_owner: Dn) -> LibrarianSettings:
    found = replace(LibrarianSettings(), root_owner=root_owner, start_grace_ms=0, repair_delay_ms=0)
    return replace(found, claim_ms=15_000, backoff_ms=200, backoff_max_ms=3_000, outbox_interval_ms=1_000)


if __name__ == "__main__":
    setattr(dev, "dev_shepherd", _shepherd)  # noqa: B010
    LibrarianSettings.dev = staticmethod(_librarian)  # type: ignore[method-assign,assignment]
    sys.exit(cheloniad.main())
