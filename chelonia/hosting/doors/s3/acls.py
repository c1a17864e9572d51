"""Access control lists by the S3 door: a policy of ours read and written as grants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Done, Failure, Listing, Look, Looked, Remove, Removing, Set, Want, When
from chelonia.core.rights.policy import with_rules
from chelonia.hosting.doors.plain.parts import apply, apply_all
from chelonia.hosting.doors.s3.parts import (
    AGAIN_MAX,
    Ask,
    S3Parts,
    check_bucket,
    in_own_name,
    present,
    read_xml,
    xml_answer,
)
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import acls, answers, apart, requests, versions
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import Facts

_OF_THE_DOOR: Final = (apart.COLLECTION, versions.COLLECTION)
"""Collections that are parts of keys, though a request that broke off may have made them permanent."""


async def get(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of the list of a bucket or an object."""
    _, entry = await present(parts, ask, Want.POLICY)
    owner = entry.attributes.owner
    return xml_answer(answers.acl(owner, acls.grants_of(entry.policy, owner)))


async def put(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT of the list of a bucket or an object: canned, or grant by grant."""
    grants, fields = await read_xml(ask, lambda body: requests.acl(body) if body.strip() else None), header_grants(ask)
    if (fields is None) is (grants is None):
        raise S3Error("InvalidRequest", "a list is canned (x-amz-acl), in x-amz-grant- fields, or stands in the body")
    await apply_grants(parts, ask, grants or fields or ())
    return HttpResponse(200, (), b"", 0)


def header_grants(ask: Ask) -> tuple[acls.Grant, ...] | None:
    """Return the list in a request's header fields, canned or by grantee; None: there is none. Raises: S3Error."""
    return acls.granted(ask.header)


def kept(ask: Ask, given: Facts) -> Facts:
    """Return the facts of an open upload, with the list that its object gets. Raises: S3Error."""
    grants, name = header_grants(ask), ask.header(acls.ACL)
    return structs.replace(given, acl=name, grants=() if name else grants or ())


def of_upload(upload: Facts) -> tuple[acls.Grant, ...] | None:
    """Return the list that the object of an upload gets, None: none. Raises: S3Error."""
    return acls.canned(upload.acl) if upload.acl else upload.grants or None


async def rules(
    parts: S3Parts, ask: Ask, entry: Looked | None, grants: tuple[acls.Grant, ...] | None
) -> dict[str, str] | None:
    """Return the rules that new bytes get by these grants, None: those that they would have. `entry`: the entry that
    they overwrite, unless it is kept. Raises: S3Error."""
    if grants is None:
        return None
    owner = ask.exchange.call.dn if entry is None or ask.final else entry.attributes.owner
    changes = acls.policy_of(await _to_persons(parts, ask, grants), owner, {})
    return {grantee: actions for grantee, actions in changes.items() if actions is not None}


def instead(rules: Mapping[str, str] | None, entry: Looked) -> dict[str, str | None]:
    """Return the changes that give a policy these rules; None: no changes."""
    if rules is None:
        return {}
    after = with_rules(entry.policy, rules)
    return {**dict.fromkeys(entry.policy.keys() - after.keys()), **rules}


async def _to_persons(parts: S3Parts, ask: Ask, grants: tuple[acls.Grant, ...]) -> tuple[acls.Grant, ...]:
    """Return grants with the name of the bucket's owner in them. Raises: AccessDenied."""
    if all(grantee != acls.BUCKET_OWNER for grantee, _ in grants):
        return grants
    bucket = await check_bucket(parts, ask)
    if bucket is None:
        raise S3Error("AccessDenied", "Access Denied: you may not read the bucket, so not see its owner")
    return tuple(
        (bucket.attributes.owner if grantee == acls.BUCKET_OWNER else grantee, name) for grantee, name in grants
    )


async def apply_grants(parts: S3Parts, ask: Ask, grants: tuple[acls.Grant, ...]) -> None:
    """Change the policy of an object or a bucket to what grants say; try again while others change it.
    Raises: ServiceUnavailable if they do so all the time."""
    for _ in range(AGAIN_MAX + 1):
        _, entry = await present(parts, ask, Want.POLICY)
        there = entry.attributes
        change = acls.policy_of(await _to_persons(parts, ask, grants), there.owner, entry.policy)
        try:
            if change:
                itself, when = LogicalName(there.guid, ()), When(version=there.version)
                await apply(parts.plain, ask.exchange.call, Set(itself, policy=change, when=when))
            break
        except CheloniaError as error:
            if error.kind not in (Kind.CONFLICT, Kind.PRECONDITION):
                raise
    else:
        raise S3Error("ServiceUnavailable", "its list is being changed all the time: send it again")
    if not ask.target.key:
        await _to_parts_of_keys(parts, ask)


async def _to_parts_of_keys(parts: S3Parts, ask: Ask) -> None:
    """Give a bucket's policy to the collections that are only parts of its keys: they had it when they were made.
    Raises: AccessDenied, ServiceUnavailable."""
    for _ in range(AGAIN_MAX + 1):
        bucket = await check_bucket(parts, in_own_name(parts, ask))
        assert bucket is not None, "this node may see it"
        # One that was made in a collection before that had the policy may have escaped the listing.
        if not await _given_below(parts, ask, bucket.policy):
            return
    raise S3Error("ServiceUnavailable", "collections of the bucket are being changed all the time: send it again")


async def _given_below(parts: S3Parts, ask: Ask, policy: Mapping[str, str]) -> bool:
    """Give a policy to the collections of a bucket that are only parts of keys; return whether any had another."""
    changed = False
    async for names in _parts_of_keys(parts, ask):
        places = [LogicalName(ask.bucket.start, (*ask.bucket.parts, *name.split("/"))) for name in names]
        changed = await _given(parts, ask, places, policy) or changed
    return changed


async def _parts_of_keys(parts: S3Parts, ask: Ask) -> AsyncIterator[list[str]]:
    """Yield, page by page, the paths of collections that are only parts of keys, as are all above them."""
    own, above, others, after, more = in_own_name(parts, ask).exchange.call, [""], "\0", "", True
    while more:
        page, names = await parts.plain.files.list(own, Listing(ask.bucket, after, below=True)), list[str]()
        for entry in page.entries:
            if entry.attributes.type != TYPE_COLLECTION or entry.name.startswith(others):
                continue
            while not entry.name.startswith(above[-1]):
                above.pop()
            if not (entry.attributes.implied or entry.name in _OF_THE_DOOR):
                others = f"{entry.name}/"  # all below has rights of its own
            elif entry.name[: entry.name.rfind("/") + 1] == above[-1]:  # else the one above has been made just now
                above.append(f"{entry.name}/")
                names.append(entry.name)
        yield names
        after, more = page.after, bool(page.after)
        after = others + apart.AFTER if after.startswith(others) else after


async def _given(parts: S3Parts, ask: Ask, places: list[LogicalName], policy: Mapping[str, str]) -> bool:
    """Give a policy to collections, which still go with the last key in them; return whether any had another."""
    own = in_own_name(parts, ask).exchange.call
    looks, changes = tuple([Look(place, Want.POLICY) for place in places]), list[Set]()
    for place, entry in zip(places, await parts.plain.files.look(own, looks) if looks else (), strict=True):
        if isinstance(entry, Failure):
            _check(ask, entry)
        elif dict(entry.policy) != policy and (entry.attributes.implied or place.name in _OF_THE_DOOR):
            rules = {**dict.fromkeys(entry.policy.keys() - policy.keys()), **policy}
            when = When(version=entry.attributes.version, guid=entry.attributes.guid)
            changes.append(Set(place, policy=rules, when=when))
    answers = await _applied(parts, ask.exchange.call, tuple(changes))
    for failure in (*answers, *await _implied_again(parts, ask, changes, answers)):
        if isinstance(failure, Failure):
            _check(ask, failure)
    return bool(changes)


async def _implied_again(
    parts: S3Parts, ask: Ask, changes: list[Set], answers: tuple[Done | Failure, ...]
) -> tuple[Done | Failure, ...]:
    """Take back that a change has made collections permanent, which is no matter of the caller's rights."""
    marks = [
        Remove(each.place, Removing.MARK, when=When(version=done.attributes.version, guid=done.attributes.guid))
        for each, done in zip(changes, answers, strict=True)
        if isinstance(done, Done) and done.attributes is not None
    ]
    return await _applied(parts, in_own_name(parts, ask).exchange.call, tuple(marks))


async def _applied(parts: S3Parts, call: Call, changes: tuple[Set | Remove, ...]) -> tuple[Done | Failure, ...]:
    return await apply_all(parts.plain, call, changes) if changes else ()


def _check(ask: Ask, failure: Failure) -> None:
    """Let a failure pass where others have changed the collection: it is listed again. Raises: all others."""
    if failure.kind is Kind.DENIED:  # the name is not told: the caller may not know of it
        raise S3Error("AccessDenied", "Access Denied: the list holds for the bucket, not for all collections in it")
    if failure.kind not in (Kind.NOT_FOUND, Kind.PRECONDITION, Kind.CONFLICT):
        raise failure.error(ask.operation)
