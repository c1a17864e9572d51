"""Verbs about the program itself, which start without the libraries of a connection."""

from __future__ import annotations

from collections.abc import Sequence

from chelonia.core.errors import CheloniaError, Kind
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.session import REMOTE, Session


async def delegation(_session: Session, _arguments: Arguments) -> None:
    """Refuse `credentialsDelegation`. Raises: NOT_SUPPORTED."""
    raise _undelegated("credentialsDelegation")


async def removal(_session: Session, _arguments: Arguments) -> None:
    """Refuse `removeCredentials`. Raises: NOT_SUPPORTED."""
    raise _undelegated("removeCredentials")


def _undelegated(op: str) -> CheloniaError:
    cause = "not supported by this command: clients of third-party copies delegate at the https address themselves"
    return CheloniaError(Kind.NOT_SUPPORTED, op, cause=cause)


async def version(session: Session, _arguments: Arguments) -> None:
    """Print the version (`version`)."""
    from importlib import metadata  # here and below: each verb loads what it needs

    number = metadata.version("chelonia")
    session.out.write(f"chelonia {number}")
    session.out.result(version=number)


async def completion(session: Session, arguments: Arguments) -> None:
    """Print the completion script of a shell or, for that script, the `next` word of a command line (`completion`)."""
    match tuple(arguments.operands):
        case ("bash",):
            session.out.write(*script("chelonia.bash").splitlines())
        case ("zsh",):
            session.out.write(*script("_chelonia").splitlines())
        case ("next", *words):
            await _next(session, words)
        case _:
            raise UsageError("completion is there for bash and zsh")


def script(name: str) -> str:
    """Return a completion script as shipped."""
    from importlib import resources

    return (resources.files("chelonia_clients") / "completion" / name).read_text("utf-8")


async def _next(session: Session, words: Sequence[str]) -> None:
    """Print completions, one a line; a last line `:files` when local files may follow."""
    from chelonia_clients.completing import next_word

    found = next_word(words)
    for word in found.words:
        session.out.write(word)
    if found.names:
        await _names(session, words[-1])
    if found.files:
        session.out.write(":files")


async def _names(session: Session, prefix: str) -> None:
    """Print names that begin with `prefix`, one a line, collections with a slash; none after any failure."""
    parent, slash, start = (prefix if prefix not in ("", *REMOTE) else f"{prefix}/").rpartition("/")
    try:
        async for entry in session.client().names(session.ln(parent + slash)):
            if entry.name.startswith(start):
                session.out.write(f"{parent}{slash}{entry.name}" + ("/" if entry.type == "collection" else ""))
    except CheloniaError:
        return
