"""Access keys of users: nothing of a secret stays where its key has gone."""

from __future__ import annotations

import base64
import weakref

import msgspec
import pytest

from chelonia.core import bounds
from chelonia.core.errors import Kind
from chelonia.core.ids import ROOT, Ms, RequestKey
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import AccessKey, NewKey, SealedKey
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import CHANGING, READING, Scope, Scopes, Share
from chelonia.core.timing.clock import stamp
from chelonia.core.values import replace
from tests.support.failing import fails
from tests.support.stage import ADMIN, EVE, JOE, Stage, scene


@scene
async def test_a_key_that_was_revoked_is_not_kept_in_memory(stage: Stage) -> None:
    keys = stage.bartender.keys
    for elsewhere in (False, True):
        made = await keys.create(JOE, NewKey())
        found = await keys.find(made.key.id)
        assert found == made
        assert await keys.find(made.key.id) is found, "so what a door derives from it serves its next requests"
        secret = weakref.ref(found)
        if elsewhere:
            await stage.another_bartender(stage.settings).keys.revoke(JOE, made.key.id)
            await stage.clock.sleep(bounds.ACCESS_KEY_CACHE_MS)
        else:
            await keys.revoke(JOE, made.key.id)
        assert await keys.find(made.key.id) is None
        del found
        assert secret() is None


@scene
async def test_no_program_takes_a_secret_for_an_option(stage: Stage) -> None:
    secrets = {(await stage.bartender.keys.create(JOE, NewKey())).secret for _ in range(20)}
    assert len(secrets) == 20
    assert all(len(secret) == 40 and secret.isascii() and secret.isalnum() for secret in secrets)


@scene
async def test_one_user_does_not_use_up_all_keys_that_there_may_be(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ACCESS_KEYS_PER_DN_MAX", 3)
    keys = stage.bartender.keys
    made = [await keys.create(JOE, NewKey(expires_ms=end)) for end in (Ms(0), Ms(0), Ms(stage.clock.now_ms() + 1000))]
    with fails(Kind.TOO_LARGE):
        await keys.create(JOE, NewKey())
    assert stage.limits.reached == {"access_keys": 1}
    await keys.create(EVE, NewKey())
    await keys.revoke(JOE, made[0].key.id)
    await keys.create(JOE, NewKey())
    await stage.clock.sleep(2000)
    await keys.create(JOE, NewKey())  # what has expired makes room
    assert made[2].key.id not in {key.id for key in await keys.list(JOE)}


@scene
async def test_the_last_key_that_there_is_room_for_is_kept_though_its_answer_was_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ACCESS_KEYS_PER_DN_MAX", 1)
    call = stage.bartender.keys._ports.own(JOE).keyed(RequestKey("k1"))
    sealed = SealedKey(AccessKey("AKIALAST", JOE.dn, Ms(stage.clock.now_ms())), "sealed")
    for _ in range(2):  # as the Bartender's stub repeats it
        await stage.librarian.keep_access_key(call, sealed)
    assert stage.limits.reached == {}


@scene
async def test_keys_that_were_made_with_a_certificate_end_when_it_is_revoked(stage: Stage) -> None:
    keys = stage.bartender.keys
    thief, admin = (msgspec.structs.replace(call, credential=f"5f /CN=CA of {call.dn}") for call in (JOE, ADMIN))
    stolen, given, older = (
        await keys.create(thief, NewKey()), await keys.create(admin, NewKey(JOE.dn)), await keys.create(JOE, NewKey()),
    )  # fmt: skip
    assert await keys.find(stolen.key.id) == stolen
    keys.revoked = lambda credential: credential.startswith("5f ")
    assert [await keys.find(each.key.id) for each in (stolen, given, older)] == [None, given, older]
    told = {key.id: (key.credential, key.void) for key in await keys.list(JOE)}
    assert told[stolen.key.id] == (thief.credential, True)
    assert [told[each.key.id][1] for each in (given, older)] == [False, False]


@scene
async def test_a_key_does_not_hide_what_it_was_made_with(stage: Stage) -> None:
    keys = stage.bartender.keys
    made = await keys.create(msgspec.structs.replace(JOE, credential="5f /CN=CA"), NewKey())
    sealed = await keys.kept(made.key.id)
    assert sealed is not None
    await keys.revoke(JOE, made.key.id)
    other = msgspec.structs.replace(sealed, key=msgspec.structs.replace(sealed.key, credential=""))
    await stage.librarian.keep_access_key(stage.bartender.keys._ports.own(JOE), other)
    assert await keys.find(made.key.id) is None


@scene
async def test_a_key_stays_as_narrow_as_it_was_made(stage: Stage) -> None:
    keys, scopes = stage.bartender.keys, (Scope(READING, ("lab",)), Scope((*READING, *CHANGING), ("own", "run1")))
    made = await keys.create(JOE, NewKey(scopes=scopes))
    other = stage.another_bartender(stage.settings).keys
    assert (await other.find(made.key.id), made.key.scopes) == (made, scopes)
    assert [key.scopes for key in await keys.list(JOE)] == [scopes]
    sealed = await keys.kept(made.key.id)
    assert sealed is not None
    text = msgspec.json.encode(scopes).decode()
    for scoped, credential in (((), ""), ((Scope(READING),), ""), ((), text), ((), f"\n{text}"), (scopes, "5f /CN=CA")):
        await keys.revoke(JOE, made.key.id)
        wider = msgspec.structs.replace(sealed.key, scopes=scoped, credential=credential)
        changed = msgspec.structs.replace(sealed, key=wider)
        await stage.librarian.keep_access_key(stage.bartender.keys._ports.own(JOE), changed)
        assert await keys.find(made.key.id) is None


@pytest.mark.parametrize("scopes", [(Scope(()),), (Scope((Action.MODIFY_POLICY,)),), (Scope(READING),) * 11,
                                    (Scope(READING, ("x" * 255,) * 40),)])  # fmt: skip
@scene
async def test_what_no_key_can_be_narrowed_to_is_refused(stage: Stage, scopes: Scopes) -> None:
    with fails(Kind.BAD_REQUEST):
        await stage.bartender.keys.create(JOE, NewKey(scopes=scopes))


@scene
async def test_metadata_that_were_stolen_reveal_no_secret(stage: Stage) -> None:
    made = await stage.bartender.keys.create(JOE, NewKey(note="laptop"))
    sealed = await stage.bartender.keys.kept(made.key.id)
    assert sealed is not None
    assert made.secret.encode() not in base64.b64decode(sealed.secret) + msgspec.json.encode(sealed)
    thief = stage.another_bartender(replace(stage.settings, token_key=b"what he had to guess")).keys
    assert await stage.bartender.keys.list(JOE) == (made.key,)
    assert (await thief.list(JOE), await thief.find(made.key.id)) == ((replace(made.key, void=True),), None)
    for other in (EVE.dn, ADMIN.dn):
        await stage.bartender.keys.revoke(JOE, made.key.id)
        changed = msgspec.structs.replace(sealed, key=msgspec.structs.replace(sealed.key, dn=other))
        await stage.librarian.keep_access_key(stage.bartender.keys._ports.own(JOE), changed)
        assert await stage.bartender.keys.find(made.key.id) is None, "nor is another's made of it"
        await stage.bartender.keys.revoke(ADMIN, made.key.id)
        await stage.librarian.keep_access_key(stage.bartender.keys._ports.own(JOE), sealed)


@scene
async def test_links_of_another_token_key_or_of_a_revoked_certificate_are_told_as_void(stage: Stage) -> None:
    giver = msgspec.structs.replace(JOE, credential="5f /CN=CA")
    later = stage.another_bartender(replace(stage.settings, token_key=b"a new one of all Bartenders"))
    for bartender in (stage.bartender, later):
        await bartender.files.share(giver, Share(LogicalName(ROOT, ()), READING, 60_000))
    assert [[key.void for key in await each.keys.list(JOE)].count(True) for each in (stage.bartender, later)] == [1, 1]
    older = SealedKey(AccessKey("link-0", JOE.dn, Ms(1), Ms(2**50), "read on /"), "its token")
    await stage.librarian.keep_access_key(stage.bartender.keys._ports.own(JOE), older)
    assert [key.void for key in await later.keys.list(JOE) if key.id == "link-0"] == [False], "nobody noted its mark"
    await stage.bartender.keys.revoke(JOE, "link-0")
    later.keys.revoked = lambda credential: credential.startswith("5f ")
    assert all(key.void for key in await later.keys.list(JOE))


@scene
async def test_what_is_remembered_of_keys_is_bounded_and_they_are_found_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone may send ids of keys that do not exist."""
    monkeypatch.setattr(bounds, "ACCESS_KEYS_KNOWN_MAX", 3)
    keys = stage.bartender.keys
    made = await keys.create(JOE, NewKey())
    for number in range(10):
        assert await keys.find(f"NONE{number}") is None
        assert await keys.find(made.key.id) == made
        assert len(keys._cache) <= 3


@pytest.mark.parametrize("end", [-1, 1, 2**53, 2**63])
@scene
async def test_a_key_ends_at_a_date_that_can_be_shown(stage: Stage, end: int) -> None:
    """One that ended in the year 287396 could be made, and no command could list keys any more."""
    with fails(Kind.BAD_REQUEST, match="no date"):
        await stage.bartender.keys.create(JOE, NewKey(expires_ms=Ms(end)))
    latest = Ms(bounds.TIME_S_MAX * 1000)
    await stage.bartender.keys.create(JOE, NewKey(expires_ms=latest))
    assert [stamp(key.expires_ms)[:4] for key in await stage.bartender.keys.list(JOE)] == ["2554"]
