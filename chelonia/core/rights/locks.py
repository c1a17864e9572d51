"""Write locks of entries: their stored form, and their conflicts. Pure. Source: RFC 4918, section 6.

A lock covers an entry alone, or (`deep`) all below it too. It belongs to its taker, and ends by itself at most
`bounds.LOCK_MS_MAX` after the last refresh. An exclusive lock stands beside no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn, Ms
from chelonia.core.names import LogicalName


class Lock(msgspec.Struct, frozen=True):
    """One write lock.

    Args:
        token: the URI that its owner shows with each change.
        owner: the DN that took it: the caller's, whatever a request has here.
        deep: it covers all below a collection, also names that are yet to come.
        note: the owner's description of himself (the XML inside `DAV:owner`).
        lasts_ms: requested or remaining time; 0: the lock is released.
        root: the locked entry, where an answer has it.
    """

    token: str
    owner: Dn = Dn("")
    shared: bool = False
    deep: bool = False
    note: str = ""
    lasts_ms: int = 0
    root: LogicalName = LogicalName(ROOT, ())


def to_text(lock: Lock, now: Ms) -> str:
    """Return the stored form: `<exclusive|shared> <0|infinity> <until ms>`, its owner, his note, a line each."""
    first = ("shared" if lock.shared else "exclusive", "infinity" if lock.deep else "0", str(now + lock.lasts_ms))
    text = f"{' '.join(first)}\n{lock.owner}\n{lock.note}"
    assert lock.lasts_ms <= 0 or from_text(lock.token, text, now, lock.root) == lock, "a lock is read as it was written"
    return text


def from_text(token: str, text: str, now: Ms, root: LogicalName) -> Lock | None:
    """Return a stored lock, or None when it has expired or is malformed."""
    first, _, rest = text.partition("\n")
    owner, _, note = rest.partition("\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].isdecimal() or int(words[2]) <= now:
        return None
    return Lock(token, Dn(owner), words[0] == "shared", words[1] == "infinity", note, int(words[2]) - now, root)


def check_new(lock: Lock) -> None:
    """Refuse a lock out of bounds. Raises: BAD_REQUEST, TOO_LARGE."""
    if not 0 < lock.lasts_ms <= bounds.LOCK_MS_MAX or not lock.token.isprintable() or not 0 < len(lock.token) <= 200:
        cause = f"a lock has a token, and lasts 1 to {bounds.LOCK_MS_MAX} ms; refresh it to have it longer"
        raise CheloniaError(Kind.BAD_REQUEST, subject="lock", cause=cause)
    if len(lock.note.encode()) > bounds.LOCK_NOTE_BYTES_MAX:
        cause = f"its owner says more than {bounds.LOCK_NOTE_BYTES_MAX} bytes of himself"
        raise CheloniaError(Kind.TOO_LARGE, subject="lock", cause=cause)


def check_beside(lock: Lock, others: Iterable[Lock]) -> None:
    """Refuse a lock that cannot stand beside those that cover its entry. Raises: LOCKED."""
    for other in others:
        if other.token != lock.token and not (lock.shared and other.shared):
            raise locked(other)


def check_held(covering: Collection[Lock], tokens: Collection[str], dn: Dn) -> None:
    """Refuse a change of a locked entry unless one of the locks is the caller's, and shown. Raises: LOCKED."""
    if covering and not any(lock.token in tokens and lock.owner == dn for lock in covering):
        raise locked(next(iter(covering)))


def locked(lock: Lock) -> CheloniaError:
    """Return the refusal for another's lock."""
    cause = f"{lock.owner} has locked it for {-(-lock.lasts_ms // 1000)} s more; show its token, or wait"
    return CheloniaError(Kind.LOCKED, subject=str(lock.root), cause=cause)
