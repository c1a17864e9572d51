"""Verbs that move bytes: putFile, getFile, cp, cat.

A target that ends with a slash, or is a collection (a directory) already, means "into". Nothing is overwritten without
-f; an overwritten file is the old one or the new one at every moment.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shlex import quote

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia.core.values import replace
from chelonia.hosting.transfer.download import read
from chelonia.hosting.transfer.part_file import KEPT_BYTES
from chelonia.hosting.transfer.upload import UploadOptions
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.client import Client, described
from chelonia_clients.local_files import local_error, local_path, to_ln
from chelonia_clients.local_sources import expected_size, stream_of
from chelonia_clients.output import answering, printable
from chelonia_clients.parted import upload_stream
from chelonia_clients.paths import Paths
from chelonia_clients.progress import Bar, counting
from chelonia_clients.resuming import PARTED_BYTES
from chelonia_clients.session import Session, choice_of, is_remote, parallel_of, replicas_of
from chelonia_clients.steps import PARALLEL, TransferResult
from chelonia_clients.transfers import (
    TreeOptions,
    copy_file,
    copy_tree,
    facts_of,
    get_file,
    get_tree,
    listed_sizes,
    local_sizes,
    put_file,
    put_tree,
)


class Wishes(msgspec.Struct, frozen=True):
    """The options of a command."""

    recursive: bool
    tree: TreeOptions

    @property
    def would(self) -> str:
        """Words before the verb in a dry run's line about a file."""
        return "would be " if self.tree.dry_run else ""

    def options(self, bar: Bar) -> TreeOptions:
        """Return them as the transfers take them."""
        return replace(self.tree, progress=bar.advance)


async def put(session: Session, arguments: Arguments) -> None:
    """Upload files or directories (`putFile`)."""
    operands = list(arguments.operands)
    replicas = operands.pop() if len(operands) > 2 and operands[-1].isdigit() else ""
    *sources, target = operands
    wishes = _wishes(session, arguments, replicas)
    await _put_all(session, sources, session.ln(target), wishes)


async def get(session: Session, arguments: Arguments) -> None:
    """Download files or collections (`getFile`)."""
    operands = arguments.operands
    sources, target = (operands, ".") if len(operands) == 1 else (operands[:-1], operands[-1])
    await _get_all(session, sources, target, _wishes(session, arguments))


async def cp(session: Session, arguments: Arguments) -> None:
    """Copy from, to and inside the cluster (`cp`)."""
    *sources, target = arguments.operands
    wishes = _wishes(session, arguments)
    remote = [is_remote(text) for text in sources]
    if is_remote(target):
        local = [text for text, far in zip(sources, remote, strict=True) if not far]
        far_sources = [text for text, far in zip(sources, remote, strict=True) if far]
        if local:
            await _put_all(session, local, session.ln(target), wishes)
        if far_sources:
            await _copy_all(session, far_sources, session.ln(target), wishes)
    elif all(remote):
        await _get_all(session, sources, target, wishes)
    else:
        raise UsageError("write names in the cluster as chelonia:/path: one side of cp must be in the cluster")


async def cat(session: Session, arguments: Arguments) -> None:
    """Print files (`cat`)."""
    if session.out.as_json:
        raise UsageError("cat prints the file itself, so --json makes no sense")
    await _print_files(session, arguments.operands)


# --- up ---


async def _put_all(session: Session, sources: Sequence[str], target: str, wishes: Wishes) -> None:
    into = await _is_into(session, sources, target, wishes)
    for source in sources:
        if source == "-":
            await _put_stdin(session, target, wishes)
            continue
        with session.out.trying(source=printable(source)):
            path = local_path(source)
            ln = to_ln(target, [_name_of(path)]) if into else target.rstrip("/") or "/"
            await _put_one(session, path, ln, into, wishes)


async def _is_into(session: Session, sources: Sequence[str], target: str, wishes: Wishes) -> bool:
    """Whether uploads go into the target rather than become it. Raises: NOT_FOUND for several without a collection."""
    if len(sources) == 1 and target.endswith("/") and not wishes.recursive:
        return True  # the Bartender refuses when it is not there
    if await session.is_collection(target):
        return True
    if len(sources) > 1:
        raise CheloniaError(Kind.NOT_FOUND, "put", target, "several files go into a collection: make it first")
    return False


async def _put_one(session: Session, source: Path, ln: str, into: bool, wishes: Wishes) -> None:
    is_directory = await asyncio.to_thread(source.is_dir)
    if is_directory and not wishes.recursive:
        cause = "it is a directory; -r uploads it with all below it"
        error = CheloniaError(Kind.NOT_A_FILE, "put", printable(str(source)), cause)
        return session.out.failure(error, source=printable(str(source)), target=ln)
    total = -1 if is_directory else await asyncio.to_thread(_size_of, source)
    with Bar(printable(source.name), total, beside=session.bars) as bar:
        options = wishes.options(bar)
        if is_directory:
            going_on = _going_on(session, str(source), f"chelonia:{ln}", into)
            async with going_on as outcomes, counting(bar, local_sizes(source)):
                async for done in bar.tally(put_tree(session.client(), source, ln, options)):
                    _uploaded(session, done, wishes.would)
                    outcomes.add(done.error is None)
            return
        if options.dry_run:
            done = TransferResult("file", printable(str(source)), ln, max(0, total))
        else:
            async with _resumable(session, lambda: total >= PARTED_BYTES):
                done = await put_file(session.client(), source, ln, options)
    _uploaded(session, done, wishes.would)


async def _put_stdin(session: Session, ln: str, wishes: Wishes) -> None:
    if ln.endswith("/"):
        raise UsageError("what comes from stdin needs a whole name, not a collection")
    with Bar("stdin", beside=session.bars) as bar:
        wish = UploadOptions(wishes.tree.wanted, wishes.tree.replace, progress=bar.advance)
        try:
            source = stream_of(lambda: os.fdopen(sys.stdin.fileno(), "rb", closefd=False))
            stored = await upload_stream(session.client(), source, ln, wish)
            done = TransferResult("file", "-", ln, stored.size, remark=stored.note)
        except CheloniaError as error:
            done = TransferResult("file", "-", ln, error=error)
    _uploaded(session, done)


def _uploaded(session: Session, done: TransferResult, would: str = "") -> None:
    error = done.error
    if error is not None and error.kind is Kind.EXISTS and "-f" not in error.cause:
        cause = f"{error.cause or 'it is there already'}; -f overwrites it"
        done = replace(done, error=CheloniaError(error.kind, error.op, error.subject, cause))
    _report(session, done, f"'{done.source}' ({done.size} bytes) {would}uploaded to '{done.target}'.")


# --- down ---


async def _get_all(session: Session, sources: Sequence[str], target: str, wishes: Wishes) -> None:
    if target == "-":
        if session.out.as_json:
            raise UsageError("- prints the file itself, so --json makes no sense")
        return await _print_files(session, sources)
    path = local_path(target)
    is_directory = await asyncio.to_thread(path.is_dir)
    into = is_directory or (target.endswith("/") and not (wishes.recursive and len(sources) == 1))
    if into and not is_directory:
        raise CheloniaError(Kind.NOT_FOUND, "get", target, "there is no such local directory")
    if len(sources) > 1 and not into:
        raise UsageError(f"{target} is no directory, so only one file can be written to it")
    for source in sources:
        with session.out.trying(source=source, target=target):
            await _get_one(session, session.ln(source), path, into, wishes)


async def _get_one(session: Session, ln: str, path: Path, into: bool, wishes: Wishes) -> None:
    client = session.client()
    name = ln.rstrip("/").rpartition("/")[2]
    if into and name:
        path = path / name
    if wishes.recursive and await client.exists(ln) == "collection":
        with Bar(name or "/", beside=session.bars) as bar:
            going_on = _going_on(session, f"chelonia:{ln}", str(path), into)
            async with going_on as outcomes, counting(bar, listed_sizes(client, ln)):
                async for done in bar.tally(get_tree(client, ln, path, wishes.options(bar))):
                    _downloaded(session, done, wishes.would)
                    outcomes.add(done.error is None)
        return
    if not name:
        raise CheloniaError(Kind.NOT_A_FILE, "get", ln, "it is a collection; -r downloads it with all below it")
    if wishes.would:
        found = described(ln, "", await client.stat(ln))
        _downloaded(session, TransferResult("file", ln, printable(str(path)), max(0, found.size)), wishes.would)
        return
    with Bar(name, beside=session.bars) as bar:
        facts = asyncio.create_task(facts_of(client, ln))
        facts.add_done_callback(lambda task: None if task.cancelled() else bar.expect(task.result().size))
        try:
            async with _resumable(session, lambda: facts.done() and facts.result().size >= KEPT_BYTES):
                done = await get_file(client, ln, path, wishes.options(bar))
        finally:
            found = await facts
    if done.error is None and found.modified_s is not None:
        await asyncio.to_thread(_set_time, path, found.modified_s)
    elif done.error is not None and done.error.kind in (Kind.NOT_A_FILE, Kind.EXISTS) and found.type == "collection":
        cause = "it is a collection; -r downloads it with all below it"
        done = TransferResult("file", done.source, done.target, error=CheloniaError(Kind.NOT_A_FILE, "get", ln, cause))
    _downloaded(session, done)


async def _print_files(session: Session, sources: Sequence[str]) -> None:
    for source in sources:
        with session.out.trying():
            await _print_file(session, session.ln(source))


async def _print_file(session: Session, ln: str) -> None:
    try:
        async for chunk in read(session.client(), ln):
            with answering():
                await asyncio.to_thread(sys.stdout.buffer.write, chunk)
    except CheloniaError as error:
        if error.kind is Kind.NOT_A_FILE:
            cause = f"{error.cause}; `chelonia get -r` downloads one into a directory"
            raise CheloniaError(Kind.NOT_A_FILE, error.op, error.subject, cause) from error
        raise
    with answering():
        sys.stdout.buffer.flush()


def _downloaded(session: Session, done: TransferResult, would: str = "") -> None:
    _report(session, done, f"'{done.source}' ({done.size} bytes) {would}downloaded as '{done.target}'.")


# --- inside the cluster ---


async def _copy_all(session: Session, sources: Sequence[str], target: str, wishes: Wishes) -> None:
    client = session.client()
    into = target.endswith("/") or await session.is_collection(target)
    if len(sources) > 1 and not into:
        raise UsageError(f"{target} is no collection, so only one name can be copied to it")
    for source in sources:
        with session.out.trying(source=source, target=target):
            ln = session.ln(source).rstrip("/") or "/"
            new = to_ln(target, [ln.rpartition("/")[2]]) if into else target
            entry = described(ln, "", await client.stat(ln))
            with Bar(ln, entry.size, beside=session.bars) as bar:
                if entry.type != "collection":
                    _copied(session, await copy_file(client, ln, new, wishes.options(bar), entry.modified_s))
                    continue
                await _check_recursive(client, ln, new, wishes)
                async with counting(bar, listed_sizes(client, ln)):
                    async for done in bar.tally(copy_tree(client, ln, new, wishes.options(bar))):
                        _copied(session, done)


async def _check_recursive(client: Client, ln: str, new: str, wishes: Wishes) -> None:
    if not wishes.recursive:
        raise CheloniaError(Kind.NOT_A_FILE, "cp", ln, "it is a collection; -r copies it with all below it")
    source, target = [await _from_the_root(client, name) for name in (ln, new)]
    if target.startswith(source):
        raise CheloniaError(Kind.INVALID_TARGET, "cp", ln, "a collection is not copied into itself")


async def _from_the_root(client: Client, text: str) -> str:
    """The full name of a collection, with a slash at its end."""
    ln = parse_ln(text)
    return "/".join((await Paths(client).of(ln.start), *ln.parts, ""))


def _copied(session: Session, done: TransferResult) -> None:
    _report(session, done, f"'{done.source}' ({done.size} bytes) copied to '{done.target}'.")


# --- all of them ---


@asynccontextmanager
async def _going_on(session: Session, source: str, target: str, into: bool) -> AsyncIterator[set[bool]]:
    """Print, when a tree is interrupted, or comes in part (`outcomes`: whether entries came), how to continue.

    After failures only where the transfer was not `into` a place: there the same command would now mean a place in it.
    """
    outcomes: set[bool] = set()
    sync = f"chelonia sync {quote(source)} {quote(target)}"
    try:
        yield outcomes
    except asyncio.CancelledError:
        session.out.notify(f"chelonia: what is whole stays; to go on: {sync}")
        raise
    if len(outcomes) == 2 and not into:
        session.out.notify(f"chelonia: to try again what failed: {sync}")


@asynccontextmanager
async def _resumable(session: Session, is_large: Callable[[], bool]) -> AsyncIterator[None]:
    """Print, when a large file is interrupted, that the same command continues."""
    try:
        yield
    except asyncio.CancelledError:
        if is_large():
            session.out.notify("chelonia: what has arrived stays; the same command goes on")
        raise


def _report(session: Session, done: TransferResult, line: str) -> None:
    facts = {"type": done.type, "source": done.source, "target": done.target}
    session.remark(done.remark)
    if done.error is not None:
        session.out.failure(done.error, **facts)
    elif done.note:
        session.out.notify(f"chelonia: {done.source}: {done.note}")
        session.out.result(**facts, skipped=done.note)
    elif done.type == "file":
        session.out.write(f"'{done.source}' is there already." if done.same else line)
        session.out.result(**facts, size=done.size, **({"skipped": "it is there already"} if done.same else {}))
    else:
        session.out.result(**facts)


def _wishes(session: Session, arguments: Arguments, replicas: str = "") -> Wishes:
    return Wishes(arguments.has("--recursive"), tree_options(session, arguments, replicas))


def tree_options(session: Session, arguments: Arguments, replicas: str = "") -> TreeOptions:
    """Return the options of a command that moves files, and apply --limit; `replicas`: the operand.

    Raises: UsageError, BAD_CONFIG.
    """
    session.limit(arguments)
    return TreeOptions(
        parallel_of(arguments, PARALLEL),
        replicas_of(session, arguments, replicas),
        arguments.has("--force"),
        choice=choice_of(arguments),
        checksum=arguments.has("--checksum"),
        dry_run=arguments.has("--dry-run"),
    )


def _name_of(source: Path) -> str:
    try:
        return source.name or source.resolve().name
    except OSError as error:
        raise local_error(error, "put", source) from error


def _size_of(path: Path) -> int:
    try:
        return expected_size(path)
    except OSError:
        return -1  # opening it will report the error


def _set_time(path: Path, mtime_s: float) -> None:
    try:
        os.utime(path, (mtime_s, mtime_s))
    except OSError as error:
        raise local_error(error, "get", path) from error
