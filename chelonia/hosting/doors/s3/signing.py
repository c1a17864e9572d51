"""Identifies the caller of an S3 request, and measures its body: signature first, then byte by byte.

A caller is the owner of the key that signed, or `ANONYMOUS`. A key gives a user's rights: never a role. The last piece
of a body is held back until the body is what was announced, so nothing false is ever stored whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct, structs

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.core.ports.access_keys import AccessKey
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.sending import held_back
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.wire.s3 import checksums, chunks, sigv4
from chelonia.wire.s3.checksums import Measured
from chelonia.wire.s3.chunks import ChunkDecoder, Signing
from chelonia.wire.s3.errors import S3Error

OBJECT_BYTES_MAX: Final = 5 * 1024**4
"""Most bytes that one upload may announce: Amazon's largest object."""

_SDK: Final = "x-amz-sdk-checksum-algorithm"


class Verified(Struct, frozen=True):
    """A request whose signature holds: its call, and itself, with a body that is measured as it is read."""

    call: Call
    request: HttpRequest
    measured: Measured


async def verified(parts: S3Parts, request: HttpRequest, signable: sigv4.Signable) -> Verified:
    """Check a request's signature. Raises: S3Error."""
    claim = sigv4.claim_of(signable)
    if claim is None:
        payload = signable.field("x-amz-content-sha256") or sigv4.UNSIGNED
        if payload in (chunks.SIGNED, chunks.SIGNED_TRAILER):
            raise S3Error("AccessDenied", "a body in signed chunks belongs to a signed request")
        return _measured(request, call_of(request, ANONYMOUS), payload, None, _given(request, signable))
    issued = await parts.keys.find(claim.access_key)
    if issued is None:
        cause = "The AWS Access Key Id you provided does not exist in our records."
        raise S3Error("InvalidAccessKeyId", cause, claim.access_key)
    key = parts.signing_key(issued, claim.scope)
    sigv4.verify(signable, claim, key, parts.clock.now_ms())
    signing = None
    if claim.payload in chunks.STREAMING:
        signing = Signing(key, claim.stamp, claim.scope, claim.signature)
    call = signed_by(call_of(request, ANONYMOUS), issued.key)
    return _measured(request, call, claim.payload, signing, _given(request, signable))


def unsigned(request: HttpRequest) -> Verified:
    """Return a browser's preflight as it is: it has no signature of its own."""
    return Verified(call_of(request, ANONYMOUS), request, Measured())


def _given(request: HttpRequest, signable: sigv4.Signable) -> dict[str, str]:
    """Return the checksums that header fields give of the body; those of a completed upload are of its object."""
    completes = request.method == "POST" and "uploadId" in dict(signable.asked)
    return {} if completes else checksums.named(request.headers)


def signable_of(request: HttpRequest) -> sigv4.Signable:
    """Return a request in the form that its signature covers."""
    target = request.target
    if not target.startswith("/") and "://" in target.partition("?")[0]:  # absolute form
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("#")[0].partition("?")
    return sigv4.Signable(request.method, path, query, tuple(request.headers.items()))


def call_of(request: HttpRequest, dn: Dn) -> Call:
    """Return the call of a request. It is strong: every front end shows what one has acknowledged, as S3 promises."""
    return Call(dn=dn, address=request.peer.address, request_id=request.request_id, strong=True)


def signed_by(call: Call, key: AccessKey) -> Call:
    """Return a call as a key owner's, narrowed as the key is."""
    return structs.replace(call, dn=key.dn, scopes=key.scopes, via=f"key {key.id}" if key.scopes else "")


def _measured(
    request: HttpRequest, call: Call, payload: str, signing: Signing | None, given: dict[str, str]
) -> Verified:
    field = request.headers.get
    trailing = checksums.announced(field("x-amz-trailer", ""))
    name, value = next(iter(given.items()), (trailing, ""))
    name = name or checksums.asked_for(_SDK, field(_SDK, ""))
    md5 = field("Content-MD5", "")
    decoder, length = None, request.length
    digest = payload if len(payload) == 64 else ""
    if payload in chunks.STREAMING:
        length = _decoded_length(field("x-amz-decoded-content-length", ""))
        decoder = ChunkDecoder(payload, length, signing)
        decoder.announced = f"{checksums.PREFIX}{trailing}" if trailing else ""
    elif not digest and payload != sigv4.UNSIGNED:
        cause = f"x-amz-content-sha256 is a SHA-256 in hex, UNSIGNED-PAYLOAD or one of {', '.join(chunks.STREAMING)}"
        raise S3Error("InvalidArgument", cause)
    if length > OBJECT_BYTES_MAX:
        raise S3Error("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size")
    measured = Measured(
        md5=checksums.decoded(md5, 16, "Content-MD5", "InvalidDigest") if "Content-MD5" in request.headers else b"",
        sha256=digest.lower(), checksum=name, value=value,
    )  # fmt: skip
    body = held_back(_checked(request.body, decoder, measured, length))
    return Verified(call, replace(request, body=body, length=length), measured)


async def _checked(
    body: AsyncIterator[bytes], decoder: ChunkDecoder | None, measured: Measured, length: int
) -> AsyncIterator[bytes]:
    async for piece in _client_body(body):
        data = decoder.feed(piece) if decoder is not None else piece
        if data:
            measured.update(data)
            yield data
    if decoder is not None:
        decoder.end()
    if length >= 0 and measured.size != length:
        raise S3Error("IncompleteBody", f"{length} bytes were announced, {measured.size} came")
    measured.check(decoder.trailers if decoder is not None else {})


async def _client_body(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the body as it comes; one that does not come is the client's fault, by the code of the error."""
    try:
        async for piece in body:
            yield piece
    except CheloniaError as error:
        codes = {Kind.TIMEOUT: "RequestTimeout", Kind.INCOMPLETE: "IncompleteBody"}
        if error.kind not in codes:
            raise
        raise S3Error(codes[error.kind], error.cause) from error


def _decoded_length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise S3Error("MissingContentLength", "x-amz-decoded-content-length is needed: the body's bytes, decoded")
    return int(text)
