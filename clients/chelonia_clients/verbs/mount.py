"""The verbs `mount` and `umount`: the namespace as a file system, by `chelonia_fuse`, an extra."""

from __future__ import annotations

import importlib
import logging
import sys
from dataclasses import asdict
from typing import Any

from chelonia.core.errors import CheloniaError, Kind
from chelonia_clients import connect
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.output import human_size, table
from chelonia_clients.session import Session


async def mount(session: Session, arguments: Arguments) -> None:
    """Mount a collection, or print the status of mounts (`mount`)."""
    commands = _commands()
    if arguments.has("--status"):
        await _status(session, commands, arguments)
        return
    if len(arguments.operands) != 2:
        raise UsageError("mount takes a collection and a directory of this machine; --status shows what is mounted")
    text, mountpoint = arguments.operands
    ln, options = session.ln(text), _options(arguments)
    if arguments.has("--background"):
        log = arguments.value("--log")
        words = [word for word in sys.argv[1:] if word not in ("--background", "--json")]
        session.out.write(commands.in_background(words, log))
        session.out.result(place=ln, mountpoint=mountpoint)
        return
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s chelonia: %(message)s", force=True)
    settings = session.settings()
    http = connect.open_http(connect.find(settings, session.environ).tls)
    live = sys.stderr.isatty() and not session.options.has("--no-progress")
    request = commands.Request(ln, mountpoint, options, session.out.write, live)
    async with http:
        await commands.mount(request, settings.bartender_urls(), http, settings.replicas)


async def umount(session: Session, arguments: Arguments) -> None:
    """End mounts, and return once all is committed (`umount`)."""
    for text in arguments.operands:
        with session.out.trying(mountpoint=text, committed=False):
            remark = await _commands().umount(text, lazy=arguments.has("--lazy"))
            if remark:
                session.out.notify(f"{text}: {remark}")
            session.out.result(mountpoint=text, committed=not remark, remark=remark)


async def _status(session: Session, commands: Any, arguments: Arguments) -> None:
    rows = [("mounted", "at", "files waiting", "conflicts", "cache", "process")]
    mountpoints = arguments.operands or commands.mounts()
    for mountpoint in mountpoints:
        with session.out.trying(mountpoint=mountpoint):
            facts = await commands.status(mountpoint)
            session.out.result(**facts)
            cache = f"{human_size(facts['cache_bytes'])} of {human_size(facts['cache_bytes_max'])}"
            counts = str(facts["waiting"]), str(facts["conflicts"])
            rows.append((facts["place"], facts["mountpoint"], *counts, cache, str(facts["pid"])))
    session.out.write(*(table(rows) if len(rows) > 1 else [] if mountpoints else ["nothing is mounted"]))
    if not arguments.operands:
        left = commands.stranded(_options(arguments))
        session.out.write(*map(str, left))
        session.out.document["stranded"] = [asdict(each) for each in left]


def _options(arguments: Arguments) -> str:
    return ",".join(arguments.flags.get("--options", ()))


def _commands() -> Any:
    """Load the mount by name: it is an extra, and the rest of the client works without it."""
    try:
        return importlib.import_module("chelonia_fuse.command")
    except ImportError as error:
        packages = "apt install fuse3 libfuse3-dev pkg-config gcc python3-dev"
        cause = (
            f"{error}; install it: {packages}, and in a checkout pip install '.[mount]'; a package needs fuse3 alone"
        )
        raise CheloniaError(Kind.NOT_SUPPORTED, "mount", cause=cause) from error
