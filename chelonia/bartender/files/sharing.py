"""Tokens that stand for the caller, narrowed to one entry and some actions (`wire.shares`).

A token needs rights that its giver has now by his own name: the groups in his certificate do not travel with it. Each
use is decided on his rights of that moment. The token is kept as an access key that signs nothing, so that its giver
can revoke it. A `capped` one for 3 hours or less, as programs request, is not kept.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS, Judge, existing, parent_of_new
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, ROOT, Ms, RequestKey
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.ports.access_keys import LINK_PREFIX, AccessKey, SealedKey
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import NARROWED, Scope, Share, Shared
from chelonia.wire.shares import ShareToken, issue, kept_of, mark_of

ID_BYTES = 6
UNKEPT_MS = 3 * 3_600 * 1000
"""Longest lifetime of a token from a macaroon request that is not kept: one DN has at most 1 000 kept ones. gfal2
requests some for each transfer, by default for 3 hours to read and a little over 2 to write."""


async def share(ports: Ports, turn: ElementCall, ask: Share) -> Shared:
    """Return a new token. Raises: DENIED, NOT_FOUND, BAD_REQUEST, NOT_SUPPORTED, TOO_LARGE."""
    lifetime_ms = _lifetime_ms(ports, ask)
    (walked,) = await ports.librarian.traverse(turn.service.strongly(), (ask.place,), RIGHTS)
    _check(turn, ask)
    judge = Judge(msgspec.structs.replace(turn.user, attributes=()), "share")
    is_new = Action.ADD_ENTRY in ask.actions and not walked.complete
    found = parent_of_new(ask.place, walked) if is_new else existing(ask.place, walked)
    wanted = tuple(
        (action, found)
        for action in ((Action.ADD_ENTRY,) if is_new else ask.actions)
        if is_new or found.type == TYPE_COLLECTION or action in (Action.READ, Action.MODIFY_METADATA)
    )
    for choices in (wanted,) if ask.capped and wanted else ((each,) for each in wanted):
        judge.require_one(choices)
    now_ms, user = ports.clock.now_ms(), turn.user
    scope = Scope(tuple(dict.fromkeys(ask.actions)), ask.place.parts)
    expires_ms = Ms(now_ms + lifetime_ms)
    is_kept = not ask.capped or lifetime_ms > UNKEPT_MS
    link_id = (LINK_PREFIX if is_kept else "") + ports.ids.token(ID_BYTES).hex()
    token = issue(
        ports.settings.token_key, ShareToken(link_id, user.dn, user.credential, scope, Ms(now_ms), expires_ms)
    )
    if is_kept:  # without a request key: a repeated call makes another link
        link = AccessKey(link_id, user.dn, Ms(now_ms), expires_ms, str(scope), user.credential)
        kept = SealedKey(link, kept_of(token), mark_of(ports.settings.token_key))
        await ports.librarian.keep_access_key(turn.service.keyed(RequestKey("")), kept)
    path = "/".join(quote(part, safe="") for part in ask.place.parts)
    url = ports.settings.files_url.rstrip("/") + "/" + path
    if found.type == TYPE_COLLECTION and path and not is_new:
        url += "/"
    return Shared(token, url, f"{url}?authz={token}", expires_ms)


def _lifetime_ms(ports: Ports, ask: Share) -> int:
    settings = ports.settings
    most = settings.share_lifetime_ms_max
    if not settings.files_url:
        cause = "no plain door is known here: [[listen]] serves = ['files'], or [bartender.tuning] files_url"
        raise CheloniaError(Kind.NOT_SUPPORTED, subject=str(ask.place), cause=cause)
    if not most:
        cause = "share links are switched off here ([bartender.tuning] share_lifetime_ms_max = 0)"
        raise CheloniaError(Kind.NOT_SUPPORTED, subject=str(ask.place), cause=cause)
    if ask.lifetime_ms <= 0 or (ask.lifetime_ms > most and not ask.capped):
        cause = f"a link is good for 1 s to {most // 1000} s ({most / 86_400_000:.3g} days) here: ask for less"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ask.place), cause=cause)
    return min(ask.lifetime_ms, most)


def _check(turn: ElementCall, ask: Share) -> None:
    """Refuse unknown actions, and callers who may give no token. Raises: DENIED, BAD_REQUEST."""
    user = turn.user
    unknown = set(ask.actions) - NARROWED
    if not ask.actions or unknown:
        named = ", ".join(sorted(action.value for action in unknown)) or "nothing"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ask.place), cause=f"a token does not allow {named}")
    if user.dn == ANONYMOUS or user.via or ask.place.start != ROOT:
        cause = "tokens are given to who shows a certificate, for names that begin at the root"
        raise CheloniaError(Kind.DENIED, subject=str(ask.place), cause=cause)
