"""How our connections begin and end, where the interpreter's own would mislead somebody.

A listener's side of a handshake that fails: the peer is told why, and the log has a line. Event loops drop a connection
whose handshake raises, with the alert still in the outgoing buffer: the peer would see nothing but an end. So a failure
first looks like "more is needed", which makes the loop send what is pending; it is raised at the next call, when the
peer has answered the alert by closing, or by the loop's handshake timeout.

Either side's end: OpenSSL keeps what went wrong in one queue per thread, and the interpreter takes what it finds there
for the fault of the call it just made. A fatal alert that arrives while a connection is closed stays in it, as closing
succeeds nevertheless: the next connection to be read, or the next context to be made, would fail with it.
"""

from __future__ import annotations

import logging
import ssl

_log = logging.getLogger("chelonia.tls")


def shortened(tls: ssl.SSLObject) -> ssl.SSLObject:
    """The same connection, without the interpreter's own calls between an event loop and OpenSSL: three a message."""
    within = getattr(tls, "_sslobj", None)
    if within is not None:
        vars(tls).update(read=within.read, write=within.write, pending=within.pending)
    return tls


class PartingObject(ssl.SSLObject):
    """A connection whose end leaves nothing behind (the hook is `SSLContext.sslobject_class`)."""

    def unwrap(self) -> None:
        """Close; then begin a connection that comes to nothing: to begin one empties the queue of errors."""
        super().unwrap()
        self.context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), self.server_side, self.server_hostname)


class AlertingObject(PartingObject):
    """A listener's."""

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
