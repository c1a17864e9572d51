"""The content of S3's requests in XML bodies, and in some fields. Pure; parsing is hardened (`wire.xml`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote_plus

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.wire import xml
from chelonia.wire.s3 import versions
from chelonia.wire.s3.acls import GRANTS_MAX, by_address
from chelonia.wire.s3.checksums import ALGORITHMS
from chelonia.wire.s3.cors import CorsRule
from chelonia.wire.s3.cors import check as check_cors
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import is_field, is_text

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of an XML body: a thousand keys of a thousand bytes, escaped."""
DELETED_MAX: Final = 1000
"""Keys of one bulk deletion."""
TAGS_MAX: Final = 10
_OF_A_RULE: Final = ("AllowedOrigin", "AllowedMethod", "AllowedHeader", "ExposeHeader")
_LOCATION: Final = re.compile(r"[A-Za-z0-9-]{0,63}", re.ASCII)
TAG_KEY_MAX, TAG_VALUE_MAX = 128, 256


@dataclass(frozen=True, slots=True)
class BulkDeletion:
    """One key of a bulk deletion, and its conditions."""

    key: str
    version: str = ""
    etag: str = ""


def deletion(body: bytes) -> tuple[tuple[BulkDeletion, ...], bool]:
    """Return the keys of a bulk deletion, and whether to report only failures. Raises: S3Error."""
    root = _root(body, "Delete")
    entries = [_texts(child) for child in _children(root, "Object")]
    if any(t.get("Size") or t.get("LastModifiedTime") for t in entries):
        raise S3Error("NotImplemented", "this door removes on the condition of an ETag alone")
    if any(not t.get("ETag", "*").strip('"') for t in entries):  # its client has lost it, and meant no removal without
        raise S3Error("MalformedXML", "an ETag is not empty; leave it out to remove a key in any case")
    deletions = [BulkDeletion(t.get("Key", ""), t.get("VersionId", ""), t.get("ETag", "").strip('"')) for t in entries]
    if not 1 <= len(deletions) <= DELETED_MAX or not all(each.key for each in deletions):
        raise S3Error("MalformedXML", f"a Delete names 1 to {DELETED_MAX} keys")
    return tuple(deletions), _text(root, "Quiet").lower() == "true"


@dataclass(frozen=True, slots=True)
class CompletedPart:
    """One part of a completed upload; `checksums`: those that the client states, in base64 by name."""

    number: int
    etag: str
    checksums: Mapping[str, str]


def completion(body: bytes) -> tuple[CompletedPart, ...]:
    """Return the parts of an upload to complete. Raises: S3Error."""
    order = []
    for part in map(_texts, _children(_root(body, "CompleteMultipartUpload"), "Part")):
        number, etag = part.get("PartNumber", ""), part.get("ETag", "").strip('"')
        if not (number.isascii() and number.isdigit() and len(number) <= 5 and etag):
            raise S3Error("MalformedXML", "a Part has a PartNumber and an ETag")
        if not 1 <= int(number) <= bounds.PARTS_MAX:
            raise S3Error("InvalidPart", f"parts have the numbers 1 to {bounds.PARTS_MAX}, not {number}")
        checksums = {name: part.get(f"Checksum{name.upper()}", "") for name in ALGORITHMS}
        order.append(CompletedPart(int(number), etag, {name: value for name, value in checksums.items() if value}))
    if not order:
        raise S3Error("MalformedXML", "an upload is completed of at least one Part")
    return tuple(order)


def acl(body: bytes) -> tuple[tuple[str, str], ...]:
    """Return the grants of an `AccessControlPolicy`: grantee and permission. Raises: S3Error."""
    grants: list[tuple[str, str]] = []
    for grants_node in _children(_root(body, "AccessControlPolicy"), "AccessControlList"):
        for grant in _children(grants_node, "Grant"):
            grantee = next(_children(grant, "Grantee"), None)
            if grantee is None or len(grants) >= GRANTS_MAX:
                raise S3Error("MalformedACLError", f"a list has at most {GRANTS_MAX} grants, each with a Grantee")
            if _text(grantee, "EmailAddress"):
                raise by_address()
            grants.append((_text(grantee, "URI") or _text(grantee, "ID"), _text(grant, "Permission")))
    return tuple(grants)


def new_bucket(body: bytes) -> tuple[str, dict[str, str]]:
    """Return the `LocationConstraint` of a new bucket ("": none) and its tags. Raises: S3Error."""
    if not body.strip():
        return "", {}
    root = _root(body, "CreateBucketConfiguration")
    if any(xml.local_name(child) in ("Bucket", "Location") for child in root):
        raise S3Error("NotImplemented", "directory buckets are not offered by this door")
    name = _text(root, "LocationConstraint")
    if not _LOCATION.fullmatch(name):
        raise S3Error("InvalidLocationConstraint", "a LocationConstraint has up to 63 letters, digits and hyphens")
    return name, _tags(_pairs(root, "Tags"))


def versioning(body: bytes) -> str:
    """Return whether a bucket should keep versions, `Enabled` or `Suspended`. Raises: S3Error."""
    root = _root(body, "VersioningConfiguration")
    status = _text(root, "Status")
    if status not in (versions.ENABLED, versions.SUSPENDED):
        raise S3Error("MalformedXML", "a VersioningConfiguration has a Status, Enabled or Suspended")
    if _text(root, "MfaDelete") == versions.ENABLED:
        raise S3Error("NotImplemented", "deletion by a second factor is not offered by this door")
    return status


def cors(body: bytes) -> tuple[CorsRule, ...]:
    """Return the rules in a `CORSConfiguration`. Raises: S3Error."""
    rules = []
    for node in _children(_root(body, "CORSConfiguration"), "CORSRule"):
        age = _text(node, "MaxAgeSeconds")
        if age and not (age.isascii() and age.isdigit() and len(age) <= 9):
            raise S3Error("MalformedXML", "MaxAgeSeconds is a number of seconds")
        origins, methods, fields, exposed = (
            tuple(str(child.text or "") for child in _children(node, name)) for name in _OF_A_RULE
        )
        rules.append(CorsRule(origins, methods, fields, exposed, int(age) if age else -1, _text(node, "ID")))
    check_cors(rules)
    if not all(is_field("x", text) for rule in rules for text in rule.texts):
        raise S3Error("InvalidRequest", "a rule holds what no header field can")
    return tuple(rules)


def tagging(body: bytes) -> dict[str, str]:
    """Return the tags in a `Tagging`. Raises: S3Error."""
    return _tags(_pairs(_root(body, "Tagging"), "TagSet"))


def tags_of(header: str) -> dict[str, str]:
    """Return the tags in `x-amz-tagging`, a query. Raises: S3Error."""
    if header.count("&") >= TAGS_MAX + 1:
        raise S3Error("InvalidTag", f"at most {TAGS_MAX} tags")
    return _tags(parse_qsl(header, keep_blank_values=True))


def copy_source(header: str) -> tuple[str, str, str]:
    """Return bucket, key and version ("": none) in `x-amz-copy-source`. Raises: S3Error."""
    path, _, query = header.partition("?")
    bucket, _, key = unquote_plus(path).removeprefix("/").partition("/")  # a plus is a blank, as Amazon reads it
    if not bucket or not key:
        raise S3Error("InvalidArgument", "Copy Source must mention the source bucket and key: sourcebucket/sourcekey")
    return bucket, key, query.removeprefix("versionId=") if query.startswith("versionId=") else ""


def _tags(pairs: list[tuple[str, str]]) -> dict[str, str]:
    tags = dict(pairs)
    if len(pairs) > TAGS_MAX:
        raise S3Error("InvalidTag", f"at most {TAGS_MAX} tags")
    if not is_text((*tags, *tags.values())):
        raise S3Error("InvalidTag", "a tag is UTF-8")
    if len(tags) < len(pairs) or any(
        not 1 <= len(key) <= TAG_KEY_MAX or len(value) > TAG_VALUE_MAX for key, value in pairs
    ):
        cause = f"a tag's key has 1 to {TAG_KEY_MAX} characters and stands once, its value has up to {TAG_VALUE_MAX}"
        raise S3Error("InvalidTag", cause)
    return tags


def _root(body: bytes, name: str) -> xml.Node:
    try:
        root = xml.parse(body, BODY_BYTES_MAX)
    except CheloniaError as error:
        raise S3Error("MalformedXML", f"The XML you provided was not well-formed: {error.cause}") from error
    if xml.local_name(root) != name:
        raise S3Error("MalformedXML", f"a {name} is wanted, this is {xml.local_name(root)[:80]}")
    return root


def _pairs(root: xml.Node, of: str) -> list[tuple[str, str]]:
    tags = (tag for node in _children(root, of) for tag in _children(node, "Tag"))
    return [(_text(tag, "Key"), _text(tag, "Value")) for tag in tags]


def _children(node: xml.Node, name: str) -> Iterator[xml.Node]:
    return (child for child in node if xml.local_name(child) == name)


def _texts(node: xml.Node) -> dict[str, str]:
    """The texts of the children by name, of the first child of each."""
    return {xml.local_name(child): str(child.text or "") for child in reversed(node)}


def _text(node: xml.Node, name: str) -> str:
    """The text of the first child of a name; "" without one."""
    return next((str(child.text or "") for child in _children(node, name)), "")
