"""AWS Signature Version 4 of requests, in the header field or in the query. Pure: the instant is an argument.

It reads who claims to have signed, and checks that with the secret. It refuses the older version 2, which signs neither
the host nor all header fields. It takes any region, as this door has one. Source: "Signature Version 4 signing process"
and "Authenticating Requests", Amazon S3 API Reference.
Invariants: every `x-amz-*` field of a request is signed; a signature is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

from chelonia.core.values import replace
from chelonia.wire.s3.errors import S3Error

ALGORITHM: Final = "AWS4-HMAC-SHA256"
STAMP: Final = "%Y%m%dT%H%M%SZ"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
SKEW_MS_MAX: Final = 15 * 60 * 1000
"""Largest error of a client's clock: clients' libraries correct larger ones."""
EXPIRES_S_MAX: Final = 7 * 24 * 3600
"""Longest validity of a presigned URL."""
REMEMBERED: Final = 256
"""Parsed instants in the cache: a request needs one several times, and the requests of a second share it. No cache
holds queries, which may be presigned URLs, or keys, which must not outlive their use."""
QUERY_FIELDS_MAX: Final = 200
"""Fields of one query: far more than any operation has."""

_CREDENTIAL = re.compile(r"([!-.0-~]{1,128})/(\d{8})/([a-z0-9-]{1,64})/(s3)/(aws4_request)\Z", re.ASCII)
_SIGNATURE = re.compile(r"[0-9a-f]{64}\Z")
_BLANKS = re.compile(r" +")
_PORT = re.compile(r":\d+\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Signable:
    """A request as it came: `path` and `query` raw, percent escapes kept; `fields` in order, names as sent."""

    method: str
    path: str
    query: str
    fields: tuple[tuple[str, str], ...]
    named: Mapping[str, str] = field(init=False, compare=False)
    """The values of each header field, joined, by its name in lower case."""
    asked: tuple[tuple[str, str], ...] = field(init=False, compare=False)
    """The fields of the query, decoded, in order."""

    def __post_init__(self) -> None:
        """Raises: S3Error for too many fields in the query."""
        named: dict[str, str] = {}
        for name, value in self.fields:
            lower, trimmed = name.lower(), _trim(value)
            named[lower] = f"{named[lower]},{trimmed}" if lower in named else trimmed
        object.__setattr__(self, "named", named)
        object.__setattr__(self, "asked", query_fields(self.query))

    def field(self, name: str) -> str:
        """Return the values of one header field, joined; "" without it."""
        return self.named.get(name, "")


class Claim(Struct, frozen=True):
    """The claim of a request about its own signature.

    Args:
        access_key: id of the key that signed it.
        scope: `<day>/<region>/s3/aws4_request`; `stamp`: `YYYYMMDDTHHMMSSZ`.
        signed: names of the signed header fields, in lower case, ordered.
        payload: `x-amz-content-sha256`: a digest of the body, or how the body is signed.
        presigned: the claim is in the query; `expires_s` is then its validity.
    """

    access_key: str
    scope: str
    stamp: str
    signed: tuple[str, ...]
    signature: str
    payload: str
    presigned: bool = False
    expires_s: int = 0


def claim_of(request: Signable) -> Claim | None:
    """Read the claim of a request; None for an anonymous one.

    Raises: S3Error when it is malformed, or signed in a way that this door does not take.
    """
    header, query = request.field("authorization"), dict(request.asked)
    if "Signature" in query and "AWSAccessKeyId" in query:
        raise old()
    if header and "X-Amz-Algorithm" in query:
        raise S3Error("InvalidArgument", "sign once: in the Authorization header field or in the query, not in both")
    if "X-Amz-Algorithm" in query:
        return _presigned(request, query)
    if not header:
        return None
    if header.startswith("AWS "):
        raise old()
    kind, _, rest = header.partition(" ")
    if kind != ALGORITHM:
        raise S3Error("InvalidArgument", f"this door takes {ALGORITHM} in the Authorization header field")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    code = "AuthorizationHeaderMalformed"
    if not {"Credential", "SignedHeaders", "Signature"} <= set(parts):
        raise S3Error(code, "Credential, SignedHeaders and Signature are needed")
    payload = request.field("x-amz-content-sha256")
    if not payload:
        raise S3Error("MissingSecurityHeader", "x-amz-content-sha256 is needed: the body's SHA-256 or UNSIGNED-PAYLOAD")
    stamp = _stamp(request, code)
    access_key, scope = credential(parts["Credential"], stamp, code)
    claim = Claim(access_key, scope, stamp, _names(parts["SignedHeaders"]), parts["Signature"], payload)
    return _complete(request, claim, code)


def verify(request: Signable, claim: Claim, key: bytes, now_ms: int) -> None:
    """Check the signature, by the `signing_key` of its scope, and its time.

    Raises: S3Error (SignatureDoesNotMatch, RequestTimeTooSkewed, AccessDenied).
    """
    then = stamp_ms(claim.stamp)
    if claim.presigned:
        if then - now_ms > SKEW_MS_MAX:
            raise S3Error("AccessDenied", "the URL is not good yet: is the signer's clock right?")
        if now_ms > then + claim.expires_s * 1000:
            raise S3Error("AccessDenied", "Request has expired: ask for a new URL")
    elif abs(then - now_ms) > SKEW_MS_MAX:
        cause = f"The difference between the request time and the server's is more than {SKEW_MS_MAX // 60_000} minutes"
        raise S3Error("RequestTimeTooSkewed", f"{cause}: set the client's clock")
    if not any(hmac.compare_digest(_signature(*way, claim, key), claim.signature) for way in _ways(request)):
        cause = "The request signature does not match: check the secret key, and the client's way to sign"
        raise S3Error("SignatureDoesNotMatch", cause)


def signing_key(secret: str, scope: str) -> bytes:
    """Return the key that signs for one day, region and service."""
    key = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    return key


def sign(key: bytes, text: str) -> str:
    """Return the signature of a string to sign."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def canonical_request(request: Signable, claim: Claim, path: str) -> str:
    """Return the signed parts of a request as one text; `path`: encoded."""
    fields = "".join(f"{name}:{request.field(name)}\n" for name in claim.signed)
    pairs = sorted(
        (encode(name.encode()), encode(value.encode("utf-8", "surrogateescape")))
        for name, value in request.asked
        if not (claim.presigned and name == "X-Amz-Signature")
    )
    query = "&".join(f"{name}={value}" for name, value in pairs)
    return "\n".join((request.method, path or "/", query, fields, ";".join(claim.signed), claim.payload))


def query_fields(query: str) -> tuple[tuple[str, str], ...]:
    """Return the fields of a raw query, decoded, in order. Raises: S3Error for too many."""
    parts = [part for part in query.split("&") if part]
    if len(parts) > QUERY_FIELDS_MAX:
        raise S3Error("InvalidURI", f"at most {QUERY_FIELDS_MAX} fields in one query")
    pairs = (part.replace("+", "%20").partition("=") for part in parts)
    return tuple((_decoded(name), _decoded(value)) for name, _, value in pairs)


def encode(data: bytes, keep: str = "") -> str:
    """Percent-encode as signatures do: all but letters, digits, `-._~` and `keep`."""
    return quote(data, safe="-._~" + keep)


@lru_cache(maxsize=REMEMBERED)
def stamp_ms(stamp: str) -> int:
    """Return `YYYYMMDDTHHMMSSZ` in milliseconds since the Unix epoch. Raises: S3Error."""
    try:
        return int(datetime.strptime(stamp, STAMP).replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError as error:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date") from error


def _ways(request: Signable) -> Iterator[tuple[Signable, str]]:
    """The requests and paths that may have been signed: path encoded anew or as sent, host also without port."""
    # Accepting the host without its port is safe: an attacker who repeats a request chooses its host field anyway.
    paths = dict.fromkeys((encode(unquote_to_bytes(request.path), keep="/"), request.path))
    yield from ((request, path) for path in paths)
    fields = tuple((name, _PORT.sub("", value) if name.lower() == "host" else value) for name, value in request.fields)
    if fields != request.fields:
        yield from ((replace(request, fields=fields), path) for path in paths)


def _signature(request: Signable, path: str, claim: Claim, key: bytes) -> str:
    digest = hashlib.sha256(canonical_request(request, claim, path).encode("utf-8", "surrogateescape")).hexdigest()
    return sign(key, f"{ALGORITHM}\n{claim.stamp}\n{claim.scope}\n{digest}")


def _presigned(request: Signable, query: Mapping[str, str]) -> Claim:
    code = "AuthorizationQueryParametersError"
    needed = ("X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature")
    missing = [name for name in needed if not query.get(name)]
    if missing or query["X-Amz-Algorithm"] != ALGORITHM:
        raise S3Error(code, f"a presigned URL has X-Amz-Algorithm={ALGORITHM} and {', '.join(needed)}")
    expires = query["X-Amz-Expires"]
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 7 and int(expires) <= EXPIRES_S_MAX):
        raise S3Error(code, f"X-Amz-Expires is 0 to {EXPIRES_S_MAX} seconds")
    stamp = query["X-Amz-Date"]
    stamp_ms(stamp)
    access_key, scope = credential(query["X-Amz-Credential"], stamp, code)
    payload = query.get("X-Amz-Content-Sha256") or request.field("x-amz-content-sha256") or UNSIGNED
    claim = Claim(
        access_key, scope, stamp, _names(query["X-Amz-SignedHeaders"]), query["X-Amz-Signature"], payload,
        presigned=True, expires_s=int(expires),
    )  # fmt: skip
    return _complete(request, claim, code)


def _complete(request: Signable, claim: Claim, code: str) -> Claim:
    """Refuse a claim that leaves required fields unsigned. Raises: S3Error."""
    if not _SIGNATURE.match(claim.signature):
        raise S3Error(code, "a signature has 64 hexadecimal digits")
    if "host" not in claim.signed:
        raise S3Error(code, "the host header field has to be signed")
    free = sorted(name for name in request.named if name.startswith("x-amz-") and name not in claim.signed)
    if claim.presigned:
        free = [name for name in free if name != "x-amz-content-sha256"]
    if free:
        raise S3Error("AccessDenied", f"There were headers present which were not signed: {', '.join(free)[:200]}")
    return claim


def credential(text: str, stamp: str, code: str) -> tuple[str, str]:
    """Return key id and scope of a `Credential`, which must be of the stamp's day. Raises: S3Error with this code."""
    found = _CREDENTIAL.match(text)
    if not found:
        raise S3Error(code, "a Credential is <key id>/<YYYYMMDD>/<region>/s3/aws4_request")
    if found[2] != stamp[:8]:
        raise S3Error(code, f"the Credential is of {found[2]}, the request of {stamp[:8]}")
    return found[1], text[len(found[1]) + 1 :]


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip().lower() for name in text.split(";") if name.strip()}))


def _stamp(request: Signable, code: str) -> str:
    """The time of signing: `x-amz-date`, or `Date` in either form. Raises: S3Error."""
    stamp = request.field("x-amz-date") or request.field("date")
    try:
        if not stamp.endswith("Z"):
            stamp = parsedate_to_datetime(stamp).astimezone(UTC).strftime(STAMP)
    except (TypeError, ValueError, OverflowError) as error:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date") from error
    stamp_ms(stamp)
    return stamp


def _trim(value: str) -> str:
    return _BLANKS.sub(" ", value.strip()) if "  " in value else value.strip()


def _decoded(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def old() -> S3Error:
    """Return the refusal of version 2."""
    cause = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
    return S3Error("InvalidRequest", cause)
