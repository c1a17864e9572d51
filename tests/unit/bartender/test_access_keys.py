"""Access keys of users: nothing of a secret stays where its key has gone."""

from __future__ import annotations

import weakref

from chelonia.core import bounds
from chelonia.core.ports.access_keys import NewKey
from tests.unit.bartender.stage import JOE, Stage, scene


@scene
async def test_a_key_that_was_revoked_is_not_kept_in_memory(stage: Stage) -> None:
    keys = stage.bartender.keys
    for elsewhere in (False, True):
        made = await keys.create(JOE, NewKey())
        found = await keys.find(made.key.id)
        assert found == made
        secret = weakref.ref(found)
        if elsewhere:
            await stage.another_bartender(stage.settings).keys.revoke(JOE, made.key.id)
            await stage.clock.sleep(bounds.ACCESS_KEY_CACHE_MS)
        else:
            await keys.revoke(JOE, made.key.id)
        assert await keys.find(made.key.id) is None
        del found
        assert secret() is None
