"""Bodies in `aws-chunked` coding: the bytes in them, each chunk's signature, and the checksums that trail them. Pure.

Decodes piece by piece. A chunk's bytes are given out before its signature is known to be right; whoever stores them
makes nothing of them until `end` has been reached without an error. Source: "Signature calculations for the
authorization header: transferring payload in multiple chunks" and "... trailing headers", Amazon S3 API Reference.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.sigv4 import sign

SIGNED: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
STREAMING: Final = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)
LINE_BYTES_MAX: Final = 1024
"""A chunk's head, or a trailing field: a signature, or the longest checksum with its name."""
CHUNKS_FEW: Final = 1000
CHUNK_BYTES_MIN: Final = 256
"""Of more chunks than a few so many bytes each, on average: each costs as much as some hundred bytes. Amazon takes none
of less than 8 KiB, but clients that read pipes send what comes."""
TRAILERS_MAX: Final = 8
"""Trailing fields: one checksum, and a signature."""

_HEAD = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\Z")
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Signing:
    """What chunks are signed with: the day's key, stamp and scope, and the signature of the request, the first seed."""

    key: bytes
    stamp: str
    scope: str
    seed: str


class _At(enum.Enum):
    HEAD = enum.auto()
    DATA = enum.auto()
    AFTER = enum.auto()
    TRAILER = enum.auto()
    DONE = enum.auto()


class ChunkDecoder:
    """Decodes one body. `length`: bytes it must hold once decoded, -1: not known."""

    def __init__(self, payload: str, length: int, signing: Signing | None) -> None:
        """`payload`: one of `STREAMING`; `signing` is needed for those that are signed."""
        assert payload in STREAMING, "a coding of this module"
        assert signing is not None or payload == UNSIGNED_TRAILER, "signed chunks need a key"
        self._signing = signing if payload != UNSIGNED_TRAILER else None
        self._trails = payload != SIGNED
        self._length = length
        self._buffer = bytearray()
        self._at = _At.HEAD
        self._left = 0
        self._got = 0
        self._chunks = 0
        self._seed = signing.seed if signing is not None else ""
        self._claimed = ""
        self._hash = hashlib.sha256()
        self.trailers: dict[str, str] = {}
        """Trailing fields, names in lower case; complete once `end` has been reached."""
        self.announced = ""
        """The trailing field that has to come, "": none."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the body; return what is known of its content. Raises: S3Error."""
        self._buffer += data
        out = bytearray()
        while self._step(out):
            pass
        return bytes(out)

    def end(self) -> None:
        """The body has ended. Raises: S3Error when it was not whole."""
        if self._at is not _At.DONE:
            raise S3Error("IncompleteBody", "the body ended before its last chunk")
        if self.announced and not self.trailers.get(self.announced):
            raise S3Error("InvalidRequest", f"x-amz-trailer announces {self.announced}, and it did not come")
        if self._length not in (-1, self._got):
            raise S3Error("IncompleteBody", f"x-amz-decoded-content-length says {self._length} bytes, {self._got} came")

    def _step(self, out: bytearray) -> bool:
        match self._at:
            case _At.HEAD:
                return self._head()
            case _At.DATA:
                return self._data(out)
            case _At.AFTER:
                return self._after()
            case _At.TRAILER:
                return self._trailer()
            case _At.DONE:
                if self._buffer.strip() or len(self._buffer) > LINE_BYTES_MAX:  # what follows is kept
                    raise S3Error("IncompleteBody", "bytes follow the last chunk")
                return False

    def _line(self) -> bytes | None:
        """The next line without its end; None until it has come."""
        end = self._buffer.find(b"\n", 0, LINE_BYTES_MAX + 2)
        if end < 0:
            if len(self._buffer) > LINE_BYTES_MAX:
                raise S3Error("InvalidRequest", f"a line of a chunked body is longer than {LINE_BYTES_MAX} bytes")
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        return line

    def _head(self) -> bool:
        line = self._line()
        if line is None:
            return False
        found = _HEAD.match(line)
        if not found or (self._signing is not None) is not (found[2] is not None):
            raise S3Error("InvalidRequest", "a chunk begins with its size in hexadecimal digits and its signature")
        self._left = int(found[1], 16)
        self._chunks += 1
        if self._got < (self._chunks - CHUNKS_FEW) * CHUNK_BYTES_MIN:
            raise S3Error("InvalidRequest", f"chunks are to have {CHUNK_BYTES_MIN} bytes or more on average")
        self._claimed = (found[2] or b"").decode()
        if self._length >= 0 and self._got + self._left > self._length:
            raise S3Error("IncompleteBody", f"more bytes came than x-amz-decoded-content-length says: {self._length}")
        if self._left:
            self._at = _At.DATA
            return True
        self._check_chunk()
        self._at = _At.TRAILER
        return True

    def _data(self, out: bytearray) -> bool:
        if not self._buffer:
            return False
        part = bytes(self._buffer[: self._left])
        del self._buffer[: len(part)]
        out += part
        self._got += len(part)
        self._left -= len(part)
        if self._signing is not None:
            self._hash.update(part)
        if not self._left:
            self._check_chunk()
            self._at = _At.AFTER
        return True

    def _after(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if line:
            raise S3Error("InvalidRequest", "a chunk is longer than its size says")
        self._at = _At.HEAD
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            signed = self.trailers.get("x-amz-trailer-signature")
            if self.trailers and self._trails and self._signing is not None and not signed:
                return True  # an empty line before the signature: some clients send one
            self._at = _At.DONE
            self._check_trailers()
            return True
        name, colon, value = line.decode("latin-1").partition(":")
        name = name.strip().lower()
        if not colon or not self._trails or name in self.trailers or len(self.trailers) >= TRAILERS_MAX:
            raise S3Error("InvalidRequest", "what follows the last chunk is no trailing field that was announced")
        self.trailers[name] = value.strip()
        return True

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
        told = "".join(f"{name}:{value}\n" for name, value in sorted(self.trailers.items()))
        digest = hashlib.sha256(told.encode("latin-1")).hexdigest()
        text = f"AWS4-HMAC-SHA256-TRAILER\n{signing.stamp}\n{signing.scope}\n{self._seed}\n{digest}"
        self._agree(signing, text, claimed)

    def _agree(self, signing: Signing, text: str, claimed: str) -> None:
        expected = sign(signing.key, text)
        if not hmac.compare_digest(expected.encode(), claimed.encode()):
            raise S3Error("SignatureDoesNotMatch", "a chunk of the body is not as its signature says; send it again")
        self._seed = expected
