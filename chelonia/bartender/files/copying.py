"""Copies by reference, for the port `Files`: their rights, and the metadata that go along."""

from __future__ import annotations

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.files.attributes import DESCRIBED
from chelonia.bartender.files.changing import done
from chelonia.bartender.files.writing import ready_to_write, replaceable
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry, Judge, existing, versions
from chelonia.bartender.transfers import overtaken, unnamed
from chelonia.core.contents.attributes import attributes_of
from chelonia.core.contents.uploads import CopyFile
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Guid
from chelonia.core.metadata import Needed
from chelonia.core.ports.files import Clone, Done
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace


async def copy(ports: Ports, turn: ElementCall, change: Clone) -> Done:
    """Give a file the bytes of another, if the caller may read that and write this, and both are as judged."""
    source, expect = await _readable(ports, turn, change)
    change = replace(change, user=source.section("metadata") if change.user is None else change.user)
    ready, replaced = await ready_to_write(ports, turn, change, unnamed(ports, turn, change.place, 0))
    ready = replace(ready, expect=tuple(dict.fromkeys((*ready.expect, *expect))))
    try:
        entry = await ports.librarian.copy_file(
            turn.service, CopyFile(source.guid, ready, change.policy, described=True)
        )
    except CheloniaError as error:
        error = await overtaken(ports, turn, change.place, error)
        raise error
    return done(entry, made=replaced is None)


async def _readable(ports: Ports, turn: ElementCall, change: Clone) -> tuple[FoundEntry, tuple[tuple[Guid, int], ...]]:
    """Return the source, and the versions decided on. Raises: NOT_FOUND, NOT_A_FILE, DENIED, PRECONDITION."""
    (walked,) = await ports.librarian.traverse(turn.service, (change.source,), (*DESCRIBED, Needed("metadata")))
    found = replaceable(change.source, existing(change.source, walked))
    expect = Judge(turn.user, "copy").require(Action.READ, found)
    change.of.require(change.source, attributes_of(found.object))
    return found, (*versions(found), *expect)
