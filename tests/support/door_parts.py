"""The parts of doors that test the namespace and bytes alone."""

from __future__ import annotations

from typing import Any, cast

from chelonia.core.ids import Dn
from chelonia.core.ports.bytes import Bytes
from chelonia.core.ports.files import Files
from chelonia.hosting.doors.plain.parts import DoorParts
from chelonia.hosting.doors.plain.third_party import ThirdParty


def door_parts(files: Files, carried: Bytes, dn: Dn, copies: int, *, third: ThirdParty | None = None) -> DoorParts:
    """Return parts without a trash and a page of the cluster and, as a rule, without other servers."""
    nothing = cast(Any, None)
    return DoorParts(files, carried, dn, copies, nothing, third or nothing, nothing)
