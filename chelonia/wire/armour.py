"""Bytes as text that is safe in URLs and header fields: unpadded base64url with exactly one spelling per value."""

from __future__ import annotations

import base64
import binascii


def to_text(raw: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def from_text(text: str) -> bytes | None:
    """Return the bytes that `to_text` spells as `text`; None for any other text, even another spelling of them."""
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (UnicodeEncodeError, binascii.Error, ValueError):
        return None
    return raw if to_text(raw) == text else None
