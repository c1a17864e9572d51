"""A group of real A-Hash daemons grows, shrinks and meets bad peers: a smoke of `make replicas ARGS="--daemons"`."""

from pathlib import Path

import pytest

from tests.cluster import daemons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.long
async def test_one_becomes_three_and_one_again_while_writers_write(tmp_path: Path) -> None:
    assert await daemons.grow_and_shrink(tmp_path) > 100


async def test_who_does_not_belong_is_refused_and_the_group_goes_on(tmp_path: Path) -> None:
    assert await daemons.run(tmp_path, (daemons.double_an_identity, daemons.talk_badly)) > 50
