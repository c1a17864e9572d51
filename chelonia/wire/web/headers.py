"""The HTTP header fields that are ours, for both ends of a connection. Told of in `docs/formats/README.md`."""

from __future__ import annotations

from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
"""Correlates log lines end to end; answers repeat it."""
REQUEST_KEY_HEADER: Final = "Chelonia-Request-Key"
"""The key under which a change applies once."""
SERVICE_HEADER: Final = "Chelonia-Service"
"""Which of its registered ids a caller speaks for, where one certificate serves several."""
POSITION_HEADER: Final = "Chelonia-Position"
"""On answers: where in the history of the metadata they stand (`wire.positions`)."""
READ_AFTER_HEADER: Final = "Chelonia-Read-After"
"""On requests: the position after which they are to be answered; counts for this request alone."""
STRONG_HEADER: Final = "Chelonia-Strong"
"""On requests, `1`: read the newest that is acknowledged, whichever replica is asked."""
ERROR_HEADER: Final = "Chelonia-Error"
"""The kind of a failure, on answers that are no SOAP."""
OFFSET_HEADER: Final = "Chelonia-Offset"
"""How many bytes of an upload are kept; -1 when it is complete."""
RECEIPTS_HEADER: Final = "Chelonia-Receipts"
"""The receipts of a completed PUT, joined with commas."""
GUID_HEADER: Final = "Chelonia-Guid"
"""The file that a completed PUT belongs to."""
