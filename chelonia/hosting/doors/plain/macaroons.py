"""POST of `application/macaroon-request`: a token for an entry, as clients of dCache and XRootD request one.

The answer is a share token of ours (`wire.shares`), which only this cluster reads. It has the requested activities,
path and end; no caveat can be added to it later.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import ADDING, CHANGING, READING, Share
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, place_of
from chelonia.hosting.net.http_messages import HttpResponse, Whole, read_whole

REQUEST: Final = "application/macaroon-request"
BODY_BYTES_MAX: Final = 16 * 1024
"""A request has a few caveats."""
DEFAULT_MS: Final = 3_600 * 1000
"""Lifetime of a token without `validity`: long enough for one transfer."""
ACTIVITIES: Final[dict[str, tuple[Action, ...]]] = {
    "DOWNLOAD": READING,
    "LIST": READING,
    "READ_METADATA": READING,
    "STAGE": READING,
    "UPLOAD": ADDING,
    "DELETE": (Action.DELETE, Action.REMOVE_ENTRY),
    "MANAGE": (Action.ADD_ENTRY, Action.REMOVE_ENTRY, Action.DELETE),
    "UPDATE_METADATA": (Action.MODIFY_METADATA,),
}
_DURATION: Final = re.compile(r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9})S)?)?")


class _MacaroonRequest(msgspec.Struct):
    caveats: tuple[str, ...] = ()
    validity: str = ""


async def post(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer the request for a token. Raises: BAD_REQUEST; as `share`."""
    body = await read_whole(exchange.request, Whole(BODY_BYTES_MAX))
    try:
        wanted = msgspec.json.decode(body or b"{}", type=_MacaroonRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        cause = f'a token is asked for with {{"caveats": ["activity:DOWNLOAD"], "validity": "PT1H"}} ({error})'
        raise CheloniaError(Kind.BAD_REQUEST, "POST", cause=cause) from None
    shared = await parts.files.share(exchange.call, _share(exchange.place, wanted))
    answer = {
        "macaroon": shared.token,
        "uri": {"target": shared.url, "targetWithMacaroon": shared.link},
        "expires_in": max(0, (shared.expires_ms - _now_ms()) // 1000),
    }
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    return HttpResponse(200, headers, msgspec.json.encode(answer) + b"\n")


def _share(place: LogicalName, wanted: _MacaroonRequest) -> Share:
    """Return the requested share. Raises: BAD_REQUEST for a caveat that is not known here: it would not hold."""
    actions: tuple[Action, ...] | None = None
    lifetime_ms = _duration_ms(wanted.validity) if wanted.validity else DEFAULT_MS
    for caveat in wanted.caveats:
        key, _, value = caveat.partition(":")
        match key:
            case "activity":
                given = _actions(value)
                actions = given if actions is None else tuple(each for each in actions if each in given)
            case "path":
                inner = place_of(value)
                if inner.parts[: len(place.parts)] != place.parts:
                    raise _bad(f"path:{value} does not lie in {place}")
                place = inner
            case "before":
                lifetime_ms = min(lifetime_ms, _before_ms(value))
            case _:
                raise _bad(f"caveat {caveat[:80]!r} is not known here; known are activity, path, before")
    return Share(place, (*READING, *CHANGING) if actions is None else actions, lifetime_ms, capped=True)


def _actions(text: str) -> tuple[Action, ...]:
    found: dict[Action, None] = {}
    for word in text.split(","):
        if word.strip() not in ACTIVITIES:
            raise _bad(f"activity {word[:40]!r} is none of {', '.join(ACTIVITIES)}")
        found |= dict.fromkeys(ACTIVITIES[word.strip()])
    return tuple(found)


def _duration_ms(text: str) -> int:
    """Read an ISO 8601 duration of days or less. Raises: BAD_REQUEST."""
    match = _DURATION.fullmatch(text)
    if not match or not any(match.groups()):
        raise _bad(f"validity {text[:40]!r} is no duration like PT1H or P1D")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000


def _before_ms(text: str) -> int:
    """Return the time until an instant (ISO 8601). Raises: BAD_REQUEST."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise _bad(f"before:{text[:40]} is no instant like 2030-01-31T12:00:00Z") from None
    end = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return int(end.timestamp() * 1000) - _now_ms()


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _bad(cause: str) -> CheloniaError:
    return CheloniaError(Kind.BAD_REQUEST, "POST", cause=cause)
