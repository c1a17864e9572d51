"""Access control lists by the S3 door: a policy of ours read and written as grants."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Failure, Looked, Remove, Removing, Set, Want
from chelonia.core.rights.policy import with_rules
from chelonia.hosting.doors.plain.parts import apply, apply_all, keyed
from chelonia.hosting.doors.s3.parts import (
    AGAIN_MAX,
    Ask,
    S3Parts,
    check_bucket,
    found,
    read_xml,
    readable_bucket,
    xml_answer,
)
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import acls, answers, apart, requests, versions
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import Facts


async def get(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of the list of a bucket or an object."""
    entry = await _entry(parts, ask)
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
    """Change the policy of an object or a bucket to what grants say; try again while others change it."""
    call = keyed(ask.exchange.call)
    for left in range(AGAIN_MAX, -1, -1):
        entry = await _entry(parts, ask)
        change = acls.policy_of(await _to_persons(parts, ask, grants), entry.attributes.owner, entry.policy)
        try:
            if change:
                await apply(parts.plain, call, Set(LogicalName(entry.attributes.guid, ()), policy=change))
                call = keyed(call)  # further changes have a key of their own
                if not ask.target.key:
                    await _as_the_bucket(parts, ask, change)
            return
        except CheloniaError as error:
            if error.kind is not Kind.CONFLICT or not left:
                raise
        call = structs.replace(call, is_first=False)


async def _as_the_bucket(parts: S3Parts, ask: Ask, policy: Mapping[str, str | None]) -> None:
    """Give a bucket's policy to the collections it keeps apart, which still go with the last key in them."""
    places = [ask.bucket.child(name) for name in (apart.COLLECTION, versions.COLLECTION)]
    pairs = [(Set(place, policy=policy), Remove(place, Removing.MARK)) for place in places]
    changes = tuple(change for pair in pairs for change in pair)
    for answer in await apply_all(parts.plain, ask.exchange.call, changes):
        if isinstance(answer, Failure) and answer.kind is not Kind.NOT_FOUND:
            raise answer.error(ask.operation)


async def _entry(parts: S3Parts, ask: Ask) -> Looked:
    if ask.target.key:
        return (await found(parts, ask, Want.POLICY))[1]
    return await readable_bucket(parts, ask)
