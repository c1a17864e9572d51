"""Bodies in `aws-chunked` coding: the bytes in them, each chunk's signature, and the checksums that trail them. Pure.

It decodes piece by piece, and returns a chunk's bytes before it has checked their signature. The caller must not use
them until `end` has returned without an error. Source: "Signature calculations for the authorization header:
transferring payload in multiple chunks" and "... trailing headers", Amazon S3 API Reference.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.sigv4 import sign

SIGNED: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
STREAMING: Final = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)
LINE_BYTES_MAX: Final = 1024
"""Bytes of a chunk's head, or a trailing field: a signature, or the longest checksum with its name."""
CHUNKS_FEW: Final = 1000
CHUNK_BYTES_MIN: Final = 256
"""Average bytes of chunks beyond a few: each costs as much as some hundred bytes. Amazon takes none below 8 KiB, but
clients that read pipes send smaller ones."""
TRAILERS_MAX: Final = 8
"""Trailing fields: one checksum, and a signature."""

_HEAD = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\Z")
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Signing:
    """The input of chunks' signatures: the day's key, stamp and scope, and the request's signature, the first seed."""

    key: bytes
    stamp: str
    scope: str
    seed: str


class ChunkDecoder:
    """Decodes one body. `length`: bytes it must hold once decoded, -1: unknown."""

    def __init__(self, payload: str, length: int, signing: Signing | None) -> None:
        """Args: `payload`: one of `STREAMING`; `signing`: needed for the signed ones."""
        assert payload in STREAMING, "a coding of this module"
        assert signing is not None or payload == UNSIGNED_TRAILER, "signed chunks need a key"
        self._signing = signing if payload != UNSIGNED_TRAILER else None
        self._trails = payload != SIGNED
        self._length = length
        self._buffer, self._out = bytearray(), bytearray()
        self._got = self._chunks = 0
        self._whole = False
        self._seed = signing.seed if signing is not None else ""
        self._claimed = ""
        self._hash = hashlib.sha256()
        self._reading = self._body()
        self.trailers: dict[str, str] = {}
        """Trailing fields, names in lower case; complete once `end` has returned."""
        self.announced = ""
        """The trailing field that has to come; "": none."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the body; return the content decoded so far. Raises: S3Error."""
        self._buffer += data
        next(self._reading)
        out = bytes(self._out)
        self._out.clear()
        return out

    def end(self) -> None:
        """End the body. Raises: S3Error when it was not whole."""
        if not self._whole:
            raise S3Error("IncompleteBody", "the body ended before its last chunk")
        if self.announced and not self.trailers.get(self.announced):
            raise S3Error("InvalidRequest", f"x-amz-trailer announces {self.announced}, and it did not come")
        if self._length not in (-1, self._got):
            raise S3Error("IncompleteBody", f"x-amz-decoded-content-length says {self._length} bytes, {self._got} came")

    def _body(self) -> Iterator[None]:
        """Read the body; yield where it needs more."""
        while left := self._chunk_size((yield from self._line())):
            while left:
                while not self._buffer:
                    yield
                left -= self._taken(left)
            self._check_chunk()
            if (yield from self._line()):
                raise S3Error("InvalidRequest", "a chunk is longer than its size says")
        self._check_chunk()
        while not self._is_last((yield from self._line())):
            pass
        self._whole = True
        self._check_trailers()
        while not self._buffer.strip() and len(self._buffer) <= LINE_BYTES_MAX:  # blanks that follow are kept
            yield
        raise S3Error("IncompleteBody", "bytes follow the last chunk")

    def _taken(self, most: int) -> int:
        """Move bytes of a chunk to the output; return how many."""
        # No variable of `_body` may hold them: a generator that stopped is garbage that only the collector finds.
        part = bytes(self._buffer[:most])
        del self._buffer[: len(part)]
        self._out += part
        self._got += len(part)
        if self._signing is not None:
            self._hash.update(part)
        return len(part)

    def _line(self) -> Generator[None, None, bytes]:
        """Return the next line without its end."""
        while (end := self._buffer.find(b"\n", 0, LINE_BYTES_MAX + 2)) < 0:
            if len(self._buffer) > LINE_BYTES_MAX:
                raise S3Error("InvalidRequest", f"a line of a chunked body is longer than {LINE_BYTES_MAX} bytes")
            yield
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        return line

    def _chunk_size(self, line: bytes) -> int:
        """Return the bytes of the chunk that begins with this line; the last chunk has none."""
        found = _HEAD.match(line)
        if not found or (self._signing is not None) is not (found[2] is not None):
            raise S3Error("InvalidRequest", "a chunk begins with its size in hexadecimal digits and its signature")
        size = int(found[1], 16)
        self._chunks += 1
        if self._got < (self._chunks - CHUNKS_FEW) * CHUNK_BYTES_MIN:
            raise S3Error("InvalidRequest", f"chunks are to have {CHUNK_BYTES_MIN} bytes or more on average")
        self._claimed = (found[2] or b"").decode()
        if self._length >= 0 and self._got + size > self._length:
            raise S3Error("IncompleteBody", f"more bytes came than x-amz-decoded-content-length says: {self._length}")
        return size

    def _is_last(self, line: bytes) -> bool:
        """Take a trailing field; return whether this is their end."""
        if not line:
            signed = self.trailers.get("x-amz-trailer-signature")
            # An empty line before the signature: some clients send one.
            return not (self.trailers and self._trails and self._signing is not None and not signed)
        name, colon, value = line.decode("latin-1").partition(":")
        name = name.strip().lower()
        if not colon or not self._trails or name in self.trailers or len(self.trailers) >= TRAILERS_MAX:
            raise S3Error("InvalidRequest", "what follows the last chunk is no trailing field that was announced")
        self.trailers[name] = value.strip()
        return False

    def _check_chunk(self) -> None:
        signing = self._signing
        if signing is None:
            return
        text = f"AWS4-HMAC-SHA256-PAYLOAD\n{signing.stamp}\n{signing.scope}\n{self._seed}\n{_EMPTY}\n"
        self._agree(signing, text + self._hash.hexdigest(), self._claimed)
        self._hash = hashlib.sha256()

    def _check_trailers(self) -> None:
        signing = self._signing
        if signing is None or not self._trails:
            return
        claimed = self.trailers.pop("x-amz-trailer-signature", "")
        lines = "".join(f"{name}:{value}\n" for name, value in sorted(self.trailers.items()))
        digest = hashlib.sha256(lines.encode("latin-1")).hexdigest()
        text = f"AWS4-HMAC-SHA256-TRAILER\n{signing.stamp}\n{signing.scope}\n{self._seed}\n{digest}"
        self._agree(signing, text, claimed)

    def _agree(self, signing: Signing, text: str, claimed: str) -> None:
        expected = sign(signing.key, text)
        if not hmac.compare_digest(expected.encode(), claimed.encode()):
            raise S3Error("SignatureDoesNotMatch", "a chunk of the body is not as its signature says; send it again")
        self._seed = expected
