"""Verbs on rules and properties: modify and policy, with the original's checks before any request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from chelonia.core.metadata import Triple
from chelonia.core.rights.policy import check_policy_rule
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.local_files import to_ln
from chelonia_clients.session import Session

WORDS = ("set", "change", "clear")


async def modify(session: Session, arguments: Arguments) -> None:
    """Change metadata or states of entries (`modify`)."""
    text, change, section, name, *rest = arguments.operands
    value = rest[0] if rest else ""
    _check_modify(change, Triple(section, name, value), given=bool(rest))
    async for ln in _names(session, text, recursive=arguments.has("--recursive")):
        head = f"Modifying '{ln}', {change} in section '{section}' property '{name}' value '{value}': "
        facts = {"ln": ln, "change": change, "section": section, "property": name, "value": value}
        with session.out.trying(head, "modify", **facts):
            word = await session.client().modify(ln, change, Triple(section, name, value))
            session.out.write(head + word + ".")
            session.out.result(**facts, status=word)


async def policy(session: Session, arguments: Arguments) -> None:
    """Print or change access rules (`policy`)."""
    text, *words = arguments.operands
    if not words:
        await _show(session, text)
        return
    operation, identity, actions = _read_rule(words)
    async for ln in _names(session, text, recursive=arguments.has("--recursive")):
        head = f"Setting action list of '{ln}' for user {identity} to "
        with session.out.trying(f"{head}{actions}: ", "modify", ln=ln, identity=identity):
            client = session.client()
            write = client.change_policy if operation == "change" else client.set_policy  # to clear is to set nothing
            written = await write(ln, identity, actions)
            session.out.write(f"{head}{written}: set")
            session.out.result(ln=ln, identity=identity, actions=written)


async def _show(session: Session, text: str) -> None:
    metadata = await session.client().stat(session.ln(text))
    owner = metadata.get("entry", {}).get("owner", "")
    session.out.write(f"'{text}': owner {owner or 'nobody'}")
    implied = metadata.get("node", {}).get("implied") == "yes"
    rules, default = metadata.get("policy", {}), {} if implied else metadata.get("defaultPolicy", {})
    for identity, actions in sorted(rules.items()):
        session.out.write(f"  {identity}: {actions}")
    for identity, actions in sorted(default.items()):
        session.out.write(f"  default policy of new entries: {identity}: {actions}")
    if implied:
        session.out.write("  default policy of new entries: as in the collection above; it is only part of S3's keys")
    session.out.result(ln=text, owner=owner, policy=rules, default_policy=default)


def _read_rule(words: Sequence[str]) -> tuple[str, str, str]:
    """The rule in `set|change|clear <identity, blanks and all> <actions>`. Raises: UsageError, BAD_REQUEST."""
    operation = words[0].lower()
    if operation not in WORDS:
        raise UsageError(f"policy takes {' | '.join(WORDS)}, not {words[0]!r}")
    first = next((i for i, word in enumerate(words[1:], 1) if word[:1] in ("+", "-")), len(words))
    identity, actions = " ".join(words[1:first]), " ".join(words[first:])
    if not identity:
        raise UsageError("policy needs an identity: a DN, VOMS:<vo>, ALL or ANONYMOUS")
    if operation != "clear" and not actions:
        raise UsageError("policy needs an action list, such as +read -delete")
    if operation == "clear":
        actions = ""
    check_policy_rule(identity, actions)
    return operation, identity, actions


def _check_modify(change: str, triple: Triple, *, given: bool) -> None:
    """The original's checks of changes that make no sense anywhere. Raises: UsageError."""
    if change not in ("set", "unset", "add") and not change.startswith("setifvalue="):
        raise UsageError(f"modify takes set, unset or add, not {change!r}")
    if change != "unset" and not given:
        raise UsageError(f"modify {change} needs a value")
    if triple.section != "states":
        return
    match triple.property:
        case "neededReplicas":
            if not (triple.value.isascii() and triple.value.isdigit() and int(triple.value) >= 1):
                raise UsageError(f"neededReplicas is a whole number from 1, not {triple.value!r}")
        case "closed":
            if triple.value not in ("yes", "no"):
                raise UsageError("closed can be set to yes only, and there is no way back")
        case other:
            raise UsageError(f"of the states, only neededReplicas and closed can be changed, not {other!r}")


async def _names(session: Session, text: str, *, recursive: bool) -> AsyncIterator[str]:
    """The name, and with `recursive` all below it."""
    ln = session.ln(text)
    yield ln
    if recursive and await session.client().exists(ln) == "collection":
        async for entry in session.below(ln, session.client().names(ln, recursive=True)):
            yield to_ln(ln, entry.name.split("/"))
