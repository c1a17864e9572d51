"""The XML of S3's answers. Pure. Source: Amazon S3 API Reference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from chelonia.core.contents.parts import PartPage
from chelonia.core.errors import CheloniaError
from chelonia.core.timing.clock import iso_second
from chelonia.wire.s3.acls import GROUPS, Grant
from chelonia.wire.s3.checksums import InParts, kind_of, to_base64
from chelonia.wire.s3.cors import CorsRule
from chelonia.wire.s3.errors import code_of
from chelonia.wire.web.conditions import NS_PER_S, quoted
from chelonia.wire.xml import escape, leaf

XML: Final = (("Content-Type", "application/xml"),)
_SAFE: Final = "/-._~*"
"""Characters that encoded keys keep, beside letters and digits."""
_SPACE: Final = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Item(msgspec.Struct, frozen=True, gc=False):
    """One key of a listing, or (`common`) a prefix that stands for all keys that begin with it.

    Args: `version`: id of the version, or of an open upload; `order`: among the versions of a key, "": it has the key
    now. `removed`: it is a delete marker.
    """

    key: str
    common: bool = False
    size: int = 0
    etag: str = ""
    modified_ns: int = 0
    owner: str = ""
    version: str = "null"
    order: str = ""
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a listing.

    Args: `v2`: the second version of the call. `after`: it shows later keys, and of this one only versions or uploads
    behind `mark`. `token`: the end of the page before, as the client sent it.
    """

    bucket: str
    prefix: str = ""
    delimiter: str = ""
    limit: int = 1000
    after: str = ""
    mark: str = ""
    token: str | None = None
    encoded: bool = False
    owner: bool = False
    v2: bool = True


def listing(asked: Asked, items: Sequence[Item], next_token: str) -> bytes:
    """Return a page of a listing; `next_token`: of the next page, "": there is none."""
    text = _encoded if asked.encoded else str
    prefix = text(asked.prefix) if asked.v2 else asked.prefix  # botocore decodes only the second version's
    out = [leaf("Name", asked.bucket), leaf("Prefix", prefix), leaf("MaxKeys", str(asked.limit))]
    if asked.delimiter:
        out.append(leaf("Delimiter", text(asked.delimiter)))
    if asked.encoded:
        out.append(leaf("EncodingType", "url"))
    out.append(leaf("IsTruncated", "true" if next_token else "false"))
    if asked.v2:
        out.append(leaf("KeyCount", str(len(items))))
        out += [leaf("ContinuationToken", asked.token)] if asked.token is not None else []
        out += [leaf("NextContinuationToken", next_token)] if next_token else []
        out += [leaf("StartAfter", text(asked.after))] if asked.after else []
    else:
        out.append(leaf("Marker", text(asked.after)))
        if next_token and asked.delimiter:
            out.append(leaf("NextMarker", text(items[-1].key)))
    for item, key in zip(items, _keys([item.key for item in items], encoded=asked.encoded), strict=True):
        if item.common:
            out.append(_prefix(text(item.key)))
        else:
            out.append(f"<Contents>{key}{_item_fields(item, owner=asked.owner)}</Contents>")
    return _document("ListBucketResult", "".join(out))


def versions(asked: Asked, items: Sequence[Item], *, more: bool) -> bytes:
    """Return a page of the versions of keys, the newest of each key first."""
    text = _encoded if asked.encoded else str
    out = [leaf("Name", asked.bucket), leaf("MaxKeys", str(asked.limit)), *_marked(asked, items, "Version", more=more)]
    before = asked.after if asked.mark else ""
    for item in items:
        if item.common:
            out.append(_prefix(text(item.key)))
            continue
        has_key = not item.order or item.key != before  # it may have got the key back since the page before
        latest = leaf("VersionId", item.version) + leaf("IsLatest", "true" if has_key else "false")
        before = item.key
        if item.removed:
            fields = leaf("LastModified", instant(item.modified_ns)) + _owner(item.owner)
            out.append(f"<DeleteMarker>{leaf('Key', text(item.key))}{latest}{fields}</DeleteMarker>")
        else:
            out.append(f"<Version>{latest}{leaf('Key', text(item.key))}{_item_fields(item, owner=True)}</Version>")
    return _document("ListVersionsResult", "".join(out))


def _marked(asked: Asked, items: Sequence[Item], of: str, *, more: bool) -> list[str]:
    """The elements before the items of a listing that has several `of` a key."""
    text = _encoded if asked.encoded else str
    out = [leaf("KeyMarker", text(asked.after)), leaf(f"{of}IdMarker", asked.mark), leaf("Prefix", text(asked.prefix))]
    out += [leaf("Delimiter", text(asked.delimiter))] if asked.delimiter else []
    out += [leaf("EncodingType", "url")] if asked.encoded else []
    if more and items:
        out += [leaf("NextKeyMarker", text(items[-1].key)), leaf(f"Next{of}IdMarker", items[-1].version)]
    return [*out, leaf("IsTruncated", "true" if more else "false")]


def _prefix(text: str) -> str:
    return f"<CommonPrefixes>{leaf('Prefix', text)}</CommonPrefixes>"


def _keys(keys: Sequence[str], *, encoded: bool) -> list[str]:
    """Keys as elements, a whole page at once: most need no escaping."""
    joined = "\n".join(keys)
    text = escape(quote(joined, safe=f"{_SAFE}\n") if encoded else joined)
    found = text.split("\n") if text else []
    if len(found) == len(keys):
        return [f"<Key>{key}</Key>" for key in found]
    return [leaf("Key", _encoded(key) if encoded else key) for key in keys]


def _item_fields(item: Item, *, owner: bool) -> str:
    ns, etag = item.modified_ns, item.etag
    etag = etag if etag.replace("-", "").isalnum() else escape(etag) or ""
    return (
        f"<LastModified>{iso_second(ns // NS_PER_S)}.{ns % NS_PER_S // 1_000_000:03d}Z</LastModified>"
        f'<ETag>"{etag}"</ETag><Size>{item.size}</Size><StorageClass>STANDARD</StorageClass>'
        f"{_owner(item.owner) if owner else ''}"
    )


def buckets(owner: str, found: Iterable[tuple[str, int]], token: str = "") -> bytes:
    """Return the buckets that a caller may read: names, and when they were made (ns). `token`: of the next page."""
    entries = "".join(
        f"<Bucket>{leaf('Name', name)}{leaf('CreationDate', instant(made))}</Bucket>" for name, made in found
    )
    more = leaf("ContinuationToken", token) if token else ""
    return _document("ListAllMyBucketsResult", f"{_owner(owner)}<Buckets>{entries}</Buckets>{more}")


def location(region: str) -> bytes:
    """Return the region of a bucket."""
    return _document("LocationConstraint", region)


COPIED: Final = "CopyObjectResult"


def copied(etag: str, modified_ns: int, name: str = COPIED, checksum: tuple[str, str] = ("", "")) -> bytes:
    """Return the answer to a copy."""
    fields = leaf("LastModified", instant(modified_ns)) + leaf("ETag", quoted(etag))
    kind = leaf("ChecksumType", kind_of(checksum[1])) if checksum[1] and name == COPIED else ""
    return _document(name, fields + _checksum(*checksum) + kind)


def upload_created(bucket: str, key: str, upload: str) -> bytes:
    """Return the answer to a new upload."""
    fields = leaf("Bucket", bucket) + leaf("Key", key) + leaf("UploadId", upload)
    return _document("InitiateMultipartUploadResult", fields)


def posted(url: str, bucket: str, key: str, etag: str) -> bytes:
    """Return the answer to a form that asks for one. It is of no namespace: pages look for elements without one."""
    fields = leaf("Location", url) + leaf("Bucket", bucket) + leaf("Key", key) + leaf("ETag", etag)
    return _document("PostResponse", fields, "")


def completed(url: str, bucket: str, key: str, etag: str, checksum: tuple[str, str]) -> bytes:
    """Return the answer to a completed upload. `checksum`: name and base64, as in all answers."""
    target = leaf("Location", url) + leaf("Bucket", bucket) + leaf("Key", key)
    digest = _checksum(*checksum)
    kind = leaf("ChecksumType", kind_of(checksum[1])) if digest else ""
    return _document("CompleteMultipartUploadResult", f"{target}{leaf('ETag', quoted(etag))}{digest}{kind}")


def _checksum(name: str, value: str) -> str:
    return leaf(f"Checksum{name.upper()}", value) if name and value else ""


@dataclass(frozen=True, slots=True)
class PartSizes:
    """The parts of an object: their `count`, and size and checksum of each behind number `after`, at most `limit`."""

    count: int
    after: int
    limit: int
    sizes: tuple[tuple[int, tuple[str, str]], ...]


def attributes(
    wanted: Collection[str], size: int, etag: str, checksum: tuple[str, str], page: PartSizes | None
) -> bytes:
    """Return the `wanted` attributes of an object; `checksum`: algorithm and value, "": none is known."""
    out = [leaf("ETag", etag)] if "ETag" in wanted else []
    if "Checksum" in wanted and checksum[0]:
        out.append(f"<Checksum>{_checksum(*checksum)}{leaf('ChecksumType', kind_of(checksum[1]))}</Checksum>")
    if "ObjectParts" in wanted and page is not None:
        last = page.after + len(page.sizes)
        fields = (("PartsCount", page.count), ("PartNumberMarker", page.after), ("NextPartNumberMarker", last),
                  ("MaxParts", page.limit))  # fmt: skip
        inner = "".join(leaf(name, str(value)) for name, value in fields)
        inner += leaf("IsTruncated", "true" if last < page.count else "false")
        for number, (length, one) in enumerate(page.sizes, page.after + 1):
            inner += f"<Part>{leaf('PartNumber', str(number))}{leaf('Size', str(length))}{_checksum(*one)}</Part>"
        out.append(f"<ObjectParts>{inner}</ObjectParts>")
    out += [leaf("StorageClass", "STANDARD")] if "StorageClass" in wanted else []
    out += [leaf("ObjectSize", str(size))] if "ObjectSize" in wanted else []
    return _document("GetObjectAttributesResponse", "".join(out))


def parts(target: tuple[str, str], upload: str, page: PartPage, asked: tuple[int, int], scheme: InParts) -> bytes:
    """Return a page of the parts of an upload of `target` (bucket, key); `asked`: most of them, behind which number."""
    (bucket, key), (limit, after) = target, asked
    out = [leaf("Bucket", bucket), leaf("Key", key), leaf("UploadId", upload)]
    if scheme.asked:
        out += [leaf("ChecksumAlgorithm", scheme.name.upper()), leaf("ChecksumType", scheme.kind)]
    out += [_owner(page.owner), _owner(page.owner, "Initiator"), "<StorageClass>STANDARD</StorageClass>"]
    out += [leaf("PartNumberMarker", str(after)), leaf("MaxParts", str(limit))]
    if page.parts:
        out.append(leaf("NextPartNumberMarker", str(page.parts[-1].number)))
    out.append(leaf("IsTruncated", "true" if page.after else "false"))
    for part in page.parts:
        fields = leaf("PartNumber", str(part.number)) + leaf("LastModified", instant(part.arrived_ms * 1_000_000))
        name, _, digits = part.checksum.partition(":")
        fields += f"{leaf('ETag', quoted(part.etag))}{leaf('Size', str(part.size))}{_checksum(name, to_base64(digits))}"
        out.append(f"<Part>{fields}</Part>")
    return _document("ListPartsResult", "".join(out))


def uploads(asked: Asked, items: Sequence[Item], *, more: bool) -> bytes:
    """Return a page of open uploads."""
    text = _encoded if asked.encoded else str
    out = [leaf("Bucket", asked.bucket), leaf("MaxUploads", str(asked.limit))]
    out += _marked(asked, items, "Upload", more=more)
    for each in items:
        if each.common:
            out.append(_prefix(text(each.key)))
            continue
        fields = leaf("Key", text(each.key)) + leaf("UploadId", each.version) + _owner(each.owner, "Initiator")
        opened = leaf("Initiated", instant(each.modified_ns))
        out.append(f"<Upload>{fields}{_owner(each.owner)}<StorageClass>STANDARD</StorageClass>{opened}</Upload>")
    return _document("ListMultipartUploadsResult", "".join(out))


@dataclass(frozen=True, slots=True)
class KeyRemoved:
    """The result of removing a key, or one of its versions. `marker`: id of the delete marker that was made, or removed
    (`version` is then its own)."""

    key: str
    version: str = ""
    error: CheloniaError | None = None
    marker: str = ""


def deleted(outcomes: Iterable[KeyRemoved], *, quiet: bool) -> bytes:
    """Return the answer to a bulk deletion: the result of each key."""
    out = []
    for each in outcomes:
        fields = leaf("Key", each.key)
        if each.error is not None:
            fields += leaf("VersionId", each.version or "null")  # some clients look for the version that they named
            fields += leaf("Code", code_of(each.error)) + leaf("Message", each.error.cause)
            out.append(f"<Error>{fields}</Error>")
        elif not quiet:
            fields += leaf("VersionId", each.version) if each.version else ""
            if each.marker:
                fields += f"<DeleteMarker>true</DeleteMarker>{leaf('DeleteMarkerVersionId', each.marker)}"
            out.append(f"<Deleted>{fields}</Deleted>")
    return _document("DeleteResult", "".join(out))


def tags(found: Mapping[str, str]) -> bytes:
    """Return the tags of an object or bucket."""
    entries = "".join(f"<Tag>{leaf('Key', key)}{leaf('Value', value)}</Tag>" for key, value in sorted(found.items()))
    return _document("Tagging", f"<TagSet>{entries}</TagSet>")


def cors(rules: Iterable[CorsRule]) -> bytes:
    """Return the CORS rules of a bucket."""
    out = []
    for rule in rules:
        fields = leaf("ID", rule.id) if rule.id else ""
        fields += "".join(leaf("AllowedHeader", each) for each in rule.fields)
        fields += "".join(leaf("AllowedMethod", each) for each in rule.methods)
        fields += "".join(leaf("AllowedOrigin", each) for each in rule.origins)
        fields += "".join(leaf("ExposeHeader", each) for each in rule.exposed)
        fields += leaf("MaxAgeSeconds", str(rule.max_age_s)) if rule.max_age_s >= 0 else ""
        out.append(f"<CORSRule>{fields}</CORSRule>")
    return _document("CORSConfiguration", "".join(out))


def acl(owner: str, grants: Iterable[Grant]) -> bytes:
    """Return an access control list."""
    space = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    entries = []
    for identity, permission in grants:
        kind, name = ("Group", leaf("URI", identity)) if identity in GROUPS else ("CanonicalUser", _id(identity))
        grantee = f'<Grantee {space} xsi:type="{kind}">{name}</Grantee>'
        entries.append(f"<Grant>{grantee}{leaf('Permission', permission)}</Grant>")
    content = f"{_owner(owner)}<AccessControlList>{''.join(entries)}</AccessControlList>"
    return _document("AccessControlPolicy", content)


def plain(name: str) -> bytes:
    """Return a document without content, for a setting that was never made."""
    return _document(name, "")


def versioning(status: str) -> bytes:
    """Return whether a bucket keeps versions; "": never set."""
    return _document("VersioningConfiguration", leaf("Status", status) if status else "")


def payer() -> bytes:
    """Return the payer of requests: always the bucket's owner."""
    return _document("RequestPaymentConfiguration", leaf("Payer", "BucketOwner"))


def instant(ns: int) -> str:
    """Return an instant as S3 writes it, rounded down to the millisecond."""
    return f"{iso_second(ns // NS_PER_S)}.{ns % NS_PER_S // 1_000_000:03d}Z"


def _document(name: str, content: str, space: str = f" {_SPACE}") -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{space}>{content}</{name}>'.encode()


def _owner(dn: str, name: str = "Owner") -> str:
    return f"<{name}>{_id(dn)}</{name}>"


def _id(dn: str) -> str:
    return leaf("ID", dn) + leaf("DisplayName", dn)


def _encoded(text: str) -> str:
    return quote(text, safe=_SAFE)
