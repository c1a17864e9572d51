"""Checks a client's completion of an upload in parts against the parts that have arrived. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from chelonia.core.contents.parts import PartPage
from chelonia.wire.s3 import facts
from chelonia.wire.s3.checksums import ALGORITHMS, PREFIX, of_upload, to_base64
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import Facts
from chelonia.wire.s3.requests import CompletedPart


def completed(fields: Mapping[str, str], listed: Sequence[CompletedPart], etag: str, arrived: PartPage) -> Facts:
    """Return the facts of an object of these parts, with a checksum combined from theirs if all are known.

    The sealing, not this, refuses parts that are missing or differ.

    Args: `fields`: header fields, names in lower case; `listed`: the client's list. `etag`: the object's; `arrived`:
        all parts of the upload.
    Raises: S3Error for a checksum or a size that differs from the client's.
    """
    kept, stored = facts.facts_of(arrived.user), {part.number: part for part in arrived.parts}
    scheme = of_upload(kept.checksum)
    chosen = [stored[part.number] for part in listed if part.number in stored]
    pieces = [(part.checksum.removeprefix(f"{scheme.name}:"), part.size) for part in chosen]
    sums = {part.number: to_base64(value) for part, (value, _) in zip(chosen, pieces, strict=True) if _is_hex(value)}
    for part in listed:
        value = part.checksums.get(scheme.name, "")
        if value and sums.get(part.number, value) != value:
            raise S3Error("InvalidPart", f"part {part.number} has another {scheme.name.upper()} than was said")
    size = fields.get("x-amz-mp-object-size", "")
    if size and len(chosen) == len(listed) and size != str(sum(part.size for part in chosen)):
        raise S3Error("InvalidRequest", f"x-amz-mp-object-size is {size[:20]}, the parts have other bytes together")
    whole = scheme.joined(pieces) if len(sums) == len(listed) else ""
    _check(fields, scheme.name, scheme.kind, whole)
    return structs.replace(kept, checksum=(scheme.name, whole) if whole else ("", ""), etag=etag)


def _check(fields: Mapping[str, str], name: str, kind: str, whole: str) -> None:
    given = {each: fields[PREFIX + each] for each in ALGORITHMS if PREFIX + each in fields}
    if fields.get("x-amz-checksum-type", kind).upper() != kind or not set(given) <= {name}:
        cause = f"The upload was created using the {kind} {name} checksum; it is completed with that one"
        raise S3Error("InvalidRequest", cause)
    # A composite checksum may come without the number of parts behind it, as Amazon takes it.
    if whole and given.get(name, whole) not in (whole, whole.partition("-")[0]):
        raise S3Error("BadDigest", f"The {name.upper()} you specified did not match the calculated checksum")


def _is_hex(text: str) -> bool:
    return bool(text) and ":" not in text
