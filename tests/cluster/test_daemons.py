"""A group of real A-Hash daemons grows, shrinks and meets a double: a smoke of `make replicas ARGS="--daemons"`."""

import signal
import socket
from pathlib import Path

import pytest

from tests.cluster import daemons
from tests.cluster.old_copies import put_back_old_copies
from tests.support.ahash_daemons import HOST, AHashDaemons

pytestmark = pytest.mark.slow


@pytest.mark.long
async def test_one_becomes_three_and_one_again_while_writers_write(tmp_path: Path) -> None:
    assert await daemons.grow_and_shrink(tmp_path) > 100


async def test_a_daemon_that_is_aborted_says_where_it_was(tmp_path: Path) -> None:
    """A library may abort it, and without a stack its exit code would be the only trace."""
    group = AHashDaemons(tmp_path)
    try:
        group.configure(1)
        group.launch(1)
        group.replicas = (1,)
        await group.settled()
        group.processes[1].send_signal(signal.SIGABRT)
        assert await group.ended(1) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in group.log(1)
        assert group.log(1).count("(most recent call first)") > 1, "the stacks of all threads"
    finally:
        await group.close()


async def test_a_port_that_an_outgoing_connection_came_by_is_told_with_the_cure(tmp_path: Path) -> None:
    """Linux takes ports of outgoing connections from a range that includes Chelonia's."""
    group = AHashDaemons(tmp_path)
    try:
        with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()) as outgoing:
            group.ports[1] = outgoing.getsockname()[1]
            group.configure(1)
            group.launch(1)
            assert await group.ended(1) == 1
        assert f"('{HOST}', {group.ports[1]}): address already in use" in group.log(1)
        assert "ip_local_reserved_ports" in group.log(1)
    finally:
        await group.close()


async def test_a_double_is_refused_and_old_copies_of_a_majority_cut_nobody_back(tmp_path: Path) -> None:
    """Both are mistakes of an administrator: the group goes on, or keeps what is newer, and says so."""
    assert await daemons.run(tmp_path, (daemons.double_an_identity, put_back_old_copies)) > 40
