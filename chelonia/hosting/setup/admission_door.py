"""The two ends of an admission: the door that `cheloniad admit` opens for one host, and the knock of `cheloniad join`.

The door shows a certificate made for it alone; the newcomer compares it with the token before it sends anything. A
client without the secret learns nothing. The door serves a few connections at a time, each with a deadline.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import write_file
from chelonia.hosting.net.certificates import KeyKind, chain_pem, key_pem, make_key
from chelonia.hosting.setup.admission import (
    LINE_BYTES_MAX,
    WRONG_TOKENS_MAX,
    AdmissionRequest,
    AdmissionStatus,
    AdmissionToken,
    Offer,
    knows_secret,
    line_of,
    parse_answer,
    parse_request,
    pin_of,
)

log = logging.getLogger("chelonia.admission")

CONNECTIONS_MAX: Final = 8
"""Connections served at once; further ones are closed."""
REQUEST_S: Final = 10.0
"""Time for a handshake, and for a request after it."""
CONNECT_S: Final = 10.0
FAREWELL_S: Final = 1.0
"""Time for the last answer to leave, when the door closes."""
RECEIVED_S: Final = 30.0
"""Time for a newcomer to store its offer and acknowledge it."""

Decide = Callable[[AdmissionRequest, str], Awaitable[Offer]]
"""Judges a request whose secret is right, by it and the address it came from. Raises: CheloniaError: refused."""


class Door:
    """A door for one host. `run` returns when that was admitted. Make it inside the event loop."""

    def __init__(self, secret: bytes, decide: Decide) -> None:
        self._secret, self._decide = secret, decide
        self._context, self.pin = _one_time_context()
        self._wrong = 0
        self._inside: set[asyncio.Task[Any]] = set()
        self._deciding = asyncio.Lock()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, host: str, port: int, deadline_s: float, opened: Callable[[], None]) -> None:
        """Listen until a newcomer has all it needs. Raises: EXPIRED, DENIED, UNTRUSTED (wrong tokens), UNAVAILABLE."""
        try:
            server = await asyncio.start_server(
                self._handle, host, port, ssl=self._context, limit=LINE_BYTES_MAX, ssl_handshake_timeout=REQUEST_S
            )
        except OSError as error:
            cause = f"cannot wait there ({error.strerror or error}): does another `cheloniad admit` run on this host?"
            raise CheloniaError(Kind.UNAVAILABLE, "admit", f"{host}:{port}", cause) from error
        try:
            opened()
            async with asyncio.timeout(deadline_s):
                await self._done
        except TimeoutError as error:
            cause = "nobody was admitted in time, and the token is void: run `cheloniad admit` again"
            raise CheloniaError(Kind.EXPIRED, "admit", cause=cause) from error
        finally:
            server.close()
            if self._inside:
                await asyncio.wait(self._inside, timeout=FAREWELL_S)
            for task in self._inside:
                task.cancel()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, from request to close."""
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._inside.add(task)
        try:
            if len(self._inside) <= CONNECTIONS_MAX:
                await self._serve(reader, writer)
            writer.close()
            async with asyncio.timeout(REQUEST_S):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            log.info("a connection ended early error=%r", error)
        except asyncio.CancelledError:
            log.info("a connection was cut off at the end")
        finally:
            self._inside.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        origin = str((writer.get_extra_info("peername") or ("?",))[0])
        try:
            async with asyncio.timeout(REQUEST_S):
                request = parse_request(await reader.readuntil(b"\n"))
        except asyncio.LimitOverrunError:
            return await self._send(writer, AdmissionStatus("refused", f"a request has at most {LINE_BYTES_MAX} bytes"))
        except CheloniaError as error:
            return await self._send(writer, AdmissionStatus("refused", error.cause))
        if not knows_secret(request, self._secret):
            return await self._turn_away(writer, origin)
        await self._send(writer, AdmissionStatus("waiting"))
        async with self._deciding:
            await self._admit(request, origin, reader, writer)

    async def _admit(
        self, request: AdmissionRequest, origin: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer a request with the decision. A refusal, unless by the administrator, leaves the door open."""
        try:
            offer = await self._decide(request, origin)
        except CheloniaError as error:
            await self._send(writer, AdmissionStatus("refused", error.cause))
            if error.kind is Kind.DENIED:
                self._end(error)
            return
        await self._send(writer, AdmissionStatus("admitted", offer=offer))
        async with asyncio.timeout(RECEIVED_S):
            await reader.readuntil(b"\n")
        self._end(None)

    async def _turn_away(self, writer: asyncio.StreamWriter, origin: str) -> None:
        self._wrong += 1
        log.warning("wrong token from=%s tries=%d", origin, self._wrong)
        await self._send(
            writer, AdmissionStatus("refused", "the token is not that of this `cheloniad admit`: use the newest")
        )
        if self._wrong >= WRONG_TOKENS_MAX:
            cause = f"{self._wrong} wrong tokens, the last from {origin}: somebody is trying; the token is void"
            self._end(CheloniaError(Kind.UNTRUSTED, "admit", cause=cause))

    async def _send(self, writer: asyncio.StreamWriter, answer: AdmissionStatus) -> None:
        async with asyncio.timeout(REQUEST_S):
            writer.write(line_of(answer))
            await writer.drain()

    def _end(self, error: CheloniaError | None) -> None:
        if not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)


class Knock:
    """A newcomer's connection to the door at `host:port`, once that has proved to be the token's."""

    def __init__(self, host: str, port: int, token: AdmissionToken) -> None:
        """Connect. Raises: NETWORK, UNTRUSTED with the cure."""
        self._peer = f"{host}:{port}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # No CA could vouch for a certificate that was made a minute ago: the token does, before anything is sent.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            plain = socket.create_connection((host, port), CONNECT_S)
            self._socket = context.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            cause = (
                f"{self._peer} does not answer as it should ({error.strerror or error}): does `cheloniad admit` still "
                "run there, is the address right, does a firewall let it through?"
            )
            raise CheloniaError(Kind.NETWORK, "join", self._peer, cause) from error
        cert = self._socket.getpeercert(binary_form=True)
        if not cert or not hmac.compare_digest(pin_of(cert), token.pin):
            self._socket.close()
            cause = (
                "what answers there is not the `cheloniad admit` that made this token: it has ended (a token is good "
                "for one run), or somebody is in between; nothing was sent"
            )
            raise CheloniaError(Kind.UNTRUSTED, "join", self._peer, cause)
        self._file = self._socket.makefile("rb")

    def ask(self, request: AdmissionRequest, deadline_s: float, waiting: Callable[[], None]) -> Offer:
        """Send the request and wait for the administrator. Raises: DENIED (refused), NETWORK, BAD_REQUEST."""
        self._socket.settimeout(deadline_s)
        self._socket.sendall(line_of(request))
        while True:
            answer = parse_answer(self._line())
            if answer.state == "waiting":
                waiting()
            elif answer.state == "admitted" and answer.offer is not None:
                return answer.offer
            else:
                raise CheloniaError(Kind.DENIED, "join", self._peer, f"refused: {answer.cause}")

    def received(self) -> None:
        """Acknowledge that the offer is stored. Raises: OSError."""
        self._socket.sendall(b"\n")

    def close(self) -> None:
        self._socket.close()

    def _line(self) -> bytes:
        try:
            line = self._file.readline(LINE_BYTES_MAX)
        except OSError as error:
            raise CheloniaError(
                Kind.NETWORK, "join", self._peer, f"the connection broke: {error}; try again"
            ) from error
        if not line.endswith(b"\n"):
            cause = "the connection ended without an answer: see what `cheloniad admit` says there, and try again"
            raise CheloniaError(Kind.NETWORK, "join", self._peer, cause)
        return line


def _one_time_context() -> tuple[ssl.SSLContext, bytes]:
    """Return a server's TLS context, with a certificate that lives as long as this process, and its pin."""
    key = make_key(KeyKind.P256)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cheloniad admit")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=2))
    cert = builder.sign(key, hashes.SHA256())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as directory:  # made 0700; the ssl module reads files only
        path = Path(directory) / "door.pem"
        write_file(path, chain_pem([cert]) + key_pem(key), 0o600)
        context.load_cert_chain(path)
    return context, pin_of(cert.public_bytes(Encoding.DER))
