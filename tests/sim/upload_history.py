"""The answers about one upload in parts, checked against Amazon's documents.

However often it is completed, it becomes one object, of the parts that one of those requests has named. If it is
aborted, it never does. A repeated completion with the same parts, after a lost answer, returns the object while that is
there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from chelonia.wire.s3.versions import NULL
from tests.sim.key_history import DONE, FOREVER, MAYBE, REFUSED, WRITE, Content, Deed, KeyHistory
from tests.sim.model import Violation

Order = tuple[tuple[int, str], ...]
"""Number and etag of each part that completes an upload."""


@dataclass(eq=False, slots=True)
class Attempt:
    """One request about an upload; `order`: the parts that it names."""

    began: int
    order: Order = ()
    unless: str = ""
    ended: int = FOREVER
    told: str = MAYBE

    def perhaps(self, before: int) -> bool:
        """Whether it may have taken effect before an instant."""
        return self.told != REFUSED and self.began < before


class UploadHistory:
    """All requests and answers of one upload. `op`: the request that has opened it."""

    def __init__(self, key: KeyHistory, op: int, upload: str, now: Callable[[], int]) -> None:
        self.key, self.op, self.upload, self._now = key, op, upload, now
        self.parts: dict[int, bytes] = {}
        """The bytes of each acknowledged part."""
        self._bytes: dict[tuple[int, str], bytes] = {}
        self._puts, self._completes, self._aborts = list[Attempt](), list[Attempt](), list[Attempt]()
        self._deed: Deed | None = None

    @property
    def order(self) -> Order:
        """The acknowledged parts."""
        return tuple((number, _md5(data)) for number, data in sorted(self.parts.items()))

    @property
    def is_over(self) -> bool:
        """Whether it is certainly completed or aborted."""
        return any(each.told == DONE for each in (*self._completes, *self._aborts))

    @property
    def may_be_over(self) -> bool:
        """Whether it may be completed or aborted."""
        return any(each.told != REFUSED for each in (*self._completes, *self._aborts))

    def content(self, order: Order) -> Content:
        """The content of an object of these parts."""
        digests = b"".join(bytes.fromhex(etag) for _, etag in order)
        return Content(b"".join(self._bytes[part] for part in order), f"{_md5(digests)}-{len(order)}")

    # --- requests -----------------------------------------------------------------------------------------------------

    def put(self, number: int, data: bytes) -> Attempt:
        """Note that a part is being sent."""
        attempt = Attempt(self._now(), ((number, _md5(data)),))
        self._bytes[number, _md5(data)] = data
        self._puts.append(attempt)
        return attempt

    def abort(self) -> Attempt:
        self._aborts.append(Attempt(self._now()))
        return self._aborts[-1]

    def complete(self, order: Order, unless: str = "") -> Attempt:
        content, deed = self.content(order), self._deed
        if deed is None:
            deed = self._deed = self.key.begin(self.op, WRITE, (content,), unless=unless)
        elif deed.told == REFUSED:
            deed.began, deed.contents, deed.unless = self._now(), (content,), unless
        elif deed.told == MAYBE:
            deed.contents = tuple(dict.fromkeys((*deed.contents, content)))
        self.key.offer(deed.contents)
        if deed.told != DONE:
            deed.told, deed.ended = MAYBE, FOREVER
        self._completes.append(Attempt(self._now(), order, unless))
        return self._completes[-1]

    # --- answers ------------------------------------------------------------------------------------------------------

    def over(self, attempt: Attempt) -> None:
        """Note that no part of a request is under way any more."""
        attempt.ended, deed = self._now(), self._deed
        if deed is not None and deed.told == MAYBE and attempt in self._completes:
            deed.ended = max(each.ended for each in self._completes)

    def refused(self, attempt: Attempt) -> None:
        """Note that a request has certainly done nothing."""
        attempt.told, deed = REFUSED, self._deed
        if deed is not None and all(each.told == REFUSED for each in self._completes):
            deed.told = REFUSED

    def completed(self, attempt: Attempt, version: str, etag: str) -> None:
        """Note that it is an object. Raises: Violation."""
        attempt.told, deed = DONE, self._deed
        assert deed is not None
        self._require(etag == self.content(attempt.order).etag, f"it is told the etag {etag}")
        self._require(all(each.told != DONE for each in self._aborts), "it was given up")
        if deed.told == DONE:
            same = (deed.version, deed.contents[0].etag) == (version or NULL, etag)
            return self._require(same, f"it is told to be {version} {etag}, after {deed}")
        deed.ended, deed.unless = attempt.ended, attempt.unless
        self.key.done(deed, version, etag)

    def aborted(self, attempt: Attempt) -> None:
        """Note that it is aborted. Raises: Violation."""
        attempt.told = DONE
        self._require(all(each.told != DONE for each in self._completes), "it was completed, and is given up")

    def none_such(self, attempt: Attempt) -> None:
        """Note the answer that there is no such upload. Raises: Violation."""
        if attempt in self._completes and self._object_may_be_gone(attempt.ended):
            return  # doors repeat what was not answered: the first time may have made the object that is gone
        self.refused(attempt)
        given_up = any(each.perhaps(attempt.ended) for each in self._aborts)
        others = [each for each in self._completes if each.perhaps(attempt.ended)]
        if attempt in self._completes and not attempt.unless:
            # A condition that ceases to hold in the middle ends an upload: it is answered 409.
            others = [each for each in others if each.unless or each.order != attempt.order]
        self._require(given_up or bool(others), f"there is none, is told to {attempt}")

    def other_part(self, attempt: Attempt) -> None:
        """Note the answer that a part is another one. Raises: Violation."""
        self.refused(attempt)
        numbers = {number for number, _ in attempt.order}
        puts = [each for each in self._puts if each.perhaps(attempt.ended) and each.order[0][0] in numbers]
        self._require(any(each.order[0] not in attempt.order for each in puts), f"a part is another, is told {attempt}")

    def not_so(self, attempt: Attempt) -> None:
        """Note that a request was refused for its condition. Raises: Violation."""
        self.refused(attempt)
        deed = self._deed
        if deed is not None and deed.told == REFUSED:
            deed.unless = attempt.unless
            self.key.not_so(deed)

    def rested(self, *, is_open: bool) -> None:
        """Check whether it is listed as open, at the end. Raises: Violation."""
        self._require(not (is_open and self.is_over), "it is listed as open")
        self._require(is_open or self.may_be_over, "it is not listed as open")
        given_up = any(each.told == DONE for each in self._aborts)
        self._require(not (given_up and self._deed is not None and self._deed.since < FOREVER), "an object, given up")

    def _object_may_be_gone(self, before: int) -> bool:
        assert self._deed is not None
        return self.key.may_lack(self._deed, before)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            told = [f"{name} {each}" for name in ("_puts", "_completes", "_aborts") for each in getattr(self, name)]
            raise Violation(f"upload {self.upload} of {self.key.name} (#{self.op}): {what}\n  " + "\n  ".join(told))


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
