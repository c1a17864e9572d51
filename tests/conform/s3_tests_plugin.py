"""For pytest in ceph/s3-tests: its users remove only their own buckets.

Here a listing also shows a user the buckets that he may only read, which the suite would try to remove.
"""

from __future__ import annotations

from typing import Any

import s3tests.functional as suite  # type: ignore[import-not-found]
from botocore.exceptions import ClientError

_remove = suite.nuke_bucket


def _remove_own(client: Any, bucket: str) -> None:
    try:
        _remove(client, bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("AccessDenied", "NoSuchBucket"):
            raise


suite.nuke_bucket = _remove_own
