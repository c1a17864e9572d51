"""The CORS rules of a bucket: which pages of other origins may use it, and the header fields that say so. Pure.

A rule only lets a page send a request; its signature decides the rights, as for everybody. Cookies and certificates of
a browser do not count at this door, so no answer allows credentials.
Source: Amazon S3 API Reference, "PutBucketCors"; WHATWG Fetch, "CORS protocol".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from chelonia.wire.s3.errors import S3Error

METHODS: Final = ("GET", "PUT", "HEAD", "POST", "DELETE")
RULES_MAX: Final = 100
RULES_BYTES_MAX: Final = 16 * 1024
"""Bytes of all texts in the rules of one bucket."""
VARY: Final = ("Vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method")


class CorsRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `methods` and header `fields` that pages of these `origins` may send. Patterns have at most one `*` each.

    - `exposed`: fields of an answer that they may read
    - `max_age_s`: how long a browser may keep the rule; -1: not stated
    """

    origins: tuple[str, ...]
    methods: tuple[str, ...]
    fields: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    max_age_s: int = -1
    id: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that a user wrote."""
        return (*self.origins, *self.methods, *self.fields, *self.exposed, self.id)


def check(rules: Sequence[CorsRule]) -> None:
    """Refuse rules that mean nothing. Raises: S3Error."""
    if not 1 <= len(rules) <= RULES_MAX or not all(rule.origins and rule.methods for rule in rules):
        raise S3Error("MalformedXML", f"1 to {RULES_MAX} rules, each with an AllowedOrigin and an AllowedMethod")
    for rule in rules:
        for method in rule.methods:
            if method not in METHODS:
                cause = f"Found unsupported HTTP method in CORS config. Unsupported method is {method[:40]}"
                raise S3Error("InvalidRequest", cause)
        if any(text.count("*") > 1 for text in (*rule.origins, *rule.fields)):
            raise S3Error("InvalidRequest", "an AllowedOrigin or AllowedHeader can not have more than one wildcard.")
        if any("*" in text for text in rule.exposed):
            raise S3Error(
                "InvalidRequest", "an ExposeHeader contains wildcard, which is not supported: name the fields"
            )
    if sum(len(text.encode()) for rule in rules for text in rule.texts) > RULES_BYTES_MAX:
        raise S3Error("InvalidRequest", f"the rules have over {RULES_BYTES_MAX} bytes: fewer origins by a wildcard")


def allowed(
    rules: Sequence[CorsRule], origin: str, method: str, headers: Sequence[str] | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the header fields of an answer to a page of an origin, by the first rule that allows it; (): none does.

    Args: `headers`: the header fields that a preflight request announces; None: this is no preflight.
    """
    for rule in rules:
        pattern = next((pattern for pattern in rule.origins if _fits(pattern, origin)), None)
        if pattern is None or method not in rule.methods or not all(_may_send(rule, name) for name in headers or ()):
            continue
        fields = [("Access-Control-Allow-Origin", "*" if pattern == "*" else origin)]
        fields.append(("Access-Control-Allow-Methods", ", ".join(rule.methods)))
        if headers:
            fields.append(("Access-Control-Allow-Headers", ", ".join(headers)))
        if rule.exposed:
            fields.append(("Access-Control-Expose-Headers", ", ".join(rule.exposed)))
        if rule.max_age_s >= 0:
            fields.append(("Access-Control-Max-Age", str(rule.max_age_s)))
        return (*fields, VARY)
    return ()


def _may_send(rule: CorsRule, name: str) -> bool:
    return any(_fits(pattern.lower(), name.lower()) for pattern in rule.fields)


def _fits(pattern: str, text: str) -> bool:
    first, star, last = pattern.partition("*")
    if not star:
        return pattern == text
    return len(text) >= len(first) + len(last) and text.startswith(first) and text.endswith(last)
