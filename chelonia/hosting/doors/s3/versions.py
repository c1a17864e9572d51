"""Versions by the S3 door: what is overwritten or removed stays, where its bucket keeps versions.

A new version is stored among the versions first, as a file of its own, and then exchanges its name with what has the
key, in one transact: readers see one or the other, and what breaks off before leaves a version that never had the key.
A removal makes a delete marker, then moves what has the key beside it, on condition that it is still the one seen.
"""

from __future__ import annotations

import secrets
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    ANY,
    Attributes,
    Failure,
    Look,
    Looked,
    Make,
    Move,
    Over,
    Remove,
    Removing,
    Want,
    When,
)
from chelonia.core.ports.librarian import TYPE_SYMLINK
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import apply, apply_all
from chelonia.hosting.doors.s3.parts import (
    Ask,
    KeptVersion,
    S3Parts,
    bucket_state,
    in_own_name,
    kept,
    no_key,
    seen,
    seen_to_change,
    version_of,
)
from chelonia.wire.s3 import versions
from chelonia.wire.s3.answers import KeyRemoved
from chelonia.wire.s3.versions import ENABLED, NULL, SUSPENDED

TRIES: Final = 24
"""Times that a change is asked for again while others change the same key."""
_RACES: Final = (Kind.CONFLICT, Kind.EXISTS, Kind.NOT_FOUND, Kind.PRECONDITION)
_REFUSED: Final = (Kind.DENIED, Kind.LOCKED)
"""Nothing has moved, and nothing will."""
MS_NS: Final = 1_000_000
_AHEAD_NS: Final = 86_400_000 * MS_NS
"""Further ahead of our clock no clock is: a time beyond was set by somebody, as a mount's users may, to anything."""

Headers = tuple[tuple[str, str], ...]


async def state_of(parts: S3Parts, ask: Ask) -> str:
    """Whether a bucket keeps versions. Raises: NoSuchBucket."""
    (bucket,) = await parts.plain.files.look(ask.exchange.call, (Look(ask.bucket, Want.USER),))
    return await bucket_state(parts, ask, bucket)


async def staged(parts: S3Parts, ask: Ask, there: Looked | None, tag: str = "") -> Ask:
    """The same request, about where its new version is stored first, if what has the key is to be kept; `tag`: how its
    order ends."""
    if ask.versioning != ENABLED and not (ask.versioning == SUSPENDED and ask.current not in ("", NULL)):
        return ask
    order = await _order(parts, ask, there, tag)
    version = order if ask.versioning == ENABLED else ""
    return replace(ask.at(place_of(ask, order)), final=ask.place, version=version)


async def settled(parts: S3Parts, ask: Ask, when: When = ANY) -> Headers:
    """Give what was stored its key, if it waits for it. Returns: the header fields that tell its version.

    Raises: PRECONDITION, NoSuchKey: then what was stored is gone.
    """
    if ask.final is not None:
        try:
            await _exchanged(parts, ask, ask.final, when)
        except CheloniaError as error:
            of_key = error.kind in (Kind.PRECONDITION, Kind.NOT_FOUND, *_REFUSED)
            if not of_key or not await _was_named(parts, ask, when):
                raise
    if ask.versioning == SUSPENDED:
        await _without_null(parts, ask)
    return (("x-amz-version-id", ask.version),) if ask.version else ()


async def _was_named(parts: S3Parts, ask: Ask, when: When) -> bool:
    """Take away what was stored, or tell that it is there no more and as good as written: who removed the newest
    version has given it its key, or a newer null version has followed it."""
    (gone,) = await apply_all(parts.plain, ask.exchange.call, (Remove(ask.place, Removing.KEY),))
    if not isinstance(gone, Failure) or gone.kind is not Kind.NOT_FOUND:
        return False
    return when == ANY or (await seen(parts, in_own_name(parts, ask), Want.USER))[0].current == ask.version


async def _exchanged(parts: S3Parts, ask: Ask, final: LogicalName, when: When) -> None:
    for left in range(TRIES, -1, -1):
        try:
            if not when.absent:
                await apply(parts.plain, ask.exchange.call, Move(final, ask.place, Over.EXCHANGE, when=when))
                return
        except CheloniaError as error:
            if error.kind is Kind.CONFLICT and left:
                continue
            if error.kind is not Kind.NOT_FOUND:
                raise
            if when.present or when.etags:
                raise no_key(ask.target.key) from error
        try:
            await apply(parts.plain, ask.exchange.call, Move(ask.place, final, parents=True))
            if ask.place.parent.name != versions.COLLECTION:  # that one goes with the bucket
                await _let_go(parts, ask, ask.place.parent)
            return
        except CheloniaError as error:
            if error.kind is Kind.EXISTS and when.absent:
                raise CheloniaError(
                    Kind.PRECONDITION, subject=str(final), cause="there is an entry of this name"
                ) from error
            if error.kind not in (Kind.EXISTS, Kind.CONFLICT, Kind.NO_PARENT) or not left:
                raise


async def removed(parts: S3Parts, ask: Ask, when: When = ANY) -> KeyRemoved:
    """Take the key away from what has it, and note that: a delete marker is what the key has from then on."""
    for left in range(TRIES, -1, -1):
        here, there = await seen_to_change(parts, ask)
        when.require(here.place, there.attributes if there else None)
        order = await _order(parts, here, there)
        marker = order if here.versioning == ENABLED else NULL
        mark = Make(place_of(ask, order), TYPE_SYMLINK, target=marker, parents=True)
        await apply(parts.plain, ask.exchange.call, mark)
        try:
            if there is not None:
                await _put_aside(parts, here, there, order)
            elif (await seen_to_change(parts, ask))[1] is not None:
                raise _busy(ask)  # it came back to its key, before the marker was there
            if marker == NULL:
                await _without_null(parts, ask, mark.place)
            return KeyRemoved(ask.target.key, marker=marker)
        except CheloniaError as error:
            if error.kind not in (*_RACES, *_REFUSED):
                raise  # what has the key may be behind the marker by now
            await apply_all(parts.plain, ask.exchange.call, (Remove(mark.place, Removing.KEY),))
            if error.kind in _REFUSED or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _put_aside(parts: S3Parts, ask: Ask, there: Looked, order: str) -> None:
    """What has the key goes behind the marker of this order, or (the null version, for a null marker) away."""
    when, call = _pinned(there.attributes), ask.exchange.call
    if ask.marks or (ask.versioning == SUSPENDED and ask.current == NULL):
        await apply(parts.plain, call, Remove(ask.place, Removing.MARK if ask.marks else Removing.KEY, when=when))
        return
    await apply(parts.plain, call, Move(ask.place, place_of(ask, f"{order}-"), when=when))
    await _let_go(parts, ask, ask.place.parent)


async def _let_go(parts: S3Parts, ask: Ask, above: LogicalName) -> None:
    """What a move has left goes, where only the key asked for it."""
    (there,) = await parts.plain.files.look(ask.exchange.call, (Look(above),))
    if isinstance(there, Looked) and there.attributes.implied:
        await apply_all(parts.plain, ask.exchange.call, (Remove(above, Removing.MARK),))


async def version_removed(parts: S3Parts, ask: Ask, version: str) -> KeyRemoved:
    """Take one version, or a delete marker, away for good; the newest that is left has the key then."""
    for left in range(TRIES, -1, -1):
        here, there = await seen_to_change(parts, ask, writes=True)
        try:
            if there is not None and here.current == version:
                await _current_removed(parts, here, there)
                return KeyRemoved(ask.target.key, version)
            return await _kept_removed(parts, here, there, version)
        except CheloniaError as error:
            if error.kind not in _RACES or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _current_removed(parts: S3Parts, ask: Ask, there: Looked) -> None:
    when, call = _pinned(there.attributes), ask.exchange.call
    newest = await kept(parts, in_own_name(parts, ask), 1)
    if ask.marks:
        await apply(parts.plain, call, Remove(ask.place, Removing.MARK, when=when))
    elif newest and not newest[0].removed:
        done = await apply(parts.plain, call, Move(ask.place, newest[0].place, Over.EXCHANGE, when=when))
        if done.attributes is None or done.attributes.guid != there.attributes.guid:
            raise _busy(ask)
        gone = Remove(newest[0].place, Removing.KEY, when=_pinned(done.attributes))
        await apply(parts.plain, call, gone)
    else:
        await apply(parts.plain, call, Remove(ask.place, Removing.KEY, when=when))
        if newest:
            await _given_on(parts, ask)


async def _kept_removed(parts: S3Parts, ask: Ask, there: Looked | None, version: str) -> KeyRemoved:
    known = await kept(parts, in_own_name(parts, ask))
    at = next((n for n, each in enumerate(known) if each.version == version), -1)
    if at < 0:
        again, _ = await seen_to_change(parts, ask)
        if again.current != ask.current:  # it may have come back to its key meanwhile
            raise _busy(ask)
        await _given_on(parts, ask)
        return KeyRemoved(ask.target.key, version)
    is_newest = at == 0 and known[0].removed
    if there is None and is_newest and len(known) > 1 and not known[1].removed:
        await _brought_back(parts, ask, known[1], known[0])
    await _gone(parts, ask, known[at])
    if is_newest:
        await _given_on(parts, ask)
    return KeyRemoved(ask.target.key, version, marker=version if known[at].removed else "")


async def _given_on(parts: S3Parts, ask: Ask) -> None:
    """Give the newest version its key, where nothing has it and no marker is newer: what had it, and a marker behind
    that, were removed at the same time."""
    here, there = await seen_to_change(parts, ask, writes=True)
    newest = await kept(parts, in_own_name(parts, here), 1)
    if there is None and newest and not newest[0].removed:
        await _brought_back(parts, here, newest[0])


async def _brought_back(parts: S3Parts, ask: Ask, each: KeptVersion, marker: KeptVersion | None = None) -> None:
    """Give a version its key again; `marker`: what is about to go. Raises: CONFLICT, when the key has been removed anew
    meanwhile."""
    done = await apply(parts.plain, ask.exchange.call, Move(each.place, ask.place, parents=True))
    newest = next(iter(await kept(parts, in_own_name(parts, ask), 1)), None)
    anew = newest is not None and newest.removed and newest.order <= each.order
    if done.attributes is not None and anew and newest != marker:
        await apply(parts.plain, ask.exchange.call, Move(ask.place, each.place, when=_pinned(done.attributes)))
        raise _busy(ask)


def _busy(ask: Ask) -> CheloniaError:
    return CheloniaError(Kind.CONFLICT, subject=str(ask.place), cause="versions of the key are being removed")


async def _gone(parts: S3Parts, ask: Ask, each: KeptVersion) -> None:
    """Remove a version. Raises: CONFLICT when another has its place, NOT_FOUND when none has: it may have its key."""
    (there,) = await parts.plain.files.look(ask.exchange.call, (Look(each.place),))
    if isinstance(there, Failure):
        raise there.error(ask.operation)
    if there.attributes.guid != each.guid:
        raise _busy(ask)
    gone = Remove(each.place, Removing.KEY, when=_pinned(there.attributes))
    await apply(parts.plain, ask.exchange.call, gone)


async def _without_null(parts: S3Parts, ask: Ask, but: LogicalName | None = None) -> None:
    """The null version of a key is the newest one alone, but for those that the caller may not remove."""
    for each in await kept(parts, in_own_name(parts, ask)):
        if each.version == NULL and each.place != but:
            try:
                await _gone(parts, ask, each)
            except CheloniaError as error:
                if error.kind not in (Kind.NOT_FOUND, Kind.DENIED):
                    raise


def _pinned(known: Attributes) -> When:
    """That a name still leads to what was seen there: numbers of versions are each file's own."""
    return When(version=known.version, etags=(known.etag,))


def told(outcome: KeyRemoved) -> Headers:
    """The header fields that tell what a removal has done."""
    fields = [("x-amz-version-id", outcome.version or outcome.marker)] if outcome.version or outcome.marker else []
    return (*fields, ("x-amz-delete-marker", "true")) if outcome.marker else tuple(fields)


def version_fields(ask: Ask, there: Looked) -> Headers:
    """The header field that tells the version of what is read."""
    return (("x-amz-version-id", version_of(there.user)),) if ask.versioning else ()


def copied_fields(source: Ask, there: Looked) -> Headers:
    """The header field that tells the version of what was copied."""
    return tuple(("x-amz-copy-source-version-id", version) for _, version in version_fields(source, there))


async def _order(parts: S3Parts, ask: Ask, there: Looked | None, tag: str = "") -> str:
    """The order of what comes now: before all that the key has had, whatever clocks say."""
    before = [versions.instant_of(each.order) for each in await kept(parts, in_own_name(parts, ask), 1)]
    if there is not None:  # what came back to its key, or came to it late, is older than what is kept
        before += written_ns(parts, there.attributes), versions.instant_of(version_of(there.user))
    least = max(before, default=-MS_NS) + MS_NS
    return versions.order_of(max(parts.clock.now_ms() * MS_NS, least), tag or secrets.token_hex(4))


def written_ns(parts: S3Parts, known: Attributes) -> int:
    """When what has a key was written, in ns since the epoch, by its own time unless that is far ahead."""
    ahead = known.modified_ns > parts.clock.now_ms() * MS_NS + _AHEAD_NS
    return known.created_ns if ahead else known.modified_ns


def place_of(ask: Ask, order: str) -> LogicalName:
    """Where a version of a key is kept."""
    return LogicalName(ask.bucket.start, (*ask.bucket.parts, *versions.path_of(ask.target.key, order)))
