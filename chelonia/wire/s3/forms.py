"""Uploads by a browser's form: its fields, the file behind them, and the signed policy for it. Pure.

The file is the last field that counts. The policy limits the form: a condition must name each field, and each condition
must hold. Source: "POST Object" and "POST policy", Amazon S3 API Reference; RFC 7578.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.message import Message
from typing import Any, Final, NoReturn

import msgspec

from chelonia.wire.s3 import sigv4
from chelonia.wire.s3.errors import S3Error

FIELDS_BYTES_MAX: Final = 20 * 1024
"""Bytes of all fields before the file: Amazon's bound."""
FIELDS_MAX: Final = 200
"""Fields of one form: as many as of a query."""
_FIELD: Final = re.compile(r'[;\s](filename|name)="([^"]*)"')
_FREE: Final = frozenset({"policy", "x-amz-signature", "file"})
"""Fields that need no condition."""


def boundary_of(content_type: str) -> bytes:
    """Return the boundary between the fields of a form. Raises: S3Error for another kind of body."""
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_boundary() or ""
    if message.get_content_type() != "multipart/form-data" or not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise S3Error("InvalidRequest", "the body is to be a form: multipart/form-data with a boundary")
    return boundary.encode()


class FormDecoder:
    """Reads a form as it comes. `fields`: those before the file, names in lower case; `filename`: None until the file
    begins."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._mark = b"\r\n--" + boundary
        self._held = b"\r\n"
        self._taken = 0
        self._ended = False

    @property
    def base_name(self) -> str:
        """The file's name without the folders that some browsers send along; "" without one."""
        return (self.filename or "").replace("\\", "/").rpartition("/")[2]

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the form. Returns: bytes of the file. Raises: S3Error."""
        if self._ended:
            return b""
        self._held += data
        while self.filename is None:
            before = len(self._held)
            complete = self._field()
            self._taken += before - len(self._held)
            if (complete and self._taken > FIELDS_BYTES_MAX) or (
                not complete and self._taken + before > FIELDS_BYTES_MAX
            ):
                cause = f"the fields before the file have at most {FIELDS_BYTES_MAX} bytes together"
                raise S3Error("MaxMessageLengthExceeded", cause)
            if not complete:
                return b""
            if len(self.fields) > FIELDS_MAX:
                raise S3Error("MaxMessageLengthExceeded", f"a form has at most {FIELDS_MAX} fields")
        at = self._held.find(self._mark)
        self._ended = at >= 0
        cut = at if self._ended else max(len(self._held) - len(self._mark) + 1, 0)
        out, self._held = self._held[:cut], b"" if self._ended else self._held[cut:]
        return out

    def end(self) -> None:
        """End the form. Raises: S3Error unless the file has come whole."""
        if self.filename is None:
            raise S3Error("InvalidArgument", "POST requires exactly one file upload per request.")
        if not self._ended:
            raise S3Error("IncompleteBody", "the form breaks off in its file")

    def _field(self) -> bool:
        """Read one field, or the head of the file; False: it needs more bytes."""
        start, mark = len(self._mark) + 2, self._mark
        if len(self._held) < start:
            return False
        if self._held[:start] != mark + b"\r\n":
            raise S3Error("MalformedPOSTRequest", "the body of the POST is no form with a file as its last field")
        end = self._held.find(b"\r\n\r\n", len(mark))
        if end < 0:
            return False
        names = dict(_FIELD.findall(_text(self._held[start:end])))
        name = names.get("name", "").lower()
        if name == "file":
            self.filename, self._held = names.get("filename", ""), self._held[end + 4 :]
            return True
        close = self._held.find(mark, end + 2)
        if close < 0:
            return False
        if not name or name in self.fields:
            raise S3Error("MalformedPOSTRequest", "each field of a form has a name of its own")
        self.fields[name] = _text(self._held[end + 4 : close])
        self._held = self._held[close:]
        return True


@dataclass(frozen=True, slots=True)
class FormClaim:
    """The claim of a form that a key signed its policy (base64, as in the form)."""

    access_key: str
    scope: str
    policy: str
    signature: str

    def verify(self, secret: str) -> None:
        """Check the signature. Raises: S3Error (SignatureDoesNotMatch)."""
        expected = sigv4.sign(sigv4.signing_key(secret, self.scope), self.policy)
        if not hmac.compare_digest(expected.encode(), self.signature.encode()):
            raise S3Error("SignatureDoesNotMatch", "The policy's signature does not match: check the secret key")


def claim_of(fields: Mapping[str, str]) -> FormClaim | None:
    """Return the claim of a form; None for an unsigned one. Raises: S3Error."""
    if "awsaccesskeyid" in fields:
        raise sigv4.old()
    if "policy" not in fields and "x-amz-signature" not in fields:
        return None
    needed = ("policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature")
    if not all(fields.get(name) for name in needed) or fields["x-amz-algorithm"] != sigv4.ALGORITHM:
        raise S3Error("InvalidArgument", f"a signed form has {', '.join(needed)}, by {sigv4.ALGORITHM}")
    key, scope = sigv4.credential(fields["x-amz-credential"], fields["x-amz-date"], "InvalidArgument")
    return FormClaim(key, scope, fields["policy"], fields["x-amz-signature"])


def check_policy(policy: str, fields: Mapping[str, str], now_ms: int) -> tuple[int, int]:
    """Check a form against its policy. `fields`: those of the form, with the final `key` and `bucket`.

    Returns: the least and the most bytes that the file may have (-1: any). Raises: S3Error.
    """
    try:
        document = msgspec.json.decode(base64.b64decode(policy, validate=True))
        expires = datetime.fromisoformat(document["expiration"])
        rules = [rule for each in document["conditions"] for rule in _rules(each)]
        if expires.tzinfo is None or not isinstance(document["conditions"], list):
            raise ValueError(expires)
    except (
        binascii.Error,
        msgspec.MsgspecError,
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        cause = "Invalid Policy: it is JSON in base64, with an expiration (with its zone) and a list of conditions"
        raise S3Error("InvalidPolicyDocument", cause) from error
    if now_ms > expires.timestamp() * 1000:
        raise S3Error("AccessDenied", "Invalid according to Policy: Policy expired.")
    least, most = 0, -1
    for operator, name, value in rules:
        if operator == "content-length-range":
            least = max(least, int(name))
            most = int(value) if most < 0 else min(most, int(value))
            continue
        actual = fields.get(name, "")
        if not (actual == value if operator == "eq" else actual.startswith(value)):
            rule = f'["{operator}", "${name[:80]}", "{value[:80]}"]'
            raise S3Error("AccessDenied", f"Invalid according to Policy: Policy Condition failed: {rule}")
    named = {name for _, name, _ in rules}
    free = [name for name in fields if name not in named | _FREE and not name.startswith("x-ignore-")]
    if free:
        raise S3Error("AccessDenied", f"Invalid according to Policy: Extra input fields: {', '.join(free)[:200]}")
    return least, most


def _rules(condition: Any) -> list[tuple[str, str, str]]:
    """A condition as operator, field and value. Raises: ValueError, TypeError."""
    if isinstance(condition, dict):
        return [("eq", name.lower(), value if isinstance(value, str) else _no()) for name, value in condition.items()]
    operator, name, value = condition
    if operator == "content-length-range":
        least, most = int(name), int(value)
        return [(operator, str(least), str(most))] if 0 <= least <= most else _no()
    if operator not in ("eq", "starts-with") or not (
        isinstance(name, str) and isinstance(value, str) and name[:1] == "$"
    ):
        raise ValueError(operator)
    return [(operator, name[1:].lower(), value)]


def _no() -> NoReturn:
    raise ValueError("a value is text, or a range of bytes")


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise S3Error("MalformedPOSTRequest", "the fields of a form are UTF-8") from error
