"""Quotas: bounds on the files of a user, or on a collection and all below it, and their use. Pure.

Bytes are the sizes of files, not of their copies. Files in the trash do not count.
Reasoning: docs/design/027-quotas.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from chelonia.core.ids import Dn, Guid
from chelonia.core.values import replace

UNBOUNDED = -1
UNCHANGED = -2
"""Instead of a bound in an order to set a quota: it stays as it is, whoever sets the other at the same time."""
assert max(UNBOUNDED, UNCHANGED) < 0, "neither is a bound"
EACH_USER: Final = Dn("*")
"""In place of a DN: each user without a quota of his own (the default quota). No user has this DN."""


class Quota(msgspec.Struct, frozen=True):
    """One quota: of a `user`, or of the `tree` that begins at a collection; the other is "".

    `bytes`, `files`: the most allowed, -1: any number; `UNCHANGED` in an order alone.
    """

    user: Dn = Dn("")
    tree: Guid = Guid("")
    bytes: int = UNBOUNDED
    files: int = UNBOUNDED

    @property
    def bounds_nothing(self) -> bool:
        """Whether it has no bound: setting it removes the quota."""
        return self.bytes < 0 and self.files < 0

    def over(self, before: Quota) -> Quota:
        """Return this quota with the bounds of another where its own are `UNCHANGED`."""
        size, files = (
            was if now == UNCHANGED else now for now, was in ((self.bytes, before.bytes), (self.files, before.files))
        )
        assert UNCHANGED not in (size, files), "what is stored is a bound, or none"
        return replace(self, bytes=size, files=files)

    @property
    def of(self) -> str:
        """The DN or GUID that it bounds."""
        return self.user or self.tree


class QuotaUse(msgspec.Struct, frozen=True):
    """A quota and its use. Until it is `counted`, the count of earlier files runs: `bytes` and `files` are those added
    since, and nothing is refused. `name`: a DN, or the Logical Name of the tree. `implied`: a user's, by the default
    quota, which itself has no use.
    """

    quota: Quota
    bytes: int
    files: int
    counted: bool
    name: str = ""
    implied: bool = False

    @property
    def bytes_left(self) -> int:
        """Bytes that may be added, -1: any number; 0 also where no file may be added."""
        if 0 <= self.quota.files <= self.files and self.counted:
            return 0
        return -1 if self.quota.bytes < 0 else max(self.quota.bytes - self.bytes, 0)

    def takes(self, size: int) -> bool:
        """Whether a new file of `size` bytes fits; -1: unknown, but not 0."""
        if not self.counted:
            return True
        no_file = 0 <= self.quota.files <= self.files
        return not no_file and (size == 0 or self.bytes_left < 0 or self.bytes_left >= max(size, 1))


def narrowest(uses: Iterable[QuotaUse]) -> QuotaUse | None:
    """Return the quota with the fewest bytes left, or None when none bounds bytes."""
    bound = [use for use in uses if use.bytes_left >= 0]
    return min(bound, key=lambda use: use.bytes_left, default=None)
