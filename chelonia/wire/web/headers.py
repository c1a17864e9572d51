"""The HTTP header fields of our own, for both ends of a connection. See `docs/formats/README.md`."""

from __future__ import annotations

from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
"""Id that correlates log lines end to end; answers repeat it."""
REQUEST_KEY_HEADER: Final = "Chelonia-Request-Key"
"""The request key, under which a change applies once."""
SERVICE_HEADER: Final = "Chelonia-Service"
"""The caller's service id, where one certificate serves several."""
POSITION_HEADER: Final = "Chelonia-Position"
"""On answers: their position in the history of the metadata (`wire.positions`)."""
READ_AFTER_HEADER: Final = "Chelonia-Read-After"
"""On requests: the position that the answer must have reached; counts for this request alone."""
STRONG_HEADER: Final = "Chelonia-Strong"
"""On requests, `1`: a strong read, whichever replica takes it."""
ERROR_HEADER: Final = "Chelonia-Error"
"""The kind of a failure, on answers other than SOAP."""
OFFSET_HEADER: Final = "Chelonia-Offset"
"""Bytes of an upload that are stored; -1 when it is complete."""
RECEIPTS_HEADER: Final = "Chelonia-Receipts"
"""The receipts of a completed PUT, joined with commas."""
GUID_HEADER: Final = "Chelonia-Guid"
"""The file that a completed PUT belongs to."""
