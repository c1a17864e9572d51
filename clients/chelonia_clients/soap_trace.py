"""Shows SOAP messages as they are sent and received (`chelonia -x`), and nothing else: no ticket is in them but TURLs.

Stands in for the HTTP client under the SOAP stubs only, so bytes of files never pass through it.
"""

from __future__ import annotations

from collections.abc import Callable

from chelonia.hosting.net.http_client import HttpClient, Received, Sending

Teller = Callable[[str], None]
"""Takes one line or message for a person."""


class SoapTrace:
    """The part of `HttpClient` that SOAP stubs use, telling what passes."""

    def __init__(self, http: HttpClient, tell: Teller) -> None:
        self._http = http
        self._tell = tell

    async def request(self, sending: Sending) -> Received:
        """Send, and tell both messages. Raises: as `HttpClient.request`."""
        if isinstance(sending.body, bytes):
            self._say(f"> {sending.method} {sending.url}", sending.body)
        received = await self._http.request(sending)
        self._say(f"< {received.status}", received.body)
        return received

    def _say(self, head: str, body: bytes) -> None:
        for line in (head, *body.decode("utf-8", "replace").splitlines()):
            self._tell(line)
