"""The verb `share`: links that work in any browser, without a certificate."""

from __future__ import annotations

from chelonia.core.errors import CheloniaError
from chelonia.core.timing.clock import stamp
from chelonia_clients.arguments import Arguments, parse_duration
from chelonia_clients.session import Session

DAY = "1d"


async def share(session: Session, arguments: Arguments) -> None:
    """The verb `share`."""
    lifetime_ms = parse_duration(arguments.value("--for") or DAY)
    upload = arguments.has("--upload")
    for operand in arguments.operands:
        ln = session.ln(operand)
        try:
            shared = await session.client().share(ln, lifetime_ms, upload=upload)
        except CheloniaError as error:
            session.out.failure(error, f"Sharing '{ln}': {error}", ln=ln)
            continue
        session.out.say(shared.link)
        what = "read, and add to," if upload else "read"
        session.out.tell(f"Whoever has this link may {what} {ln} until {stamp(shared.expires_ms)}, as long as you may.")
        session.out.result(ln=ln, link=shared.link, token=shared.token, until_ms=shared.expires_ms)
