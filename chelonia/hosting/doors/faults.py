"""Logs the failed calls of doors: a line in the log, and for refusals one in the audit log."""

from __future__ import annotations

import logging

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.logging_setup import AUDIT_LOGGER
from chelonia.hosting.net.http_messages import Peer

log = logging.getLogger("chelonia.faults")
audit = logging.getLogger(AUDIT_LOGGER)

_REFUSALS = (Kind.DENIED, Kind.UNTRUSTED, Kind.WRONG_CLUSTER, Kind.BAD_TICKET)


def note_fault(service: str, operation: str, request_id: str, peer: Peer, error: CheloniaError) -> None:
    """Log that `operation` of `service` was answered with `error`."""
    fields = (service, operation, request_id, peer.dn, str(error))
    log.info("fault service=%s op=%s request=%s who=%r error=%r", *fields)
    if error.kind in _REFUSALS:
        line = "refused service=%s op=%s request=%s who=%r address=%s error=%r"
        audit.info(line, *fields[:4], peer.address, str(error))
