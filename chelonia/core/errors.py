"""The one error value of Chelonia, and the code of each kind of error at every door.

`CheloniaError` is raised in-process and crosses the wire as (kind, op, subject, cause), so it arrives the same.
`TABLE` is total over `Kind` (a test proves it) and append-only: a kind's wire name is never reused.
The per-operation status strings of the original live in `core.status`, which chooses them by kind, never by text.
"""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass


class Kind(enum.Enum):
    """Kind of an error. The value is its name on the wire and in logs."""

    BAD_REQUEST = "bad-request"
    BAD_XML = "bad-xml"
    UNKNOWN_OPERATION = "unknown-operation"
    TOO_LARGE = "too-large"
    BAD_NAME = "bad-name"
    BAD_CONFIG = "bad-config"
    NOT_FOUND = "not-found"
    DENIED = "denied"
    UNTRUSTED = "untrusted"
    EXISTS = "exists"
    NO_PARENT = "no-parent"
    NOT_A_COLLECTION = "not-a-collection"
    NOT_A_FILE = "not-a-file"
    NOT_EMPTY = "not-empty"
    INVALID_TARGET = "invalid-target"
    IN_MOUNTPOINT = "in-mountpoint"
    NOTHING_TO_UNLINK = "nothing-to-unlink"
    MISSING_METADATA = "missing-metadata"
    CONFLICT = "conflict"
    NO_REPLICA = "no-replica"
    NO_SHEPHERD = "no-shepherd"
    NO_SPACE = "no-space"
    QUOTA = "quota"
    CHECKSUM = "checksum"
    INCOMPLETE = "incomplete"
    BAD_TICKET = "bad-ticket"
    EXPIRED = "expired"
    ALREADY_DONE = "already-done"
    NOT_ALIVE = "not-alive"
    NO_PROTOCOL = "no-protocol"
    BAD_RANGE = "bad-range"
    NOT_SUPPORTED = "not-supported"
    READ_ONLY = "read-only"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome-unknown"
    TIMEOUT = "timeout"
    NETWORK = "network"
    WRONG_CLUSTER = "wrong-cluster"
    CANCELLED = "cancelled"
    INTERNAL = "internal"
    BUSY = "busy"
    PRECONDITION = "precondition"
    LOCKED = "locked"
    OTHER_TREE = "other-tree"


class ExitCode(enum.IntEnum):
    """Exit codes of the `chelonia` command; scripts may rely on them."""

    OK = 0
    OTHER = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    CONFLICT = 5
    QUOTA = 6
    NETWORK = 7
    CHECKSUM = 8


@dataclass(frozen=True, slots=True)
class Meaning:
    """The codes of one kind at each door.

    Fields:
    - `http` status
    - `fault` SOAP 1.1 fault code (`Client` or `Server`), `s3` error code, and `errno`
    - `exit_code` of the CLI
    - `retryable`: the same request, with the same request key, may succeed later without a change
    """

    http: int
    fault: str
    s3: str
    errno: int
    exit_code: ExitCode
    retryable: bool = False


_C, _S = "Client", "Server"
_X = ExitCode

TABLE: dict[Kind, Meaning] = {
    Kind.BAD_REQUEST: Meaning(400, _C, "InvalidRequest", errno.EINVAL, _X.USAGE),
    Kind.BAD_XML: Meaning(400, _C, "MalformedXML", errno.EINVAL, _X.OTHER),
    Kind.UNKNOWN_OPERATION: Meaning(400, _C, "NotImplemented", errno.ENOSYS, _X.OTHER),
    Kind.TOO_LARGE: Meaning(413, _C, "EntityTooLarge", errno.EFBIG, _X.OTHER),
    Kind.BAD_NAME: Meaning(400, _C, "InvalidObjectName", errno.EINVAL, _X.USAGE),
    Kind.BAD_CONFIG: Meaning(500, _S, "InternalError", errno.EINVAL, _X.USAGE),
    Kind.NOT_FOUND: Meaning(404, _C, "NoSuchKey", errno.ENOENT, _X.NOT_FOUND),
    Kind.DENIED: Meaning(403, _C, "AccessDenied", errno.EACCES, _X.DENIED),
    Kind.UNTRUSTED: Meaning(403, _C, "AccessDenied", errno.EACCES, _X.DENIED),
    Kind.EXISTS: Meaning(409, _C, "OperationAborted", errno.EEXIST, _X.CONFLICT),
    Kind.NO_PARENT: Meaning(409, _C, "NoSuchKey", errno.ENOENT, _X.NOT_FOUND),
    Kind.NOT_A_COLLECTION: Meaning(409, _C, "InvalidRequest", errno.ENOTDIR, _X.CONFLICT),
    Kind.NOT_A_FILE: Meaning(409, _C, "InvalidRequest", errno.EISDIR, _X.CONFLICT),
    Kind.NOT_EMPTY: Meaning(409, _C, "BucketNotEmpty", errno.ENOTEMPTY, _X.CONFLICT),
    Kind.INVALID_TARGET: Meaning(409, _C, "InvalidRequest", errno.EINVAL, _X.CONFLICT),
    Kind.IN_MOUNTPOINT: Meaning(409, _C, "InvalidRequest", errno.EXDEV, _X.CONFLICT),
    Kind.NOTHING_TO_UNLINK: Meaning(409, _C, "InvalidRequest", errno.EBUSY, _X.CONFLICT),
    Kind.MISSING_METADATA: Meaning(400, _C, "InvalidRequest", errno.EINVAL, _X.USAGE),
    Kind.CONFLICT: Meaning(409, _C, "OperationAborted", errno.EAGAIN, _X.CONFLICT, retryable=True),
    Kind.NO_REPLICA: Meaning(503, _S, "ServiceUnavailable", errno.EIO, _X.OTHER, retryable=True),
    Kind.NO_SHEPHERD: Meaning(503, _S, "ServiceUnavailable", errno.ENOSPC, _X.OTHER, retryable=True),
    Kind.NO_SPACE: Meaning(507, _S, "InsufficientStorage", errno.ENOSPC, _X.OTHER),
    Kind.QUOTA: Meaning(507, _C, "QuotaExceeded", errno.EDQUOT, _X.QUOTA),
    Kind.CHECKSUM: Meaning(400, _C, "BadDigest", errno.EIO, _X.CHECKSUM),
    Kind.INCOMPLETE: Meaning(400, _C, "IncompleteBody", errno.EIO, _X.NETWORK, retryable=True),
    Kind.BAD_TICKET: Meaning(403, _C, "AccessDenied", errno.EACCES, _X.DENIED),
    Kind.EXPIRED: Meaning(403, _C, "ExpiredToken", errno.ESTALE, _X.DENIED),
    Kind.ALREADY_DONE: Meaning(409, _C, "OperationAborted", errno.EALREADY, _X.CONFLICT),
    Kind.NOT_ALIVE: Meaning(503, _S, "ServiceUnavailable", errno.EIO, _X.OTHER, retryable=True),
    Kind.NO_PROTOCOL: Meaning(400, _C, "InvalidRequest", errno.EPROTONOSUPPORT, _X.USAGE),
    Kind.BAD_RANGE: Meaning(416, _C, "InvalidRange", errno.EINVAL, _X.OTHER),
    Kind.NOT_SUPPORTED: Meaning(501, _C, "NotImplemented", errno.ENOTSUP, _X.OTHER),
    Kind.READ_ONLY: Meaning(503, _S, "ServiceUnavailable", errno.EROFS, _X.OTHER, retryable=True),
    Kind.UNAVAILABLE: Meaning(503, _S, "ServiceUnavailable", errno.EAGAIN, _X.NETWORK, retryable=True),
    Kind.OUTCOME_UNKNOWN: Meaning(503, _S, "ServiceUnavailable", errno.EAGAIN, _X.NETWORK, retryable=True),
    Kind.TIMEOUT: Meaning(408, _C, "RequestTimeout", errno.ETIMEDOUT, _X.NETWORK, retryable=True),
    Kind.NETWORK: Meaning(502, _S, "ServiceUnavailable", errno.ECONNRESET, _X.NETWORK, retryable=True),
    Kind.WRONG_CLUSTER: Meaning(403, _C, "AccessDenied", errno.EACCES, _X.DENIED),
    Kind.CANCELLED: Meaning(499, _C, "RequestTimeout", errno.ECANCELED, _X.OTHER, retryable=True),
    Kind.INTERNAL: Meaning(500, _S, "InternalError", errno.EIO, _X.OTHER),
    Kind.BUSY: Meaning(503, _S, "SlowDown", errno.EBUSY, _X.NETWORK, retryable=True),
    Kind.PRECONDITION: Meaning(412, _C, "PreconditionFailed", errno.ESTALE, _X.CONFLICT),
    Kind.LOCKED: Meaning(423, _C, "OperationAborted", errno.EBUSY, _X.CONFLICT),
    Kind.OTHER_TREE: Meaning(409, _C, "InvalidRequest", errno.EXDEV, _X.CONFLICT),
}


class CheloniaError(Exception):
    """The one error value: the operation, the kind of failure, its subject and its cause.

    Args:
        kind: kind of the failure; decides every door's code (`TABLE`).
        op: the operation attempted, as users name it (`putFile`, `transact`); may be empty.
        subject: the thing it failed on (a Logical Name, id or file); safe to show to the caller.
        cause: one sentence that names the reason and, where there is one, the cure.
    """

    def __init__(self, kind: Kind, op: str = "", subject: str = "", cause: str = "") -> None:
        super().__init__(kind, op, subject, cause)
        self.kind = kind
        self.op = op
        self.subject = subject
        self.cause = cause

    @property
    def meaning(self) -> Meaning:
        """The row of `TABLE` for this error's kind."""
        return TABLE[self.kind]

    def __str__(self) -> str:
        """One line: `op: subject: kind: cause`, empty parts left out."""
        return ": ".join(part for part in (self.op, self.subject, self.kind.value, self.cause) if part)


def kind_from_wire(name: str) -> Kind:
    """Return the kind called `name` on the wire; an unknown name (a newer peer) reads as `INTERNAL`."""
    try:
        return Kind(name)
    except ValueError:
        return Kind.INTERNAL
