"""Bugs planted one at a time, to see whether the simulator finds them and how soon.

Each is a mistake that a developer might well make in the services; replacing a function plants it while it is
`planted()`. `python -m tests.sim.planted` runs seed after seed of the swarm until one fails, for each bug, and prints a
table. The last one stands in `docs/design/008-simulation.md`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from chelonia.ahash.committer import _Batch
from chelonia.ahash.group.mastership import Mastership, TermDurability
from chelonia.ahash.group.service import ReplicatedAHash
from chelonia.bartender import names
from chelonia.bartender.files import writing
from chelonia.bartender.rights import Judge
from chelonia.core.caller import Call
from chelonia.core.cluster import placement
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import SHEPHERD_PREFIX, RequestKey, ServiceId, shepherd_object
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.core.ports.files import ANY, Move, Over
from chelonia.core.ports.librarian import REFUSED_STORE, Delete, Report
from chelonia.core.ports.shepherd import Authority
from chelonia.core.values import replace
from chelonia.hosting.doors.s3 import multipart, versions
from chelonia.hosting.doors.s3.parts import kept
from chelonia.librarian.leadership.detection import Detecting
from chelonia.librarian.metadata import blobs
from chelonia.librarian.metadata.elements import outbox_reference
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.contents import decide as contents
from chelonia.librarian.namespace.names import Names
from chelonia.librarian.namespace.parts import decide as parts
from chelonia.librarian.namespace.quotas import decide as quotas
from chelonia.librarian.presence import identity, reports
from chelonia.librarian.presence.health import HealthTable
from chelonia.librarian.recovery.rebuild import decide as rebuild
from chelonia.librarian.recovery.rebuild.parts import decide as parts_found
from chelonia.librarian.recovery.rebuild.parts.act import PartAssembly
from chelonia.librarian.recovery.removal.act import NodeLife
from chelonia.librarian.repair.guard import Slots
from chelonia.librarian.repair.plan import act as repairing
from chelonia.librarian.repair.plan import decide as repair
from chelonia.librarian.repair.proofs import decide as proofs
from chelonia.librarian.service import _Parts
from chelonia.shepherd.reports.reporting import Reporting
from chelonia.shepherd.rules import authority
from chelonia.shepherd.rules.journal import Journal
from chelonia.shepherd.scrubber import Scrubber
from chelonia.shepherd.store import note_mark as mark
from chelonia.shepherd.transfers.forwarding import Fanout
from chelonia.shepherd.transfers.uploads import ShepherdUploads
from tests.sim import page_rot, skew
from tests.sim.ahash_group import SimReplica
from tests.sim.disk import SimDisk
from tests.sim.scenario_objects import objects_storm
from tests.sim.scenario_swarm import copying_swarm, rotting_swarm, skewed_swarm, swarm, versioned_swarm
from tests.sim.virtual_loop import run_virtual

SEEDS_MAX = 300
"""A bug that so many seeds do not show is not caught."""

Patches = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: in a few words, and the patches that plant it."""

    what: str
    patches: Callable[[], Patches]
    run: Callable[[int], Coroutine[Any, Any, Any]] = swarm


@dataclass(frozen=True, slots=True)
class Found:
    """How soon a bug was caught: after how many seeds (0: never), in how many CPU seconds, and by what."""

    seeds: int
    seconds: float
    violation: str


# --- the bugs -------------------------------------------------------------------------------------------------------


def _first_owner_discards() -> Patches:
    def gone(blob: Any, owner: Any, reason: Any, now: Any) -> Any:
        return blobs.discard_blob(blob, reason, now) if owner in blobs.owners_of(blob) else []

    return tuple(patch.object(module, "leave_blob", gone) for module in (blobs, trash, contents, parts))


def _mix_uploads() -> Patches:
    def gathering(place: Any, owner: Any) -> Any:
        return sole(replace(place, upload="one"), owner)

    sole = parts_found.gathering
    return (patch.object(parts_found, "gathering", gathering),)


def _strew_parts() -> Patches:
    async def nothing(self: Any) -> None:
        del self

    return (patch.object(PartAssembly, "take_known", nothing),)


def _bring_back_the_dead() -> Patches:
    return (patch.object(rebuild, "_long_before", lambda facts, begun_ms: False),)


def _lay_beneath() -> Patches:
    laid = contents.laid
    return (patch.object(contents, "laid", lambda there, new, size: laid(new, there, size)),)


def _count_nothing() -> Patches:
    return (patch.object(quotas, "accounts_of", lambda table, side, trees: []),)


def _begin_with_nothing() -> Patches:
    real = quotas.with_owners

    def known(table: Any, owners: Any, fresh: Any) -> Any:
        default = table.accounts.get(quotas.DEFAULT)
        if default is not None:
            done = replace(default, counter=default.counter or default.counting, counting="")
            table = replace(table, accounts={**table.accounts, quotas.DEFAULT: done})
        return real(table, owners, fresh)

    return (patch.object(quotas, "with_owners", known),)


def _over_the_version_before() -> Patches:
    async def over(parts: Any, ask: Any, when: Any, there: Any, *, shared: bool) -> Any:
        del when, there, shared
        await versions.apply(parts.plain, ask.exchange.call, Move(ask.place, ask.final, Over.REPLACE, parents=True))
        return ask

    return (patch.object(versions, "_exchanged", over),)


def _bring_back_the_oldest() -> Patches:
    async def oldest(parts: Any, ask: Any, limit: int = 0) -> Any:
        found = await kept(parts, ask)
        return found[-limit:] if limit else found

    return (patch.object(versions, "kept", oldest),)


def _condition_of_the_first_look() -> Patches:
    exchanged = versions._exchanged

    async def whatever(parts: Any, ask: Any, when: Any, there: Any, *, shared: bool) -> Any:
        del when
        return await exchanged(parts, ask, ANY, there, shared=shared)

    return (patch.object(versions, "_exchanged", whatever),)


def _forget_what_was_completed() -> Patches:
    async def none(parts: Any, ask: Any, etag: str, tag: str) -> None:
        del parts, ask, etag, tag

    return (patch.object(multipart, "_sealed", none),)


def _seal_what_has_the_number() -> Patches:
    choose = parts.choose

    def any_part(request: Any, stored: Any) -> Any:
        order = tuple(
            (number, stored[number].part.etag if number in stored else etag) for number, etag in request.order
        )
        return choose(replace(request, order=order), stored)

    return (patch.object(parts, "choose", any_part),)


def _name_what_a_repeat_stored() -> Patches:
    commit = writing.commit

    async def named(ports: Any, turn: Any, change: Any, facts: Any, order: Any) -> Any:
        return replace(await commit(ports, turn, change, facts, order), blob=order.begun.blob)

    return (patch.object(writing, "commit", named),)


def _wrong_domain() -> Patches:
    return (patch.object(placement, "_parts", lambda domain: domain.split("/")[1:]),)


def _trim_while_short() -> Patches:
    plan_blob, vouched = repair.plan_blob, repair.vouched

    def short(blob: Any, *others: Any) -> Any:
        plan = plan_blob(blob, *others)
        less = plan_blob(replace(blob, wanted=1), *others)
        return replace(plan, removals=less.removals, witnesses=less.witnesses)

    def believed(plan: Any, answered: Any) -> Any:
        return vouched(replace(plan, wanted=1), answered)

    return patch.object(repair, "plan_blob", short), patch.object(repair, "vouched", believed)


def _drop_a_report() -> Patches:
    take = Journal.take

    def forgetful(self: Any, now_ms: int, limit: int, describe: Any) -> Report | None:
        before, self._flight = self._flight, None
        due = self.next_due()
        if before is not None and (due is None or due > now_ms):
            self._flight = before
        return take(self, now_ms, limit, describe)

    return (patch.object(Journal, "take", forgetful),)


def _reorder_reports() -> Patches:
    return (patch.object(reports, "is_next", lambda report, last: report.boot >= last.boot),)


def _trust_a_stale_state() -> Patches:
    def heard(self: Any, node: Any, now: Any) -> bool:
        del self, now
        return node.heard_ms is not None

    return (patch.object(HealthTable, "_within_lease", heard),)


def _forget_an_fsync() -> Patches:
    made = SimDisk.__init__

    def careless(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        self.unsynced_ms = 5_000

    return (patch.object(SimDisk, "__init__", careless),)


def _erase_before_the_transact() -> Patches:
    made, attempt = _Parts.__init__, Records.attempt

    def remember(self: Any, ahash: Any, identity: Any, world: Any) -> None:
        made(self, ahash, identity, world)
        self.records.planted = (world.directory, identity.call())

    async def hasty(self: Any, call: Any, draft: PlannedTransact) -> Any:
        for element in draft.elements:
            if element.section == "erase" and element.change is ChangeType.SET:
                await _erase_now(self, element)
        return await attempt(self, call, draft)

    return patch.object(_Parts, "__init__", remember), patch.object(Records, "attempt", hasty)


async def _erase_now(records: Any, element: Element) -> None:
    directory, call = records.planted
    shepherd = directory.shepherd(ServiceId(element.object.removeprefix(SHEPHERD_PREFIX)))
    order = ((element.property, outbox_reference(element.property)),)
    try:
        await shepherd.delete(call, order, Authority(await records.refresh_position(call)))
    except CheloniaError:
        return


def _ignore_the_request_key() -> Patches:
    return (patch.object(_Batch, "_recall", lambda self, job: None),)


def _claim_unconditionally() -> Patches:
    return (patch.object(repairing, "on_version", lambda elements, blob: list(elements)),)


def _acknowledge_one_copy() -> Patches:
    async def enough(self: Any, pending: Any, held: Any) -> None:
        del self, pending, held

    async def receipts(self: Any, held: Any) -> Any:
        del self, held
        return (), ()

    return patch.object(ShepherdUploads, "_complete_copies", enough), patch.object(Fanout, "receipts", receipts)


def _unlink_the_file() -> Patches:
    async def unlink(self: Any, call: Any, request: Any) -> None:
        await self.delete(call, Delete(request.child, request.expect))

    return (patch.object(Names, "unlink", unlink),)


def _believe_the_record() -> Patches:
    async def damage(self: Any, held: Any, paced: bool) -> str:
        del self, held, paced
        return ""

    return (patch.object(Scrubber, "_damage", damage),)


def _use_a_revoked_right() -> Patches:
    require_one = Judge.require_one

    def loose(self: Any, choices: Any, *, phase: str = "") -> Any:
        require_one(self, choices, phase=phase)
        return ()

    return (patch.object(Judge, "require_one", loose),)


def _never_compare() -> Patches:
    async def pretend(self: Any, why: str) -> None:
        del why
        now_ms = self._node.ports.clock.monotonic_ms()
        self._how.why, self._whole = "", (1, now_ms)
        self._how.compared(self._node.state.generation, now_ms)

    return (patch.object(Reporting, "_compare_inventory", pretend),)


def _trust_any_mark() -> Patches:
    why_whole = mark.why_whole

    def trusting(found: Any, believed: Any, store: str, state: Any) -> str:
        if found is not None:
            believed = replace(believed, told=found.sent, obeyed=0)
        return why_whole(found, believed, store, state)

    return (patch.object(mark, "why_whole", trusting),)


def _note_before_it_is_accepted() -> Patches:
    take = Journal.take

    def hasty(self: Any, now_ms: int, limit: int, describe: Any) -> Report | None:
        report = take(self, now_ms, limit, describe)
        for replica in report.replicas if report is not None else ():
            describe.__self__.known(replica.reference, replica.state)
            describe.__self__.index.confirm_missing(replica.reference)
        return report

    return (patch.object(Journal, "take", hasty),)


def _old_reads() -> Patches:
    return (patch.object(Call, "strongly", lambda self: self),)


def _ignore_the_position() -> Patches:
    async def at_once(self: Any, copy: Any, wanted: Any) -> None:
        del self, copy, wanted

    return (patch.object(ReplicatedAHash, "_reach", at_once),)


def _alone_is_enough() -> Patches:
    async def at_once(self: Any, position: Any) -> None:
        self._horizon.saw(position)

    return (patch.object(TermDurability, "wait", at_once),)


def _obey_the_past() -> Patches:
    return (patch.object(authority, "refusal", lambda state, order: ""),)


def _one_voice() -> Patches:
    async def nobody(self: Any, shepherds: Any) -> list[Any]:
        del self, shepherds
        return []

    return (patch.object(Detecting, "_ask", nobody),)


def _empty_too_early() -> Patches:
    async def empty(self: Any, call: Any, shepherd: Any) -> bool:
        page = await self._records.scan(call, shepherd_object(shepherd), "erase", "", 1)
        return not page.items

    return (patch.object(NodeLife, "_empty", empty),)


def _remove_together_anew() -> Patches:
    unlink_all = Names.unlink_all

    async def anew(self: Any, call: Any, requests: Any) -> Any:
        return await unlink_all(self, call.keyed(RequestKey("")), requests)

    return (patch.object(Names, "unlink_all", anew),)


def _trust_a_claim() -> Patches:
    return (patch.object(proofs, "needed", lambda plan: False),)


def _live_on() -> Patches:
    return (patch.object(Mastership, "fail", lambda self, reason: None),)


def _read_nothing() -> Patches:
    def get(self: Any, key: bytes) -> Any:
        return None if page_rot.reaches(self.disk, key, key) else self._held.values.get(key)

    return (patch.object(SimReplica, "get", get),)


def _open_again() -> Patches:
    return (patch.object(page_rot, "given_up", lambda disk: disk),)


def _refuse_a_first_name() -> Patches:
    judge = identity.judge

    def judged(beat: Any, recorded: Any, living: Any, *, settled: bool, insists: bool = False) -> Any:
        if beat.store and not recorded.store and living is not None:
            return identity.Judgement(REFUSED_STORE, "it had no store before", alarm=True)
        return judge(beat, recorded, living, settled=settled, insists=insists)

    return (patch.object(identity, "judge", judged),)


def _refuse_a_nameless() -> Patches:
    judge = identity.judge

    def judged(beat: Any, recorded: Any, living: Any, *, settled: bool, insists: bool = False) -> Any:
        if not beat.store:
            return identity.Judgement(REFUSED_STORE, "it names no store", alarm=True)
        return judge(beat, recorded, living, settled=settled, insists=insists)

    return (patch.object(identity, "judge", judged),)


def _take_unknown_for_none() -> Patches:
    return (patch.object(Slots, "most", lambda self, shepherd: min(self.per_node_max, self._own(shepherd))),)


def _take_not_supported_for_done() -> Patches:
    together = names._gone_together

    async def gone(ports: Any, service: Any, orders: Any) -> Any:
        try:
            return await together(ports, service, orders)
        except CheloniaError as error:
            if error.kind is not Kind.NOT_SUPPORTED:
                raise
            return tuple(range(len(orders)))

    lacking = patch.object(skew, "LATER_METHODS", frozenset({"unlink_all"}))
    return lacking, patch.object(names, "_gone_together", gone)


BUGS: dict[str, Bug] = {
    "wrong-domain": Bug("the site is left out when failure domains are compared", _wrong_domain),
    "trim-short": Bug("damaged and surplus copies go as soon as one good copy is left", _trim_while_short),
    "drop-report": Bug("a report that was not answered is replaced by the next", _drop_a_report),
    "reorder-reports": Bug("a report is applied whatever its number", _reorder_reports),
    "stale-state": Bug("a Shepherd that was heard once counts as heard for ever", _trust_a_stale_state),
    "no-fsync": Bug("a replica is acknowledged up to 5 s before it is on stable storage", _forget_an_fsync),
    "erase-first": Bug("erasures are ordered before the transact that decides them", _erase_before_the_transact),
    "no-request-key": Bug("a retry is taken for a new request", _ignore_the_request_key),
    "together-anew": Bug("a retry of removals together is a new request", _remove_together_anew),
    "loose-claim": Bug("a copy is claimed without regard to the blob's version", _claim_unconditionally),
    "one-copy": Bug("an upload is acknowledged before the other copies are there", _acknowledge_one_copy),
    "unlink-file": Bug("dropping one name of several removes the file", _unlink_the_file),
    "no-scrub": Bug("the scrub believes the record instead of the bytes", _believe_the_record),
    "revoked-right": Bug("a transact does not depend on the policy that was read", _use_a_revoked_right),
    "trust-claim": Bug("a good copy is given up for one that its Shepherd only says it has", _trust_a_claim),
    "no-compare": Bug("a start does not compare the disk with the metadata", _never_compare),
    "any-mark": Bug("a start believes its notes, however old they are", _trust_any_mark),
    "note-early": Bug("a replica is noted as reported before that is accepted", _note_before_it_is_accepted),
    "old-reads": Bug("what must be the newest is read from any copy of the metadata", _old_reads),
    "no-position": Bug("a copy answers before it holds what its caller has seen", _ignore_the_position),
    "alone": Bug("a change is acknowledged when the master alone has it", _alone_is_enough),
    "obey-the-past": Bug("an order of an older generation is obeyed", _obey_the_past),
    "first-owner": Bug("a shared blob goes with the first file that has it", _first_owner_discards, copying_swarm),
    "mixed-parts": Bug("a rebuild puts the parts of all uploads of a user together", _mix_uploads),
    "strewn-parts": Bug("a rebuild leaves parts that a snapshot knows by themselves", _strew_parts),
    "back-again": Bug("a rebuild takes in what was deleted long before", _bring_back_the_dead),
    "lay-beneath": Bug("what is written in the middle is laid beneath what is there", _lay_beneath, copying_swarm),
    "uncounted": Bug("files count for no quota", _count_nothing, copying_swarm),
    "new-owner": Bug("whom the default quota binds begins with nothing", _begin_with_nothing, copying_swarm),
    "over-version": Bug("a new version goes over the one before", _over_the_version_before, versioned_swarm),
    "oldest-back": Bug("the oldest version follows the newest", _bring_back_the_oldest, versioned_swarm),
    "first-look": Bug("a condition is not held when its version is named", _condition_of_the_first_look, objects_storm),
    "forgets-upload": Bug("an upload is completed once", _forget_what_was_completed, objects_storm),
    "any-part": Bug("an upload is sealed of parts that were sent anew", _seal_what_has_the_number, objects_storm),
    "named-again": Bug("a repeat calls its own copies named", _name_what_a_repeat_stored, versioned_swarm),
    "one-voice": Bug("one Librarian alone calls a Shepherd away", _one_voice),
    "lives-on": Bug("a replica whose engine panicked goes on", _live_on, rotting_swarm),
    "reads-nothing": Bug("what is in a damaged page reads as absent", _read_nothing, rotting_swarm),
    "opens-again": Bug("damaged files are opened again and again", _open_again, rotting_swarm),
    "first-name": Bug("a Shepherd that names its store at last is refused", _refuse_a_first_name, skewed_swarm),
    "nameless": Bug("a Shepherd that names no store is refused", _refuse_a_nameless, skewed_swarm),
    "no-slots": Bug("who does not say how many copies it bears bears none", _take_unknown_for_none, skewed_swarm),
    "together-done": Bug(
        "removals together that a Librarian does not know are taken for done",
        _take_not_supported_for_done,
        skewed_swarm,
    ),
    "empty-early": Bug("a drained Shepherd may go while it has copies", _empty_too_early),
}
"""Bugs to plant, by name."""


# --- hunting --------------------------------------------------------------------------------------------------------


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While this lasts, the services have this bug."""
    with ExitStack() as stack:
        for each in BUGS[name].patches():
            stack.enter_context(each)
        yield


def hunt(name: str, seeds: Sequence[int]) -> Found:
    """Run seeds with a bug planted until one fails."""
    began = time.process_time()
    with planted(name):
        for count, seed in enumerate(seeds, start=1):
            try:
                run_virtual(BUGS[name].run(seed))
            except Exception as error:
                return Found(count, time.process_time() - began, f"{error}".partition("\n")[0])
    return Found(0, time.process_time() - began, "")


def main(arguments: Sequence[str]) -> int:
    """Plant each bug and print how soon it is caught; 0 when at most one is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted")
    parser.add_argument("bugs", nargs="*", help=f"which of {', '.join(BUGS)}; all when none is named")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many seeds at most")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    names = options.bugs or list(BUGS)
    print("| bug | seeds until caught | CPU seconds | by what |\n|---|---|---|---|", flush=True)
    missed = 0
    for name in names:
        found = hunt(name, range(options.first, options.first + options.seeds))
        missed += not found.seeds
        seeds = str(found.seeds) if found.seeds else f"not in {options.seeds}"
        print(f"| {name}: {BUGS[name].what} | {seeds} | {found.seconds:.1f} | {found.violation[:100]} |", flush=True)
    return 0 if missed <= 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
