"""A listener's side of a handshake that fails: the peer is told why, and the log has a line.

Event loops drop a connection whose handshake raises, with the alert still in the outgoing buffer: the peer would see
nothing but an end. So a failure first looks like "more is needed", which makes the loop send what is pending; it is
raised at the next call, when the peer has answered the alert by closing, or by the loop's handshake timeout.
"""

from __future__ import annotations

import logging
import ssl

_log = logging.getLogger("chelonia.tls")


class TellingObject(ssl.SSLObject):
    """An SSLObject for listeners (the hook is `SSLContext.sslobject_class`)."""

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
