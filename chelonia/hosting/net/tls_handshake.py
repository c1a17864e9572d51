"""The beginning and end of our connections, where the interpreter's own would mislead.

A listener whose handshake fails sends the reason to the peer, and logs a line. Event loops drop a connection whose
handshake raises, with the alert still in the outgoing buffer: the peer would see nothing but an end. So a failure first
looks like "more is needed", which makes the loop send the alert. The next call raises it: when the peer has answered by
closing, or at the loop's handshake timeout.

The end, on either side: OpenSSL keeps errors in one queue per thread. The interpreter takes any error there for one of
its last call. A fatal alert that arrives while a connection closes stays in the queue, as closing succeeds
nevertheless. The next connection to be read, or the next context to be made, would fail with it.
"""

from __future__ import annotations

import logging
import ssl

_log = logging.getLogger("chelonia.tls")


def shortened(tls: ssl.SSLObject) -> ssl.SSLObject:
    """Return the same connection, without three calls of the interpreter a message between event loop and OpenSSL."""
    within = getattr(tls, "_sslobj", None)
    if within is not None:
        vars(tls).update(read=within.read, write=within.write, pending=within.pending)
    return tls


class PartingObject(ssl.SSLObject):
    """A connection whose end leaves nothing behind (the hook is `SSLContext.sslobject_class`)."""

    def unwrap(self) -> None:
        """Close; then begin a connection that is never used, which empties the queue of errors."""
        super().unwrap()
        self.context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), self.server_side, self.server_hostname)


class AlertingObject(PartingObject):
    """A listener's connection."""

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Shake hands; on failure let the alert out before raising."""
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            detail = getattr(error, "verify_message", "") or error.reason or "unknown"
            _log.info('event=handshake-refused reason="%s"', detail)
            self._failure = error
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert goes out first") from error
