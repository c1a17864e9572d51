"""The `chelonia` command: finds the verb, runs it, and turns every end into an exit code and a line that helps.

No traceback reaches a user unless -v is given twice. Modules of verbs, and what they need, are loaded when called.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from chelonia.core.errors import CheloniaError, ExitCode, Kind
from chelonia.hosting.standard_files import open_standard_files
from chelonia_clients.arguments import GLOBAL, Arguments, Flag, UsageError, merge, parse, split_verb
from chelonia_clients.local_files import local_error
from chelonia_clients.output import AnswerLost, Output, answering
from chelonia_clients.verbs.finding import find_verb, suggest
from chelonia_clients.verbs.table import VERBS, Verb

if TYPE_CHECKING:
    from chelonia_clients.session import Session

GARBAGE_OBJECTS: Final = 50_000
"""Objects made between two garbage collections: loading makes as many, and drops none."""
EVERYDAY: Final = ("mkdir", "put", "get", "ls", "stat", "cp", "mv", "rm", "undelete", "sync", "share", "mount")
"""Verbs as most people type them; the list of all verbs has the original's names for some."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C; after another signal 128 and its number."""
BROKEN_PIPE: Final = 141
INSECURE: Final = "-w is not supported: TLS is always checked; `chelonia doctor` shows what is wrong with certificates"

Act = Callable[["Session", Arguments], Awaitable[None]]


class Terminated(KeyboardInterrupt):
    """An end of the command by another signal than Ctrl-C's (`number`), in the same way."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    gc.set_threshold(GARBAGE_OBJECTS)
    open_standard_files()
    out = Output(_standard_output(), sys.stderr)
    try:
        code = run(sys.argv[1:] if argv is None else argv, out)
        with answering():
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except AnswerLost as lost:
        _drop_stdout()
        out.failure(lost.error)
        return out.exit_code
    except KeyboardInterrupt:
        out.notify("chelonia: interrupted")
        return INTERRUPTED


def _standard_output() -> TextIO:
    """Standard output that takes any name, reports failed writes, and is flushed by line for readers of a pipe."""
    now = sys.stdout
    if isinstance(getattr(now, "buffer", None), io.RawIOBase):
        # Unbuffered (-u, PYTHONUNBUFFERED) Python tries one write alone, and loses the rest without an error.
        sys.stdout = os.fdopen(now.fileno(), "w", 1, now.encoding, now.errors, closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As on standard error: not every locale is UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    return sys.stdout


def _drop_stdout() -> None:
    """Discard output that is not written yet, so that the end of the process does not fail over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(argv: Sequence[str], out: Output) -> int:
    """Run one command on `out`; return its exit code."""
    words = list(argv)
    out.as_json = "--json" in (words[: words.index("--")] if "--" in words else words)  # for usage errors too
    word = ""
    try:
        before, word, rest = split_verb(argv)
        out.verbose = len(before.flags.get("--verbose", ()))
        return _dispatch(before, word, rest, out)
    except UsageError as error:
        out.notify(f"chelonia: {error.cause}")
        verb = find_verb(word) if word else None
        out.notify(f"Try `chelonia help{f' {verb.name}' if verb else ''}`.")
        return _refused(error, word, out)


def _refused(error: UsageError, word: str, out: Output) -> int:
    out.blame(error)
    out.finish(word)
    return out.exit_code


def _dispatch(before: Arguments, word: str, rest: Sequence[str], out: Output) -> int:
    if before.has("--version"):
        word, rest = "version", ()
    if not word:
        if not before.has("--help"):
            out.notify(*usage())
            return _refused(UsageError("no verb was given; `chelonia help` lists them"), word, out)
        out.as_json = False
        out.write(*usage())
        return 0
    verb = find_verb(word)
    if verb is None:
        raise UsageError(f"there is no verb {word!r}.{suggest(word)}")
    arguments, after = parse(rest, verb.flags, literal=verb.literal)
    options = merge(before, after)
    out.as_json = options.has("--json")
    out.verbose = len(options.flags.get("--verbose", ()))
    if options.has("--help"):
        out.as_json = False
        out.write(*usage_of(verb, arguments.operands))
        return 0
    if options.has("--insecure"):
        raise UsageError(INSECURE)
    least, most = verb.operands
    if len(arguments.operands) < least or (0 <= most < len(arguments.operands)):
        out.notify(*_usage(verb))
        cause = f"wrong number of arguments; usage: chelonia {verb.name} {verb.synopsis}".rstrip()
        return _refused(UsageError(cause), verb.name, out)
    from chelonia_clients.session import Session  # not above: help needs none of it

    names = arguments.operands if verb.names < 0 else arguments.operands[: verb.names]
    return _run_verb(verb, Session(options, out, os.environ, names), arguments)


def _run_verb(verb: Verb, session: Session, arguments: Arguments) -> int:
    module, _, name = verb.act.partition(":")
    act: Act = getattr(importlib.import_module(f"chelonia_clients.{module}"), name)
    out = session.out
    try:
        _loop(act, verb, session, arguments)
    except (BrokenPipeError, AnswerLost):
        raise
    except KeyboardInterrupt as error:
        out.notify("chelonia: interrupted")
        out.blame(CheloniaError(Kind.CANCELLED, verb.name, cause="interrupted"))
        out.exit_code = 128 + error.number if isinstance(error, Terminated) else INTERRUPTED
    except UsageError as error:
        out.notify(f"chelonia: {error.cause}")
        out.notify(*_usage(verb, arguments.operands))
        out.exit_code = int(ExitCode.USAGE)
        out.blame(error)
    except Exception as error:
        _failed(error, verb, out)
        if out.verbose > 1:
            out.finish(verb.name)
            raise
    out.finish(verb.name)
    return out.exit_code


def _failed(error: Exception, verb: Verb, out: Output) -> None:
    """Report the error that ended a verb, also in the document."""
    match error:
        case CheloniaError():
            out.failure(error)
        case OSError() if error.filename:
            out.failure(local_error(error, verb.name, str(error.filename)))
        case OSError():
            out.failure(CheloniaError(Kind.INTERNAL, verb.name, cause=error.strerror or str(error)))
        case _:
            cause = f"an error of this program, please report it: {error!r} (-v -v shows where)"
            out.failure(CheloniaError(Kind.INTERNAL, verb.name, cause=cause))


def _loop(act: Act, verb: Verb, session: Session, arguments: Arguments) -> None:
    ended: list[int] = []

    async def whole() -> None:
        _handle_signals(ended)
        try:
            expanded = await session.expand(arguments, verb.patterns)
            if expanded.operands or not arguments.operands:
                await act(session, expanded)
        finally:
            await session.close()

    import asyncio
    import logging

    import uvloop

    logging.basicConfig(level=logging.ERROR, format="chelonia: %(message)s")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(whole())
        except asyncio.CancelledError:
            if not ended:
                raise
            raise Terminated(ended[0]) from None


def _handle_signals(ended: list[int]) -> None:
    """Have SIGTERM and SIGHUP cancel the command's task, which leaves nothing half done. `ended`: gets the signal."""
    import asyncio
    import signal
    import threading

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "called in the command's task"

    def end(number: int) -> None:
        ended.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is signal.SIG_DFL:
            loop.add_signal_handler(number, end, number)


def usage() -> list[str]:
    """Return the lines of `chelonia help`."""
    lines = ["Usage: chelonia [-v] [-x] [-z <path>] [-b <URL>] [options] <verb> [<arguments>]", ""]
    lines += [f"Every day: {' '.join(EVERYDAY)}", "To begin:  setup doctor whoami", "", "Verbs:"]
    lines += [f"  {verb.name:<22} {verb.summary}" for verb in VERBS]
    lines += ["", "Options:"]
    lines += [f"  {flag.spelled:<22} {flag.help}" for flag in GLOBAL]
    lines += [
        "",
        "`chelonia help <verb>` explains a verb. Three letters of a verb are enough, unless it removes something.",
    ]
    lines += ["Exit codes: 0 ok, 1 other, 2 usage, 3 not found, 4 denied, 5 conflict, 6 quota, 7 network, 8 checksum."]
    return lines


def usage_of(verb: Verb, operands: Sequence[str] = ()) -> list[str]:
    """Return the lines of `chelonia help` for one verb, or for the forms of it that begin as `operands` do."""
    lines, topic = [*_usage(verb, operands), "", f"  {verb.summary}"], _topic(verb, operands)
    flags = [flag for flag in verb.flags if not topic or _is_of(flag, topic, _ways(verb, topic))]
    examples = [text for text in verb.examples if _begins(text.split(), (*verb.name.split(), *topic))] or verb.examples
    if flags:
        lines += ["", "Options:"]
    lines += [f"  {flag.spelled:<20} {flag.help}" for flag in flags]
    if examples:
        lines += ["", "Examples:", *(f"  {_example(text)}" for text in examples)]
    return lines


def _usage(verb: Verb, operands: Sequence[str] = ()) -> list[str]:
    """The forms of a verb, a line each: those that begin as `operands` do, or all."""
    first, *rest = (f"chelonia {verb.name} {way}".rstrip() for way in _ways(verb, _topic(verb, operands)))
    return [f"Usage: {first}", *(f"       {way}" for way in rest)]


def _ways(verb: Verb, topic: Sequence[str]) -> list[str]:
    return [way for way in verb.synopsis.split(" | ") if _begins(way.split(), topic)]


def _topic(verb: Verb, operands: Sequence[str]) -> Sequence[str]:
    """The first words of a command that choose among the forms of a verb."""
    return next((operands[:count] for count in range(len(operands), 0, -1) if _ways(verb, operands[:count])), ())


def _is_of(flag: Flag, topic: Sequence[str], ways: Sequence[str]) -> bool:
    """Whether an option is of these forms: they have it, or its help begins with what it is for."""
    named = any(word.strip("[]") in (flag.name, flag.short) for way in ways for word in way.split())
    owners = flag.help.partition(": ")[0].split(", ") if ": " in flag.help else ()
    return named or any(_begins(topic, owner.split()) or _begins(owner.split(), topic) for owner in owners)


def _begins(way: Sequence[str], operands: Sequence[str]) -> bool:
    return len(way) >= len(operands) and all(
        operand in word.split("|") for word, operand in zip(way, operands, strict=False)
    )


def _example(text: str) -> str:
    return text if "| chelonia" in text else f"chelonia {text}"


async def help_(session: Session, arguments: Arguments) -> None:
    """Print the usage of the command, of one verb, or of a topic of it (`help`)."""
    if not arguments.operands:
        session.out.write(*usage())
        return
    verb = find_verb(arguments.operands[0])
    if verb is None:
        raise UsageError(f"there is no verb {arguments.operands[0]!r}.{suggest(arguments.operands[0])}")
    session.out.write(*usage_of(verb, arguments.operands[1:]))


if __name__ == "__main__":
    sys.exit(main())
