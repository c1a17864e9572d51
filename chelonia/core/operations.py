"""Every operation of the six ports, described once: name on the wire, who may call it, how it may be repeated.

From these tables come the access guard (`core.rights.access`), the stubs and their retries (`hosting.net.rpc_client`)
and the compact encoding (`wire.compact`); `wire.operations` adds the SOAP form of what is public. A new operation is
a row here, a method of the port and its handler.

Invariants: every method of a port has one row; an operation without a row may be called by nobody.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.ports.access_keys import AccessKeys
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.bartender import Bartender
from chelonia.core.ports.files import Files
from chelonia.core.ports.librarian import Librarian
from chelonia.core.ports.shepherd import Shepherd

EVERYONE: Final = tuple(Role)
"""Stands for every caller, also one without a role; compared by identity."""


class Retry(enum.Enum):
    """What a stub may do after a failure that may be the transport's."""

    IDEMPOTENT = "idempotent"
    """It may be asked again."""
    KEYED = "keyed"
    """It may be asked again under the call's request key; a call without one is given one."""
    KEY_ARGUMENT = "key argument"
    """The same, with the key as first argument."""
    ONCE = "once"
    """It may have been carried out, so it is not asked again."""


@dataclass(frozen=True, slots=True, eq=False)
class PortMethod:
    """One row. `name`: on the wire; `roles`: who may call it, or `EVERYONE`.

    `brief`: changes nothing and is answered soon, so another instance is asked sooner. `answer_ms`: how long one answer
    may take (0: as the stub is told); what may take so long is asked once. `ends`: it only reads, and may be long: its
    work ends with the caller's connection, where that of a change is finished, for its effects.
    """

    service: str
    name: str
    function: Callable[..., Any]
    roles: tuple[Role, ...]
    retry: Retry
    brief: bool
    answer_ms: int
    ends: bool
    arguments: tuple[str, ...]
    defaults: tuple[Any, ...]
    """Of the last arguments, as many as have one."""
    many: int
    """How many elements each argument that is a list may have."""

    @property
    def method(self) -> str:
        """Its name in the port."""
        return self.function.__name__

    def filled(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in order, as a call by position and by name gives them. Raises: TypeError, as a call would."""
        count = len(self.arguments)
        first = count - len(self.defaults)
        known = {**dict(zip(self.arguments[first:], self.defaults, strict=True)), **named}
        left = self.arguments[len(args) :]
        if len(args) > count or not (set(named) <= set(left) <= set(known)):
            raise TypeError(f"{self.service}.{self.method} takes {', '.join(self.arguments) or 'no arguments'}")
        return (*args, *(known[name] for name in left))


@dataclass(frozen=True, slots=True, eq=False)
class PortTable:
    """One port: the name of its service and its methods, by their names in the port and on the wire."""

    name: str
    by_method: Mapping[str, PortMethod]
    by_name: Mapping[str, PortMethod]


Row = Callable[[str], PortMethod]
"""A row that does not know its service yet."""


def row(
    function: Callable[..., Any], *roles: Role, retry: Retry = Retry.IDEMPOTENT, name: str = "",
    brief: bool = False, answer_ms: int = 0, ends: bool = False, many: int = bounds.BULK_ELEMENTS_MAX,
) -> Row:  # fmt: skip
    """Describe one method of a port; `name` on the wire only where it is not the method's in camel case."""
    parameters = list(inspect.signature(function).parameters.values())[2:]  # without self and call
    first, *rest = function.__name__.split("_")
    named = name or first + "".join(word.capitalize() for word in rest)
    arguments = tuple(parameter.name for parameter in parameters)
    defaults = tuple(p.default for p in parameters if p.default is not inspect.Parameter.empty)
    who = EVERYONE if roles == EVERYONE else roles
    told = (arguments, defaults, many)
    return lambda service: PortMethod(service, named, function, who, retry, brief, answer_ms, ends, *told)


def table(service: str, *rows: Row) -> PortTable:
    """Put a table together."""
    methods = [described(service) for described in rows]
    found = PortTable(service, {m.method: m for m in methods}, {m.name: m for m in methods})
    assert len(found.by_method) == len(found.by_name) == len(methods), "every method and every name once"
    return found


_L, _B, _S, _A = Role.LIBRARIAN, Role.BARTENDER, Role.SHEPHERD, Role.ADMINISTRATOR
_KEYED: Final = Retry.KEYED
READING_MS: Final = 15 * 60 * 1000
"""How long the answer to what reads whole replicas, or many records, is waited for."""
SEALING_MS: Final = 2 * 60 * 1000
"""How long the answer to the sealing of ten thousand parts is waited for: a dozen transacts."""
COPY_MS: Final = 365 * 24 * 3_600 * 1000
"""How long the answer to `copy` is waited for here, as good as for ever: who asks gives up when the claim is over."""

AHASH: Final = table(
    "ahash",
    row(AHash.get, _L, _A, brief=True),
    row(AHash.change, _L, retry=Retry.ONCE),
    row(AHash.transact, _L, retry=Retry.KEY_ARGUMENT, many=bounds.TRANSACT_ELEMENTS_MAX),
    row(AHash.recall, _L),
    row(AHash.walk, _L, _A, brief=True),
    row(AHash.scan, _L, _A, brief=True),
    row(AHash.below, _L, _A, brief=True),
    row(AHash.objects, _L, _A, brief=True),
    row(AHash.backup, _A, retry=Retry.ONCE),
    row(AHash.regroup, _A, retry=Retry.ONCE),
    row(AHash.status, _L, _A),
)

LIBRARIAN: Final = table(
    "librarian",
    row(Librarian.new, _B, retry=_KEYED),
    row(Librarian.get, _B, _A, ends=True),
    row(Librarian.traverse, _B, _A, name="traverseLN", ends=True),
    row(Librarian.modify_metadata, _B, retry=_KEYED),
    row(Librarian.remove, _B, retry=_KEYED),
    row(Librarian.report, _S),
    row(Librarian.make_entry, _B, retry=_KEYED),
    row(Librarian.begin_put, _B, retry=_KEYED),
    row(Librarian.commit_put, _S, retry=_KEYED, many=bounds.RECEIPTS_MAX),
    row(Librarian.commit_file, _B, retry=_KEYED),
    row(Librarian.splice, _B, retry=_KEYED),
    row(Librarian.extents, _B, _A),
    row(Librarian.open_upload, _B, retry=_KEYED),
    row(Librarian.put_part, _B, retry=_KEYED),
    row(Librarian.seal_upload, _B, retry=_KEYED, answer_ms=SEALING_MS),
    row(Librarian.copy_file, _B, retry=_KEYED, answer_ms=SEALING_MS),
    row(Librarian.drop_upload, _B, retry=_KEYED),
    row(Librarian.uploads, _B, _A, ends=True),
    row(Librarian.parts, _B, _A, ends=True),
    row(Librarian.unlink, _B, retry=_KEYED),
    row(Librarian.delete, _B, retry=_KEYED),
    row(Librarian.unmake, _B, retry=_KEYED),
    row(Librarian.move, _B, retry=_KEYED),
    row(Librarian.undelete, _B, retry=_KEYED),
    row(Librarian.trash, _B, _A, ends=True),
    row(Librarian.set_wanted, _B, retry=_KEYED),
    row(Librarian.change_entry, _B, retry=_KEYED),
    row(Librarian.below, _B, _A, ends=True),
    row(Librarian.access_key, _B),
    row(Librarian.access_keys, _B),
    row(Librarian.keep_access_key, _B, retry=_KEYED),
    row(Librarian.drop_access_key, _B, retry=_KEYED),
    row(Librarian.quotas, _B, _A),
    row(Librarian.set_quota, _A),
    row(Librarian.recount_quotas, _A),
    row(Librarian.recall, _B),
    row(Librarian.heartbeat, *EVERYONE),  # an unknown identity is recorded as waiting for approval
    row(Librarian.hearing, _L, _A),
    row(Librarian.consider, _L, _A),
    row(Librarian.inventory, _S, _A),
    row(Librarian.nodes, _B, _L, _A),
    row(Librarian.services, _B, _L, _S, _A),
    row(Librarian.approve, _A),
    row(Librarian.maintenance, _A),
    row(Librarian.drain, _A),
    row(Librarian.forget, _A),
    row(Librarian.heal_status, _B, _L, _A),
    row(Librarian.heal_order, _A),
    row(Librarian.drill, _L, _A, retry=_KEYED),
    row(Librarian.drill_status, _B, _L, _A),
    row(Librarian.health, _B, _L, _A),
    row(Librarian.rebuild, _A),
    row(Librarian.fsck, _A),
    row(Librarian.mend, _A, many=bounds.XML_ELEMENTS_MAX),
)

SHEPHERD: Final = table(
    "shepherd",
    row(Shepherd.get, _B, _L),
    row(Shepherd.put, _B, _L),
    row(Shepherd.store, _B, retry=Retry.ONCE),  # asked again it would meet what it has stored
    row(Shepherd.fetch, _B, brief=True),
    row(Shepherd.sums, _B, brief=True),
    row(Shepherd.stat, _B, _L, _A),
    row(Shepherd.delete, _L),
    row(Shepherd.toggle_report, _A),
    row(Shepherd.copy, _L, answer_ms=COPY_MS),
    row(Shepherd.drill, _L),
    row(Shepherd.prove, _L, answer_ms=READING_MS),
    row(Shepherd.scrub, _L, _A, answer_ms=READING_MS),
    row(Shepherd.scrub_page, _A, answer_ms=READING_MS),
    row(Shepherd.discard, _A, answer_ms=READING_MS),
    row(Shepherd.readmit, _L, _A, answer_ms=READING_MS),
    row(Shepherd.status, _B, _L, _A),
    row(Shepherd.records, _L, _A, answer_ms=READING_MS),
)

BARTENDER: Final = table(
    "bartender",
    row(Bartender.stat, *EVERYONE, ends=True),
    row(Bartender.list, *EVERYONE, ends=True),
    row(Bartender.make_collection, *EVERYONE, retry=_KEYED),
    row(Bartender.unmake_collection, *EVERYONE, retry=_KEYED),
    row(Bartender.make_mountpoint, *EVERYONE, retry=_KEYED),
    row(Bartender.unmake_mountpoint, *EVERYONE, retry=_KEYED),
    row(Bartender.move, *EVERYONE, retry=_KEYED),
    row(Bartender.put_file, *EVERYONE, retry=_KEYED),
    row(Bartender.get_file, *EVERYONE),
    row(Bartender.add_replica, _S),
    row(Bartender.del_file, *EVERYONE, retry=_KEYED),
    row(Bartender.undelete, *EVERYONE, retry=_KEYED),
    row(Bartender.list_deleted, *EVERYONE, ends=True),
    row(Bartender.unlink, *EVERYONE, retry=_KEYED),
    row(Bartender.modify, *EVERYONE, retry=_KEYED),
    row(Bartender.start_put, *EVERYONE, retry=_KEYED),
    row(Bartender.commit_put, *EVERYONE, retry=_KEYED),
)

FILES: Final = table(
    "files",
    row(Files.look, *EVERYONE, ends=True),
    row(Files.list, *EVERYONE, ends=True),
    row(Files.place, *EVERYONE),
    row(Files.apply, *EVERYONE, retry=_KEYED),
    row(Files.share, *EVERYONE),
    row(Files.uploads, *EVERYONE, ends=True),
    row(Files.parts, *EVERYONE, ends=True),
    row(Files.space, *EVERYONE),
)

ACCESS_KEYS: Final = table(
    "keys",
    row(AccessKeys.create, *EVERYONE, retry=Retry.ONCE),  # a repeated call would make another secret
    row(AccessKeys.list, *EVERYONE),
    row(AccessKeys.revoke, *EVERYONE, retry=Retry.ONCE),
)

TABLES: Final[Mapping[str, PortTable]] = {
    port.name: port for port in (AHASH, LIBRARIAN, SHEPHERD, BARTENDER, FILES, ACCESS_KEYS)
}
