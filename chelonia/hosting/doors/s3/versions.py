"""Versions by the S3 door: where a bucket keeps versions, overwritten and removed objects stay.

A new version is stored among the versions first, as a file of its own. Then one transact exchanges its name with the
key's current version: readers see one or the other. A write that breaks off before leaves a version that never had the
key. A removal makes a delete marker, then moves the current version beside it, if it is still the one seen.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, ROOT
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_SYMLINK
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    ANY,
    Attributes,
    Done,
    Failure,
    Look,
    Looked,
    Make,
    Move,
    Over,
    Remove,
    Removing,
    Set,
    Setting,
    Want,
    When,
)
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import apply, apply_all
from chelonia.hosting.doors.s3.parts import (
    MOVES_MAX,
    Ask,
    KeptVersion,
    S3Parts,
    bucket_state,
    check_bucket,
    check_writable,
    found,
    homes,
    in_own_name,
    kept,
    no_key,
    seen,
    seen_to_change,
    version_of,
)
from chelonia.wire.s3 import keys, versions
from chelonia.wire.s3.answers import KeyRemoved
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.versions import ENABLED, NULL, SUSPENDED

TRIES: Final = 24
"""Further tries of a change while others change the same key."""
_RACES: Final = (Kind.CONFLICT, Kind.EXISTS, Kind.NOT_FOUND, Kind.PRECONDITION)
_CROSSED: Final = (*_RACES, Kind.NO_PARENT, Kind.NOT_A_COLLECTION)
"""Errors after which the key's place, too, may be another."""
_REFUSED: Final = (Kind.DENIED, Kind.LOCKED)
"""Errors after which nothing has moved, and nothing will."""
MS_NS: Final = 1_000_000
_AHEAD_NS: Final = 86_400_000 * MS_NS
"""Most that another clock is ahead of ours: a later time was set to anything by a user, as through a mount."""
TAG: Final = 8
"""Characters at the end of an order, behind its instant."""

Headers = tuple[tuple[str, str], ...]


async def state_of(parts: S3Parts, ask: Ask) -> str:
    """Return whether a bucket keeps versions. Raises: NoSuchBucket."""
    (bucket,) = await parts.plain.files.look(ask.exchange.call, (Look(ask.bucket, Want.USER),))
    return await bucket_state(parts, ask, bucket)


async def staged(parts: S3Parts, ask: Ask, entry: Looked | None, tag: str = "") -> Ask:
    """Return the same request, about the first place of its new version, if the bucket keeps versions; `tag`: the end
    of its order."""
    if not ask.versioning:
        return ask
    order = await _order(parts, ask, entry, tag)
    version = order if ask.versioning == ENABLED else ""
    return replace(ask.at(place_of(ask, order)), final=ask.place, version=version)


def stored_as(ask: Ask, done: Done) -> Ask:
    """Return the request, about the very file that was stored: another may have its place when a message is late."""
    return replace(ask, guid=done.attributes.guid if done.attributes is not None else ROOT)  # that waits nowhere


async def settled(
    parts: S3Parts, ask: Ask, when: When = ANY, entry: Looked | None = None, *, shared: bool = False
) -> Headers:
    """Give a stored version its key, if it waits for it; return the header fields that name the version.

    `entry`: the entry that had the key when it was stored. `shared`: others may do the same, and remove it when their
    condition does not hold. Raises: PRECONDITION, NoSuchKey: then the version is gone; ConditionalRequestConflict.
    """
    if ask.final is not None:
        ask = await _exchanged(parts, ask, when, entry, shared=shared)
        if ask.versioning == SUSPENDED:
            await _drop_older_nulls(parts, ask, ask.place.name, when)
    return (("x-amz-version-id", ask.version),) if ask.version else ()


async def _exchanged(parts: S3Parts, ask: Ask, when: When, entry: Looked | None, *, shared: bool) -> Ask:
    """Exchange names with the entry that had the key when the new version got its order. A newer entry would get a
    place behind older versions. Returns: the request, about the place it has in the end."""
    final, is_newest = ask.final, True
    assert final is not None, "it waits for a key"
    for left in range(TRIES, -1, -1):
        try:
            ask = ask if is_newest else await _restaged(parts, ask, entry)
            await _named(parts, ask, final, entry)
            return ask
        except CheloniaError as error:
            if error.kind not in _CROSSED or not left:
                await _dropped(parts, ask, error)
                raise
        (final, entry), is_newest = await _place_now(parts, ask), await _is_first(parts, ask, ask.place)
        if await _waiting(parts, ask) is None:
            ask, waits, is_there = await _locate(parts, ask)
            is_there = is_there or (entry is not None and entry.attributes.guid == ask.guid)  # `_locate` knows no null
            may_be_gone = when == ANY and not (shared and ask.version)  # it had its key, or one newer took its place
            if not (waits or is_there or may_be_gone):
                raise _conflict()
            if not waits:
                return ask
        try:
            if entry is None and (when.present or when.etags):
                raise no_key(ask.target.key)
            when.require(final, entry.attributes if entry else None)
        except CheloniaError as error:
            await _dropped(parts, ask, error)
            raise
    raise AssertionError("the last try returns or raises")


async def _place_now(parts: S3Parts, ask: Ask) -> tuple[LogicalName, Looked | None]:
    """Return the place of the key by now, and its entry there, whoever may see it. Another key may have come that is
    part of this one, or of which this one is."""
    now, entry = await seen(parts, in_own_name(parts, ask), Want.USER, writes=True)
    return (now.apart, None) if now.marks else (now.place, entry)  # a version has bytes: it is no collection


async def _dropped(parts: S3Parts, ask: Ask, refusal: CheloniaError) -> None:
    """Remove a version that is refused its key, from its place by now. Raises: ConditionalRequestConflict, when it is
    not there: a removal of the newest version has given it its key."""
    if refusal.kind in (Kind.PRECONDITION, Kind.NOT_FOUND, Kind.EXISTS, Kind.CONFLICT, *_REFUSED):
        change = Remove(ask.place, Removing.KEY, when=When(guid=ask.guid))
        (answer,) = await apply_all(parts.plain, _makers(parts, ask), (change,))
        if isinstance(answer, Failure) and answer.kind in _RACES:
            raise _conflict()


def _conflict() -> S3Error:
    return S3Error("ConditionalRequestConflict", "the key was changed while this request was under way: send it again")


async def _locate(parts: S3Parts, ask: Ask) -> tuple[Ask, bool, bool]:
    """Find a version that is not in its place. Returns: the request about it, whether it waits, whether it exists.

    A removal of the newest version gives its key to the next; another completion may give it a newer order."""
    own, tag, before = in_own_name(parts, ask), ask.place.name[-TAG:], None
    for _ in range(MOVES_MAX if ask.version else 0):
        older = await kept(parts, own)
        each = next((each for each in older if each.version == ask.version), None)
        if each is not None:
            return ask.at(each.place), each.place.name.endswith(tag), True
        current = (await seen(parts, own, Want.USER))[0].current
        if current == ask.version:
            return ask, False, True
        if before == (current, older):
            break
        before = current, older  # it may have had its key only while the others were listed
    return ask, False, False


async def _named(parts: S3Parts, ask: Ask, final: LogicalName, entry: Looked | None) -> None:
    call = ask.exchange.call
    if entry is not None:
        await apply(parts.plain, call, Move(final, ask.place, Over.EXCHANGE, when=_pinned(entry.attributes)))
        return
    if call.dn == ANONYMOUS:
        await check_writable(parts, ask, final)
    await apply(parts.plain, _makers(parts, ask), Move(ask.place, final, parents=True, when=When(guid=ask.guid)))
    if await _is_elsewhere(parts, ask, final):
        back = Move(final, ask.place, parents=True, when=When(guid=ask.guid))
        await apply_all(parts.plain, _makers(parts, ask), (back,))  # a failure: it has moved on, and is looked for
        await remove_implied(parts, ask, final.parent)
        raise _busy(ask)
    if ask.place.parent.name != versions.COLLECTION:  # that one goes with the bucket
        await remove_implied(parts, ask, ask.place.parent)


async def _is_elsewhere(parts: S3Parts, ask: Ask, final: LogicalName) -> bool:
    """Return whether the key has a file in its other place, too. Of two requests one found its name taken by a longer
    key, and the other found it free again. One of the files would hide the other."""
    home = keys.home_of(ask.bucket, ask.target.key)
    if home is None or ask.target.key.endswith("/"):
        return False
    other = await _entry_at(parts, ask, home if final == ask.apart else ask.apart)
    return other is not None and other.attributes.type == TYPE_FILE


def _makers(parts: S3Parts, ask: Ask) -> Call:
    """Return the call of the maker of a waiting version, or of a marker. It is the maker's own, even if the signing key
    may only add to the bucket. `ANONYMOUS` owns nothing: this node acts on what his request has made."""
    call = ask.exchange.call
    if call.dn == ANONYMOUS:
        return in_own_name(parts, ask).exchange.call
    adds = any(scope.covers(Action.ADD_ENTRY, ask.bucket) for scope in call.scopes)
    return structs.replace(call, scopes=()) if adds else call


async def _entry_at(parts: S3Parts, ask: Ask, place: LogicalName) -> Looked | None:
    """Return the present entry, whoever may see it."""
    (entry,) = await parts.plain.files.look(in_own_name(parts, ask).exchange.call, (Look(place, Want.USER),))
    if isinstance(entry, Failure) and entry.kind is not Kind.NOT_FOUND:
        raise entry.error(ask.operation)
    return entry if isinstance(entry, Looked) else None


async def _waiting(parts: S3Parts, ask: Ask) -> Looked | None:
    """Return the stored version if it still waits, else None. Then an erasure has left it as the newest, so it has had
    its key. Or a null version of the same time has replaced it. Or another completion of the upload has put the entry
    there that had the key."""
    entry = await _entry_at(parts, ask, ask.place)
    if entry is None or ask.guid not in ("", entry.attributes.guid):
        return None
    return entry if version_of(entry.user) == (ask.version or NULL) else None


async def _restaged(parts: S3Parts, ask: Ask, entry: Looked | None) -> Ask:
    """Give a version that still waits for its key a newer order; its id stays as listings have shown it."""
    order, waits = await _order(parts, ask, entry, ask.place.name[-TAG:]), await _waiting(parts, ask)
    if waits is None:
        return ask
    place = place_of(ask, order)
    await apply(parts.plain, _makers(parts, ask), Move(ask.place, place, when=When(guid=waits.attributes.guid)))
    return ask.at(place)


async def removed(parts: S3Parts, ask: Ask, when: When = ANY) -> KeyRemoved:
    """Take the key away from its version; a delete marker has it from then on."""
    marker_id = ""
    for left in range(TRIES, -1, -1):
        here, entry = await seen_to_change(parts, ask, when=when)
        when.require(here.place, entry.attributes if entry else None)
        order = await _order(parts, here, entry)
        marker_id = marker_id or order  # listings may have shown it though it was taken back
        marker = marker_id if here.versioning == ENABLED else NULL
        mark = Make(place_of(ask, order), TYPE_SYMLINK, target=marker, parents=True)
        mark = replace(mark, default_of=keys.collection_of(ask.bucket, ask.target.key), within=ask.bucket)
        await apply(parts.plain, ask.exchange.call, mark)
        try:
            if entry is not None:
                await _demote(parts, here, entry, order)
            else:
                await _touch_newest(parts, here)
                if (await seen_to_change(parts, ask))[1] is not None:
                    raise _busy(ask)  # it came back to its key, before the marker was there
            if marker == NULL:
                await _drop_older_nulls(parts, here, f"{mark.place.name}-", when)
            if not await _followed(parts, here, order):
                await _promote(parts, here)  # the marker has been erased meanwhile
            return KeyRemoved(ask.target.key, marker=marker)
        except CheloniaError as error:
            if error.kind not in (*_CROSSED, *_REFUSED):
                raise  # the key's version may be behind the marker by now
            await _taken_back(parts, here, mark.place)
            if error.kind in _REFUSED or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _followed(parts: S3Parts, ask: Ask, order: str) -> bool:
    """Move what the key has in its other place behind the marker of this order, too, unless it is newer. Another door
    has written its name, or a directory was there before bytes. Returns: whether the marker is there."""
    call, since = in_own_name(parts, ask).exchange.call, versions.instant_of(order)
    others = [ask.at(place) for place in homes(call, ask.bucket, ask.target.key) if place != ask.place]
    looks = [Look(place_of(ask, order)), *(Look(other.place, Want.USER) for other in others)]
    there, *answers = await parts.plain.files.look(call, tuple(looks))
    for other, entry in zip(others, answers, strict=True):
        fits = isinstance(entry, Looked) and entry.attributes.type == (TYPE_COLLECTION if other.marks else TYPE_FILE)
        if not isinstance(entry, Looked) or not fits or entry.attributes.implied:
            continue
        other, behind = replace(other, current=version_of(entry.user)), versions.order_of(since - 1, order[-TAG:])
        if (versions.instant_of(other.current) or written_ns(parts, entry.attributes)) < since:
            with contextlib.suppress(CheloniaError):  # it stays, as if it had come since
                await _demote(parts, other, entry, behind)
    return isinstance(there, Looked)


async def _taken_back(parts: S3Parts, ask: Ask, marker: LogicalName) -> None:
    """Remove a marker that has not taken the key. Another removal, of the key's version, may have left the key to that
    marker. Then this node gives it to the version before: the marker's maker may have no right to."""
    await apply_all(parts.plain, _makers(parts, ask), (Remove(marker, Removing.KEY),))
    with contextlib.suppress(CheloniaError):
        await _promote(parts, in_own_name(parts, ask))


async def _touch_newest(parts: S3Parts, ask: Ask) -> None:
    """Change the newest version: a request that has seen it without a marker, and is about to give it its key
    (`_restore`), finds it changed."""
    own = in_own_name(parts, ask)
    each = next((each for each in await kept(parts, own) if not each.removed), None)
    if each is not None:
        seen_now = Setting(accessed_ns=parts.clock.now_ms() * MS_NS)
        change = Set(each.place, seen_now, when=When(guid=each.guid))
        (answer,) = await apply_all(parts.plain, own.exchange.call, (change,))
        if isinstance(answer, Failure) and answer.kind not in _RACES:  # those: it has its key, or is gone, as seen next
            raise answer.error(ask.operation)


async def _demote(parts: S3Parts, ask: Ask, entry: Looked, order: str) -> None:
    """Move the key's version behind the marker of this order; remove the null version, for a null marker."""
    when, call = _pinned(entry.attributes), ask.exchange.call
    if ask.marks or (ask.versioning == SUSPENDED and ask.current == NULL):
        await apply(parts.plain, call, Remove(ask.place, Removing.MARK if ask.marks else Removing.KEY, when=when))
        return
    await apply(parts.plain, call, Move(ask.place, place_of(ask, f"{order}-"), when=when, parents=True))
    await remove_implied(parts, ask, ask.place.parent)


async def remove_implied(parts: S3Parts, ask: Ask, above: LogicalName) -> None:
    """Remove a collection that may be empty now, if it is implied: for any caller, as a removal does."""
    own = in_own_name(parts, ask).exchange.call
    (entry,) = await parts.plain.files.look(own, (Look(above),))
    if isinstance(entry, Looked) and entry.attributes.implied:
        removal = Remove(above, Removing.MARK, when=_pinned(entry.attributes))  # no directory that comes meanwhile
        await apply_all(parts.plain, own, (removal,))


async def version_removed(parts: S3Parts, ask: Ask, version: str, when: When = ANY) -> KeyRemoved:
    """Remove one version, or a delete marker, for good; the newest that is left has the key then. `when`: on what goes.
    Raises: on a condition NoSuchVersion, PRECONDITION."""
    for left in range(TRIES, -1, -1):
        if when != ANY:
            _, there = await found(parts, replace(ask, query={**ask.query, "versionId": version}))
            when.require(ask.place, there.attributes)
        here, entry = await seen_to_change(parts, ask, writes=True)
        try:
            if entry is not None and here.current == version:
                await _remove_current(parts, here, entry, when)
                return KeyRemoved(ask.target.key, version)
            return await _remove_kept(parts, here, entry, version, when)
        except CheloniaError as error:
            if error.kind not in _CROSSED or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _remove_current(parts: S3Parts, ask: Ask, entry: Looked, when: When) -> None:
    newest, since = await kept(parts, in_own_name(parts, ask), 1), written_ns(parts, entry.attributes)
    if newest and ask.current == NULL:
        newest = await kept(parts, in_own_name(parts, ask))
        if when != ANY:  # one that has come since waits for the key: it is newer than what meets the condition
            newest = [each for each in newest if each.version != NULL or versions.instant_of(each.order) <= since]
        newest = await _drop_nulls(parts, ask, newest)
    when, call = _pinned(entry.attributes, when), ask.exchange.call
    if ask.marks:
        await apply(parts.plain, call, Remove(ask.place, Removing.MARK, when=when))
    elif newest and not newest[0].removed:
        await apply(parts.plain, call, Move(ask.place, newest[0].place, Over.EXCHANGE, when=when))
        removal = Remove(newest[0].place, Removing.KEY, when=When(guid=entry.attributes.guid))
        await apply(parts.plain, call, removal)
    else:
        await apply(parts.plain, call, Remove(ask.place, Removing.KEY, when=when))
        if newest and await _entry_at(parts, ask, newest[0].place) is None:
            await _promote(parts, ask)  # that marker has been erased meanwhile


async def _check_missing(parts: S3Parts, ask: Ask, older: list[KeptVersion], when: When) -> None:
    """Refuse to say that there is no such version, to a caller who may neither list versions nor write the key. So
    refuse while the key changes, and of a version that met a condition. `older`: those kept. Raises: DENIED, CONFLICT.
    """
    if await check_bucket(parts, ask) is None:
        await check_writable(parts, ask, ask.apart if ask.marks else ask.place)
    is_still = await _promote(parts, ask) == ask.current and await kept(parts, in_own_name(parts, ask)) == older
    if not is_still or when != ANY:
        raise _busy(ask)  # it may have its key again by now, or have had it while the others were listed


async def _remove_kept(parts: S3Parts, ask: Ask, entry: Looked | None, version: str, when: When) -> KeyRemoved:
    older = await kept(parts, in_own_name(parts, ask))
    at = next((n for n, each in enumerate(older) if each.version == version), -1)
    if at < 0:
        await _check_missing(parts, ask, older, when)
        return KeyRemoved(ask.target.key, version)
    if version == NULL:
        older = [*older[: at + 1], *await _drop_nulls(parts, ask, older[at + 1 :])]
    if entry is None and at == 0 and older[0].removed and len(older) > 1 and not older[1].removed:
        await _restore(parts, ask, older[1], older[0])
    await _erase(parts, ask, older[at], when)
    if not older[at].removed and (entry is not None or at):
        return KeyRemoved(ask.target.key, version)
    # Newer markers may have gone meanwhile. Or another null version has come to the key, and the one removed was to
    # take its place.
    if await _promote(parts, ask) == version == NULL:
        raise _busy(ask)
    return KeyRemoved(ask.target.key, version, marker=version if older[at].removed else "")


async def _promote(parts: S3Parts, ask: Ask) -> str:
    """Give the newest version its key, where no version has it and no marker is newer; try again while others change
    the key. Others then removed the current one and a marker behind it at the same time. Returns: the version that had
    the key before, "" for none."""
    for left in range(TRIES, -1, -1):
        here, entry = await seen_to_change(parts, ask, writes=True)
        newest = await kept(parts, in_own_name(parts, here), 1)
        if entry is not None or not newest or newest[0].removed:
            return here.current
        try:
            await _restore(parts, here, newest[0])
            return here.current
        except CheloniaError as error:
            if error.kind not in _CROSSED or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _restore(parts: S3Parts, ask: Ask, each: KeptVersion, marker: KeptVersion | None = None) -> None:
    """Give a version its key again; `marker`: the one about to go. Raises: CONFLICT, when the key was removed anew
    meanwhile, or has a version in its other place. Then the version stays or, also after a removal without
    `_touch_newest`, goes back, overwritten or not."""
    ask = ask.at(ask.apart) if ask.marks else ask  # a version has bytes: it is no collection
    own, call = in_own_name(parts, ask), ask.exchange.call

    async def newer() -> list[KeptVersion]:
        return [now for now in await kept(parts, own) if now.order <= each.order and now != marker]

    entry = await _entry_at(parts, ask, each.place)
    if entry is None or entry.attributes.guid != each.guid or any(now.removed for now in await newer()):
        raise _busy(ask)
    await apply(parts.plain, call, Move(each.place, ask.place, parents=True, when=_pinned(entry.attributes)))
    for _ in range(TRIES):
        found = await newer()
        if not (any(now.removed for now in found) or await _is_elsewhere(parts, ask, ask.place)):
            return
        place = next((now.place for now in found if now.guid == each.guid), ask.place)
        (back,) = await apply_all(parts.plain, call, (Move(place, each.place, when=When(guid=each.guid)),))
        if not (isinstance(back, Failure) and back.kind in _RACES):
            break
    await remove_implied(parts, ask, ask.place.parent)
    raise _busy(ask)


async def _is_first(parts: S3Parts, ask: Ask, place: LogicalName) -> bool:
    """Return whether the newest kept version is at this place, whoever may see it."""
    return [now.place for now in await kept(parts, in_own_name(parts, ask), 1)] == [place]


def _busy(ask: Ask) -> CheloniaError:
    return CheloniaError(Kind.CONFLICT, subject=str(ask.place), cause="versions of the key are being removed")


async def _erase(parts: S3Parts, ask: Ask, each: KeptVersion, when: When = ANY) -> None:
    """Remove a version. Raises: PRECONDITION when another has its place, or none: it may have its key."""
    change = Remove(each.place, Removing.KEY, when=replace(when, guid=each.guid))
    await apply(parts.plain, ask.exchange.call, change)


async def _drop_older_nulls(parts: S3Parts, ask: Ask, since: str, when: When) -> None:
    """Remove null versions of a key, from a name among the versions on: only the newest may stay. Those before that
    name wait for the key, or have come since. `when`: a change on a condition leaves those that wait behind that name,
    too. They are newer than the version that met it."""
    older = [each for each in await kept(parts, in_own_name(parts, ask)) if each.place.name >= since]
    if when != ANY:
        named = [each.order if each.removed else each.version for each in older]  # "null" has no instant
        last = max(map(versions.instant_of, named), default=0)  # when the key had another version, or none
        older = [each for each in older if each.place.name == since or versions.instant_of(each.order) <= last]
    await _drop_nulls(parts, ask, older, (Kind.NOT_FOUND, Kind.PRECONDITION, Kind.DENIED))


async def _drop_nulls(
    parts: S3Parts, ask: Ask, older: list[KeptVersion], stay: tuple[Kind, ...] = (Kind.DENIED,)
) -> list[KeptVersion]:
    """Remove null versions, of which writes that broke off may have left several; return the others. `stay`: errors
    after which one stays, mostly as the caller may not remove it."""
    for each in older:
        try:
            if each.version == NULL:
                await _erase(parts, ask, each)
        except CheloniaError as error:
            if error.kind not in stay:
                raise
    return [each for each in older if each.version != NULL]


def _pinned(attributes: Attributes, when: When = ANY) -> When:
    """Return the condition that a name still leads to the entry seen there, beside others."""
    return replace(when, version=attributes.version, guid=attributes.guid)


def removal_fields(outcome: KeyRemoved) -> Headers:
    """Return the header fields for the outcome of a removal."""
    fields = [("x-amz-version-id", outcome.version or outcome.marker)] if outcome.version or outcome.marker else []
    return (*fields, ("x-amz-delete-marker", "true")) if outcome.marker else tuple(fields)


def version_fields(ask: Ask, entry: Looked) -> Headers:
    """Return the header field with the version of an object that is read."""
    return (("x-amz-version-id", version_of(entry.user)),) if ask.versioning else ()


def copied_fields(source: Ask, entry: Looked) -> Headers:
    """Return the header field with the version of a copy's source."""
    return tuple(("x-amz-copy-source-version-id", version) for _, version in version_fields(source, entry))


async def _order(parts: S3Parts, ask: Ask, entry: Looked | None, tag: str = "") -> str:
    """Return the order of a new version: before all that the key has had, whatever clocks say."""
    before = [versions.instant_of(each.order) for each in await kept(parts, in_own_name(parts, ask), 1)]
    if entry is not None:  # one that came back to its key, or came to it late, is older than kept ones
        before += written_ns(parts, entry.attributes), versions.instant_of(version_of(entry.user))
    least = max(before, default=-MS_NS) + MS_NS
    return versions.order_of(max(parts.clock.now_ms() * MS_NS, least), tag or secrets.token_hex(4))


def written_ns(parts: S3Parts, attributes: Attributes) -> int:
    """Return the time at which a key's entry was written, in ns since the epoch: its own, unless that is far ahead."""
    ahead = attributes.modified_ns > parts.clock.now_ms() * MS_NS + _AHEAD_NS
    return attributes.created_ns if ahead else attributes.modified_ns


def place_of(ask: Ask, order: str) -> LogicalName:
    """Return the place of a kept version of a key."""
    return LogicalName(ask.bucket.start, (*ask.bucket.parts, *versions.path_of(ask.target.key, order)))
