"""The cluster's seal over the facts of a blob when its upload began: proof, beside the bytes, of their owner.

HMAC-SHA256, hex, under `sys:cluster cluster/record_key` (hex). It covers the lines `chelonia seal 1`, blob, file GUID,
Logical Name, owner and wanted count. Each is UTF-8 with its length in bytes before it (`<n>:<text>\\n`). A rebuild from
bytes alone trusts a replica's record only with a right seal. Size and checksums are not sealed: the bytes show them.
"""

from __future__ import annotations

import hmac
from functools import lru_cache

from chelonia.core.ids import BlobId, Dn, Guid

_TITLE = "chelonia seal 1"


@lru_cache(maxsize=256)  # what one message began, the next one commits
def seal(record_key: str, blob: BlobId, guid: Guid, *, name: str, owner: Dn, wanted: int) -> str:
    """Seal the facts known when an upload begins.

    Args:
        record_key: hex; guid: the file that the blob will belong to.
    Returns: 64 hex digits.
    """
    lines = [text.encode() for text in (_TITLE, blob, guid, name, owner, str(wanted))]
    message = b"".join([b"%d:%b\n" % (len(line), line) for line in lines])
    return hmac.digest(bytes.fromhex(record_key), message, "sha256").hex()


def sealed(record_key: str, found: str, blob: BlobId, guid: Guid, *, name: str, owner: Dn, wanted: int) -> bool:
    """Return whether `found` is the seal over these facts."""
    right = seal(record_key, blob, guid, name=name, owner=owner, wanted=wanted)
    return hmac.compare_digest(right.encode(), found.encode())
