"""Drills on this Shepherd: a silence that ends by itself, or one byte changed in one spare copy.

A silent Shepherd sends no heartbeats and no reports, and refuses every call but `drill`; transfers under way go on. The
silence is kept in memory alone and bounded here. It ends with its time, with this process, or by an order.
Only the repair leader orders drills, in the name of an administrator and with the authority that an erasure needs.
To damage a copy, that authority must still hold once the disk has answered; older orders are refused from then on.
The repair leader decides which copy can be spared; here it must be whole, committed, and of the blob named.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.drills import DrillAction, ShepherdDrill
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.operations.shepherd import SHEPHERD
from chelonia.core.ports.shepherd import Authority
from chelonia.core.rights.access import check_access
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.rules import authority as authorities

log = logging.getLogger(__name__)

_DATA: Final = {"receive": "PUT", "offset": "HEAD", "open": "GET"}
_ANSWERED: Final = {row.method: row.name for row in SHEPHERD.by_method.values() if row.method != "drill"} | _DATA
"""Methods of a Shepherd that a drill silences, and their names in refusals."""


class ShepherdDrills:
    """The drills of one Shepherd."""

    def __init__(self, node: ShepherdNode, port: object) -> None:
        self._node = node
        self._port = port
        self._drill = ""
        self._called_off = ("", Ms(0))
        """The damage that was called off last, and when."""

    async def obey(self, call: Call, order: ShepherdDrill) -> int:
        """Carry out a drill order; returns for how many more milliseconds this Shepherd is silent."""
        node = self._node
        self._require_authority(call, order, authorities.refusal(node.state, Authority(order.position)))
        match order.action:
            case DrillAction.STOP:
                self._end_silence(order)
                self._require_checked(order)
            case _ if order.drill == self._drill:
                pass  # a repeat: it is done
            case DrillAction.SILENCE:
                self._begin_silence(order)
            case DrillAction.CORRUPT:
                await self._corrupt(call, order)
        return node.silent_ms

    def _intercept(self) -> None:
        self._restore()  # methods are covered only while a silence lasts: no other call pays for an exercise
        for method, operation in _ANSWERED.items():
            setattr(self._port, method, partial(self._refuse, operation, getattr(self._port, method)))

    def _restore(self) -> None:
        for method in _ANSWERED:
            vars(self._port).pop(method, None)

    async def _refuse(self, operation: str, method: Callable[..., Awaitable[Any]], call: Call, *args: Any) -> Any:
        """Refuse every call while the silence lasts; the first one after it ends that. Raises: UNAVAILABLE."""
        left_ms = self._node.silent_ms
        if not left_ms:
            self._restore()
            return await method(call, *args)
        if operation not in _DATA.values():
            check_access(call, "shepherd", operation)  # who may not call learns nothing of drills
        cause = f"a drill ({self._drill}) keeps this Shepherd silent for {left_ms} ms more; others have the bytes"
        raise CheloniaError(Kind.UNAVAILABLE, operation, self._node.id, cause)

    def _begin_silence(self, order: ShepherdDrill) -> None:
        node = self._node
        if node.silent_ms:
            raise CheloniaError(Kind.CONFLICT, "drill", node.id, f"drill {self._drill} keeps it silent already")
        trouble = node.disk.trouble or node.disk.refused
        if trouble:
            raise CheloniaError(Kind.CONFLICT, "drill", node.id, f"it is not sound: {trouble}")
        self._require_time(order)
        duration_ms = min(max(order.duration_ms, 0), bounds.DRILL_MS_MAX)
        self._drill = order.drill
        node.silent_until_ms = node.ports.clock.monotonic_ms() + duration_ms
        self._intercept()
        log.warning(
            "DRILL %s: this Shepherd is silent for %d ms by order of an administrator, then it is back by itself",
            order.drill, duration_ms,
        )  # fmt: skip

    def _end_silence(self, order: ShepherdDrill) -> None:
        if self._node.silent_ms and self._drill != order.drill:
            return
        if self._node.silent_ms:
            self._node.silent_until_ms = 0
            self._node.news.set()
            log.warning("DRILL %s: this Shepherd answers again, by order", order.drill)
        self._drill = order.drill  # its first order, should it come only now, is a repeat

    def _require_time(self, order: ShepherdDrill) -> None:
        """Refuse an order that comes when its drill is over, as after a cut. Raises: CONFLICT."""
        if 0 < order.ends_ms <= self._node.ports.clock.now_ms():
            over = f"drill {order.drill} is over by the clock here, so nobody would watch it"
            cause = f"{over}; if it has just begun, set that clock"
            raise CheloniaError(Kind.CONFLICT, "drill", self._node.id, cause)

    def _require_checked(self, order: ShepherdDrill) -> None:
        """Have a copy checked that may have been damaged: a start since then has forgotten the suspicion. Raises: BUSY
        until that is done."""
        node = self._node
        if order.reference and self._called_off[0] != order.drill:
            self._called_off = order.drill, node.ports.clock.now_ms()
            node.suspect(order.reference)
        held = node.index.get(order.reference)
        if held is not None and held.alive and held.checked_ms < self._called_off[1]:
            raise CheloniaError(Kind.BUSY, "drill", order.reference, "the copy that may be damaged is being checked")

    def _require_authority(self, call: Call, order: ShepherdDrill, refusal: str) -> None:
        if refusal:
            log.warning("drill refused drill=%s by=%s: %s", order.drill, call.dn, refusal)
            raise CheloniaError(Kind.DENIED, "drill", self._node.id, refusal)

    async def _corrupt(self, call: Call, order: ShepherdDrill) -> None:
        node, position = self._node, order.position
        await node.disk.require()
        if authorities.obeyed(node.state, position) != node.kept:
            await node.save(lambda now: authorities.obeyed(now, position))
        self._require_authority(call, order, authorities.revoked(node.state, position))
        if order.drill == self._drill:
            return  # a repeat has overtaken it
        self._require_time(order)
        held = node.index.get(order.reference)
        if held is None or not held.alive or not held.committed or held.blob != order.blob or held.size < 1:
            raise CheloniaError(Kind.NOT_ALIVE, "drill", order.reference, "no such copy is here, whole and committed")
        log.warning(
            "DRILL %s: one byte of a spare copy is changed by order of an administrator reference=%s blob=%s",
            order.drill, held.reference, held.blob,
        )  # fmt: skip
        self._drill = order.drill
        await node.ports.blobs.spoil(held.reference)
        node.suspect(held.reference)
