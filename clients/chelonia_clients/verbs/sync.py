"""Verbs that compare a local tree with one in the cluster: sync, diff."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.values import replace
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.local_files import local_path
from chelonia_clients.mirroring import sync_down, sync_up
from chelonia_clients.output import human_size
from chelonia_clients.progress import Bar, counting
from chelonia_clients.session import Session, choice_of, is_remote
from chelonia_clients.steps import TransferResult
from chelonia_clients.transfers import TreeOptions, listed_sizes, local_sizes
from chelonia_clients.verbs.transfer import tree_options


async def sync(session: Session, arguments: Arguments) -> None:
    """Make a collection the same as a directory, or the other way (`sync`)."""
    source, target = arguments.operands
    if is_remote(source) == is_remote(target):
        both = "both sides are in the cluster, use cp -r" if is_remote(source) else "one side must be in the cluster"
        raise UsageError(f"{both}; names in the cluster are written chelonia:/path")
    up = is_remote(target)
    local, ln = (local_path(source), session.ln(target)) if up else (local_path(target), session.ln(source))
    ln = ln.rstrip("/") or "/"
    await (_check_directory("sync", local) if up else _check_collection("sync", session, ln))
    client, delete, tally = session.client(), arguments.has("--delete"), _Tally(dry=arguments.has("--dry-run"))
    with Bar(local.name or str(local), beside=None if tally.dry else session.bars) as bar:
        options = replace(tree_options(session, arguments), replace=True, progress=bar.advance)
        sizes = local_sizes(local) if up else listed_sizes(client, ln)
        work = partial(sync_up, client, local, ln) if up else partial(sync_down, client, ln, local)
        async with counting(bar, sizes):
            async for done in bar.tally(work(options, delete=delete)):
                _report(session, done, tally, "uploaded" if up else "downloaded")
    session.out.write(tally.line("uploaded" if up else "downloaded"))


async def _check_directory(verb: str, path: Path) -> None:
    if await asyncio.to_thread(path.is_dir):
        return
    if await asyncio.to_thread(path.exists):
        raise CheloniaError(Kind.NOT_A_COLLECTION, verb, str(path), f"{verb} is for directories; put uploads a file")
    raise CheloniaError(Kind.NOT_FOUND, verb, str(path), "there is no such local directory")


async def _check_collection(verb: str, session: Session, ln: str) -> None:
    found = await session.client().exists(ln)
    if not found:
        raise CheloniaError(Kind.NOT_FOUND, verb, ln, "there is no such collection")
    if found != "collection":
        cause = f"it is a {found}, and {verb} is for collections; get downloads a file"
        raise CheloniaError(Kind.NOT_A_COLLECTION, verb, ln, cause)


class _Tally:
    """Counts of the results of each kind."""

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        self.moved = self.bytes = self.same = self.removed = self.skipped = self.failed = 0

    def line(self, word: str) -> str:
        would = "would be " if self.dry else ""
        parts = [f"{self.moved} {would}{word} ({human_size(self.bytes)})", f"{self.same} unchanged"]
        parts += [f"{self.removed} {would}removed"] if self.removed else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(parts)


def _report(session: Session, done: TransferResult, tally: _Tally, word: str) -> None:
    out, would = session.out, "would be " if tally.dry else ""
    session.remark(done.remark)
    facts: dict[str, Any] = {
        "type": done.type, "source": done.source, "target": done.target, "dry_run": tally.dry,
    }  # fmt: skip
    if done.error is not None:
        tally.failed += 1
        out.failure(done.error, **facts)
    elif done.note:
        tally.skipped += 1
        out.notify(f"chelonia: {done.source}: {done.note}")
        out.result(**facts, action="skipped", skipped=done.note)
    elif not done.target:
        tally.removed += 1
        out.write(f"'{done.source}' {would}removed.")
        out.result(**facts, action="removed")
    elif done.type != "file":
        out.result(**facts, action="kept")
    elif done.same:
        tally.same += 1
        out.result(**facts, size=done.size, action="unchanged")
    else:
        tally.moved, tally.bytes = tally.moved + 1, tally.bytes + done.size
        out.write(
            f"'{done.source}' ({done.size} bytes) {would}{word} {'to' if word == 'uploaded' else 'as'} '{done.target}'."
        )
        out.result(**facts, size=done.size, action=word)


async def diff(session: Session, arguments: Arguments) -> None:
    """Print how a local directory and a collection differ (`diff`); exit code 1 where they do."""
    local, ln = local_path(arguments.operands[0]), session.ln(arguments.operands[1]).rstrip("/") or "/"
    await _check_directory("diff", local)
    await _check_collection("diff", session, ln)
    options = TreeOptions(
        replace=True, choice=choice_of(arguments), checksum=arguments.has("--checksum"), dry_run=True, listed=True
    )
    differing = 0
    async for done in sync_up(session.client(), local, ln, options, delete=True):
        if done.error is not None:
            session.out.failure(done.error, source=done.source, target=done.target)
            continue
        if done.same or done.note or (done.target and done.type != "file"):
            continue
        differing += 1
        _report_difference(session, done)
    if differing:
        session.out.exit_code = session.out.exit_code or 1
    elif not session.out.exit_code:
        session.out.write("no difference")


def _report_difference(session: Session, done: TransferResult) -> None:
    sign, where = ("-", "cluster") if not done.target else ("~", "both") if done.over else ("+", "local")
    session.out.write(f"{sign} {done.source}")
    session.out.result(where=where, source=done.source, target=done.target, type=done.type)
