"""Quotas: `quota` shows those that bind the user; `admin quota` sets, lists, removes and recounts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chelonia.core.cluster.quotas import EACH_USER, UNBOUNDED, UNCHANGED, Quota, QuotaUse
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.core.names import parse_ln
from chelonia.core.values import replace
from chelonia_clients.arguments import Arguments, UsageError, parse_count, parse_size
from chelonia_clients.output import counted, human_size, table
from chelonia_clients.session import Session
from chelonia_clients.verbs.fsck import guid_of


async def quota(session: Session, arguments: Arguments) -> None:
    """Print the quotas that apply to the user, and their use (`quota`)."""
    for operand in arguments.operands or ("/",):
        ln = session.ln(operand)
        with session.out.trying(ln=ln):
            await _require_there(session, ln)
            space = await session.client().space(ln)
            if space.quotas:
                _show(session, space.quotas, human=arguments.has("--human"), ln=ln)
                continue
            total, free = space.of_files(1)
            session.out.write(f"no quota applies to you below {ln}; {human_size(free)} of {human_size(total)} are free")
            session.out.notify("that is for all copies of all files, on all Shepherds")
            session.out.result(ln=ln, total=total, free=free)


async def _require_there(session: Session, ln: str) -> None:
    """Raises: NOT_FOUND when the name is not there: the answer would be the user's own quota."""
    try:
        await session.client().stat(ln)
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise


async def admin_quota(session: Session, arguments: Arguments, words: Sequence[str]) -> None:
    """List, set, remove or recount quotas (`admin quota ...`)."""
    administrator = session.administrator()
    match tuple(words):
        case ("list",):
            uses = sorted(await administrator.quotas(), key=lambda use: (not use.quota.tree, use.quota.user, use.name))
            if not uses:
                session.out.notify("there are no quotas; `admin quota set <DN>|<LN>|default --bytes 10G` sets one")
            _show(session, uses, human=True)
        case ("set", name):
            if not (arguments.has("--bytes") or arguments.has("--files")):
                raise UsageError("admin quota set takes --bytes SIZE, --files N, or both")
            use = await administrator.set_quota(_bounded(await _named(session, name), arguments))
            session.out.write(f"{_name(use)}: {_format_quota(use.quota)}")
            if not use.counted:
                session.out.notify("what is there already is being counted; until then nothing is refused")
            session.out.result(**_facts(use))
        case ("remove", name):
            wanted = await _named(session, name)
            use = await administrator.set_quota(wanted)
            left = f"has {_format_quota(use.quota)}, as each user" if use.implied else "has no quota any more"
            session.out.write(f"{_name(use)} {left}")
            session.out.result(**_facts(use))
        case ("recount",):
            await administrator.recount_quotas()
            session.out.write("all is counted anew; what is found wrong is set right, and stands in a Librarian's log")
            session.out.result(status="counting")
        case ("set" | "remove" as word, *_):
            raise UsageError(f"admin quota {word} takes whose: one DN, one collection, or default")
        case words:
            raise UsageError(f"admin quota {' '.join(words)}: no such command, or the wrong number of arguments")


async def _named(session: Session, name: str) -> Quota:
    """The quota of `default`, a DN (begins with a slash and has `=` in its first part), ANONYMOUS, or a collection.

    Raises: UsageError for a DN without its slash, BAD_NAME, NOT_FOUND.
    """
    if name == "default":
        return Quota(user=EACH_USER)
    if name == ANONYMOUS or (name.startswith("/") and "=" in name.split("/")[1]):
        return Quota(user=Dn(name))
    if "=" in name.partition("/")[0]:
        raise UsageError(f"a DN begins with /, as in /DC=org/O=X/CN=Jane Doe, not {name!r}")
    ln = parse_ln(session.ln(name))  # a bare GUID may be of a collection that is gone
    return Quota(tree=await guid_of(session, name, "quota") if ln.parts else ln.start)


def _bounded(quota: Quota, arguments: Arguments) -> Quota:
    def bound(flag: str, parse: Callable[[str, str], int]) -> int:
        text = arguments.value(flag, "none")
        return UNCHANGED if not arguments.has(flag) else UNBOUNDED if text == "none" else parse(text, flag)

    return replace(quota, bytes=bound("--bytes", parse_size), files=bound("--files", parse_count))


def _format_quota(quota: Quota) -> str:
    size = f"{human_size(quota.bytes)}" if quota.bytes >= 0 else ""
    files = counted(quota.files, "file") if quota.files >= 0 else ""
    return " and ".join(part for part in (size, files) if part) or "no quota"


def _show(session: Session, uses: Sequence[QuotaUse], *, human: bool, ln: str = "") -> None:
    rows: list[tuple[str, ...]] = [("BYTES", "OF", "FILES", "OF", "", "QUOTA")]
    for use in uses:
        size = human_size if human else str
        most = size(use.quota.bytes) if use.quota.bytes >= 0 else "-"
        files = str(use.quota.files) if use.quota.files >= 0 else "-"
        state = "counting" if not use.counted else "default" if use.implied else ""
        used = ("-", "-") if use.quota.user == EACH_USER else (size(use.bytes), str(use.files))
        rows.append((used[0], most, used[1], files, state, _name(use)))
        session.out.result(**({"ln": ln} if ln else {}), **_facts(use))
    if uses:
        session.out.write(*table(rows, frozenset({0, 1, 2, 3})))


def _name(use: QuotaUse) -> str:
    return "each user without a quota of his own" if use.quota.user == EACH_USER else use.name


def _facts(use: QuotaUse) -> dict[str, object]:
    """For programs; -1: no bound."""
    return {
        "user": use.quota.user,
        "tree": use.name if use.quota.tree else "",
        "guid": use.quota.tree,
        "bytes": use.bytes,
        "bytes_max": use.quota.bytes,
        "files": use.files,
        "files_max": use.quota.files,
        "counted": use.counted,
        "default": use.implied,
    }
