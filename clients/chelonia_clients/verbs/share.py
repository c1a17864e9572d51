"""The verb `share`: makes, lists and revokes links that work in any browser, without a certificate."""

from __future__ import annotations

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.access_keys import LINK_PREFIX
from chelonia.core.rights.scopes import Shared
from chelonia.core.timing.clock import stamp
from chelonia.hosting.net.clock import SystemClock
from chelonia.wire.shares import id_of, password_of
from chelonia_clients.arguments import Arguments, UsageError, parse_duration
from chelonia_clients.client import new_call
from chelonia_clients.output import table
from chelonia_clients.session import Session
from chelonia_clients.verbs.s3 import VOID

DAY = "1d"


async def share(session: Session, arguments: Arguments) -> None:
    """Print a new link to each entry, or list or revoke links (`share`)."""
    if arguments.has("--list"):
        return await _list(session)
    if not arguments.operands:
        raise UsageError("share what? Name entries, or see --list")
    if arguments.has("--revoke"):
        return await _revoke(session, arguments)
    lifetime_ms = parse_duration(arguments.value("--for") or DAY)
    upload, write = arguments.has("--upload"), arguments.has("--write")
    rights = "read and change" if write else "read, and add to," if upload else "read"
    for operand in arguments.operands:
        ln = session.ln(operand)
        with session.out.trying(ln=ln):
            _write_link(session, ln, rights, await session.client().share(ln, lifetime_ms, upload=upload, write=write))


def _write_link(session: Session, ln: str, rights: str, shared: Shared) -> None:
    session.out.write(shared.link)
    session.out.notify(f"Whoever has this link may {rights} {ln} until {stamp(shared.expires_ms)}, as long as you may.")
    session.out.notify(f"chelonia share --revoke {id_of(shared.token).removeprefix(LINK_PREFIX)} revokes it.")
    password = password_of(shared.token)
    session.out.notify(f"Programs that ask to sign in: {shared.url}, any name, and the password {password}")
    session.out.result(
        ln=ln, link=shared.link, url=shared.url, token=shared.token, password=password, until_ms=shared.expires_ms
    )


async def _list(session: Session) -> None:
    now, rows = SystemClock().now_ms(), [("LINK", "CREATED", "EXPIRES", "FOR", "DN")]
    for key in await session.keys().list(new_call()):
        if key.id.startswith(LINK_PREFIX) and key.expires_ms > now:
            link = key.id.removeprefix(LINK_PREFIX)
            expires = VOID if key.void else stamp(key.expires_ms)
            rows.append((link, stamp(key.created_ms), expires, key.note, key.dn))
            session.out.result(id=link, dn=key.dn, created_ms=key.created_ms, until_ms=key.expires_ms, scope=key.note,
                               void=key.void)  # fmt: skip
    session.out.write(*table(rows))


async def _revoke(session: Session, arguments: Arguments) -> None:
    for operand in arguments.operands:
        link = (id_of(operand.rpartition("authz=")[2]) or operand).removeprefix(LINK_PREFIX)
        try:
            await session.keys().revoke(new_call(), LINK_PREFIX + link)
        except CheloniaError as error:
            if error.kind is Kind.NOT_FOUND:
                cause = "there is no such link of yours, or it has expired: see `chelonia share --list`"
                error = CheloniaError(Kind.NOT_FOUND, "share", link, cause)
            session.out.failure(error, id=link)
            continue
        session.out.write(f"revoked {link}: it is refused within some seconds")
        session.out.result(id=link, status="revoked")
