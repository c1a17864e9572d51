"""`chelonia admin node ...` for administrators: a real Librarian, fake Shepherds, virtual time."""

import asyncio
import json

import pytest

from chelonia.core.caller import Role
from chelonia.core.cluster.healing import Endangered, HeldDrain
from chelonia.core.ids import BlobId, Dn, Ms, ServiceId
from chelonia.core.ports.librarian import ServiceRecord, SetWanted
from chelonia_clients.verbs import nodes, removing
from chelonia_clients.verbs.heal import held_drain
from tests.sim.virtual_loop import virtual
from tests.support.admin_cli import run_admin
from tests.support.librarian import ADMIN, BARTENDER
from tests.support.paper import Paper, paper
from tests.unit.clients.faking import Command

pytestmark = pytest.mark.expect_log("is lost, no verified copy is left", optional=True)


async def down(p: Paper, shepherd: ServiceId) -> None:
    p.shepherds[shepherd].up = False

    async def known() -> bool:
        return {n.shepherd: n.state for n in await p.b.service.nodes(ADMIN)}[shepherd] == "offline"

    await p.until(known)


@virtual
async def test_a_drain_is_waited_for_and_says_when_the_node_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paper(shepherds=3) as p:
        for n in range(5):
            await p.upload(f"f{n}", copies=2)
        one = p.b.shepherds[0]
        begun = await run_admin(p.b, monkeypatch, "node", "drain", one)
        assert begun.code == 0
        assert "draining" in begun.stdout
        listed = await run_admin(p.b, monkeypatch, "node", "list")
        assert "alive, draining" in listed.stdout
        waited = await run_admin(p.b, monkeypatch, "node", "drain", one, "--wait")
        assert (waited.code, waited.stdout) == (0, f"{one}: drained, it may go\n")
        assert "replicas to go" in waited.stderr
        assert waited.stderr.count("trim_grace_ms") == 1, "a wait of minutes is explained, once"
        assert p.shepherds[one].replicas == {}
        listed = await run_admin(p.b, monkeypatch, "node", "list")
        assert "alive, drained: it may go" in listed.stdout
        told = json.loads((await run_admin(p.b, monkeypatch, "node", "list", as_json=True)).stdout)
        assert [node["drain"] for node in told["results"]] == ["drained", "", ""]
        await run_admin(p.b, monkeypatch, "node", "undrain", one)
        listed = await run_admin(p.b, monkeypatch, "node", "list")
        assert "drain" not in listed.stdout


@virtual
async def test_a_drain_that_more_wanted_copies_hold_up_names_the_files_and_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with paper(shepherds=3) as p:
        one, _, third = p.b.shepherds
        await down(p, third)
        guids = [(await p.upload(f"f{n}", copies=2))[0] for n in range(5)]
        await p.upload("single", copies=1)
        waiting = asyncio.ensure_future(run_admin(p.b, monkeypatch, "node", "drain", one, "--wait"))
        await asyncio.sleep(30)
        listed = (await run_admin(p.b, monkeypatch, "node", "list")).stdout.splitlines()[-1]
        assert listed.startswith(f"{one}: 5 files cannot leave it")
        assert listed.count(" (wants 2)") == 3
        assert "add a Shepherd" in listed
        assert "neededReplicas" in listed
        healing = (await run_admin(p.b, monkeypatch, "heal", "status")).stdout
        assert listed in healing.splitlines()
        as_json = await run_admin(p.b, monkeypatch, "node", "list", as_json=True)
        told = json.loads(as_json.stdout)["results"]
        assert [node["held_up"]["blobs"] for node in told] == [5, 0, 0]
        assert {found["name"] for found in told[0]["held_up"]["examples"]} < {f"/f{n}" for n in range(5)}
        again = await run_admin(p.b, monkeypatch, "node", "drain", one)
        assert again.stdout.splitlines()[-1] == listed
        await p.b.service.set_wanted(BARTENDER, SetWanted(guids[0], 1))
        await asyncio.sleep(30)
        p.shepherds[third].up = True
        said = await waiting
        assert (said.code, said.stdout) == (0, f"{one}: drained, it may go\n")
        told = [line for line in said.stderr.splitlines() if "cannot leave" in line]
        assert (len(told), told[0]) == (2, f"chelonia: {listed}")
        assert "4 files" in told[1]
        assert "cannot leave" not in (await run_admin(p.b, monkeypatch, "heal", "status")).stdout


def test_of_a_lost_file_that_stays_on_a_drained_shepherd_there_is_another_cure() -> None:
    def example(name: str, live: int) -> Endangered:
        return Endangered(BlobId("b"), name, live, 2, 10, Ms(0))

    lost = held_drain(HeldDrain(ServiceId("s"), 1, (example("/lost", 0),)))
    assert lost.startswith("1 file cannot leave it; no good copy is left anywhere of /lost: delete it, or stop")
    assert "neededReplicas" not in lost
    both = held_drain(HeldDrain(ServiceId("s"), 9, (example("/lost", 0), example("/short", 1))))
    assert ", such as /short (wants 2); add a Shepherd" in both
    assert "of /lost: delete it" in both


@virtual
async def test_waiting_says_when_nothing_leaves_and_ends_when_a_drain_is_called_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "_STILL_MS", 60_000)
    async with paper(shepherds=2) as p:
        await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        waiting = asyncio.ensure_future(run_admin(p.b, monkeypatch, "node", "drain", one, "--wait"))
        await asyncio.sleep(125)
        assert not waiting.done()
        await p.b.service.drain(ADMIN, one, False)
        said = await waiting
        assert said.code != 0
        still = [line for line in said.stderr.splitlines() if "nothing has left it" in line]
        assert len(still) == 2
        assert all("1 file cannot leave it" in line for line in still)
        assert "called it off" in said.stderr


@virtual
async def test_waiting_for_a_drain_names_the_node_that_went_away_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_STILL_MS", 60_000)
    async with paper(shepherds=2) as p:
        await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        waiting = asyncio.ensure_future(run_admin(p.b, monkeypatch, "node", "drain", one, "--wait"))
        await asyncio.sleep(5)
        await down(p, one)
        await asyncio.sleep(125)
        await p.b.service.drain(ADMIN, one, False)
        said = (await waiting).stderr.splitlines()
        still = [line for line in said if "nothing has left it" in line]
        assert len(still) == 2
        assert all("it is offline, and nothing leaves it until it is back" in line for line in still)


@pytest.mark.expect_log("is lost with")
@virtual
async def test_forget_names_what_would_be_lost_and_needs_a_word_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paper(shepherds=3) as p:
        await p.upload("only", copies=1)
        _, both = await p.upload("both", copies=2)
        one = p.b.shepherds[0]
        alive = await run_admin(p.b, monkeypatch, "node", "forget", one)
        assert alive.code == 5
        assert "it is alive" in alive.stderr
        await down(p, one)
        await p.until(lambda: asyncio.sleep(0, len(p.holding(both)) == 2))
        refused = await run_admin(p.b, monkeypatch, "node", "forget", one)
        assert refused.code == 5
        assert "/only" in refused.stdout
        assert "/both" not in refused.stdout
        assert "--accept-loss" in refused.stderr
        assert one in await p.b.locations(both), "a refusal changes nothing"
        with monkeypatch.context() as person:
            person.setattr(removing, "at_a_terminal", lambda: True)
            person.setattr(removing, "agreed", lambda question: asyncio.sleep(0, "for good" not in question))
            unsure = await run_admin(p.b, monkeypatch, "node", "forget", one, "--accept-loss")
        assert "nothing was done (cancelled)" in unsure.stderr
        assert one in await p.b.locations(both), "nor does who says no at a terminal"
        done = await run_admin(p.b, monkeypatch, "node", "forget", one, "--accept-loss", as_json=True)
        (told,) = json.loads(done.stdout)["results"]
        assert (told["ok"], told["forgotten"], told["replicas"]) == (True, True, 2)
        assert [loss["ln"] for loss in told["losses"]] == ["/only"]
        again = await run_admin(p.b, monkeypatch, "node", "forget", one)
        assert (again.code, "forgotten, with 0 replicas" in again.stdout) == (0, True)
        services = await run_admin(p.b, monkeypatch, "service", "list")
        assert "forgotten" in services.stdout
        approve = await run_admin(p.b, monkeypatch, "node", "approve", one)
        assert approve.code == 4
        assert "lost for good" in approve.stderr


@virtual
async def test_what_was_withdrawn_does_not_ask_to_be_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the services of a host that is no more: `admin status` requested their approval for ever."""
    async with paper(shepherds=1) as p:
        [one] = p.b.shepherds
        await run_admin(p.b, monkeypatch, "service", "withdraw", one)
        listed = await run_admin(p.b, monkeypatch, "service", "list", as_json=True)
        [told] = [each for each in json.loads(listed.stdout)["results"] if each["service_id"] == one]
        assert (told["approved"], told["withdrawn"]) == (False, True)
        assert f"{one}  withdrawn" in (await run_admin(p.b, monkeypatch, "service", "list")).stdout
        assert "approve" not in (await run_admin(p.b, monkeypatch, "status")).stdout


@virtual
async def test_a_maintenance_without_an_end_in_sight_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paper(shepherds=1) as p:
        [one] = p.b.shepherds
        assert (await run_admin(p.b, monkeypatch, "node", "maintenance", one, **{"for": "99999999d"})).code == 0
        for words in (("node", "list"), ("status",)):
            assert "9999-12-31" in (await run_admin(p.b, monkeypatch, *words)).stdout


@virtual
async def test_an_approval_is_for_one_identity_however_many_ask_to_be_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A heartbeat in the name of any Shepherd, with any certificate, asks for approval."""
    async with paper(shepherds=1) as p:
        [one], thief = p.b.shepherds, Dn("/CN=thief")
        [true] = [each.dn for each in await p.b.service.services(ADMIN) if each.service_id == one]
        await p.b.service.approve(ADMIN, ServiceRecord(Role.SHEPHERD, thief, one, approved=False))
        await run_admin(p.b, monkeypatch, "service", "withdraw", one)

        async def approved() -> list[Dn]:
            return [each.dn for each in await p.b.service.services(ADMIN) if each.service_id == one and each.approved]

        unsure = await run_admin(p.b, monkeypatch, "node", "approve", one)
        assert (unsure.code, await approved()) == (5, [])
        assert thief in unsure.stderr
        assert true in unsure.stderr
        assert (await run_admin(p.b, monkeypatch, "node", "approve", one, true)).code == 0
        assert await approved() == [true]
        assert (await run_admin(p.b, monkeypatch, "node", "withdraw", one, thief)).code == 0
        assert await approved() == [true]


@pytest.mark.parametrize("what", ["drain", "undrain", "forget"])
@virtual
async def test_an_unknown_node_is_named_with_those_there_are(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with paper(shepherds=1) as p:
        said = await run_admin(p.b, monkeypatch, "node", what, "https://nowhere/Shepherd")
        assert said.code == 3
        assert p.b.shepherds[0] in said.stderr


@virtual
async def test_maintenance_for_a_time_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paper(shepherds=1) as p:
        one = p.b.shepherds[0]
        said = await run_admin(p.b, monkeypatch, "node", "maintenance", one, **{"for": "2h"})
        assert "in maintenance until" in said.stdout
        assert "maintenance until" in (await run_admin(p.b, monkeypatch, "node", "list")).stdout
        await run_admin(p.b, monkeypatch, "node", "maintenance", one, "--end")
        assert "maintenance" not in (await run_admin(p.b, monkeypatch, "node", "list")).stdout
        neither = await run_admin(p.b, monkeypatch, "node", "maintenance", one)
        assert neither.code == 2


def test_a_command_without_its_argument_is_not_called_unknown(chelonia: Command) -> None:
    """It said "admin does not know 'node drain'", which is there."""
    lines = chelonia("admin", "node", "drain").err.splitlines()
    assert lines == [
        "chelonia: admin node drain: no such command, or the wrong number of arguments",
        "Usage: chelonia admin node drain <id> [--wait]",
    ]
