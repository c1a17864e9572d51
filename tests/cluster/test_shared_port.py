"""Several front-end processes of one host at one port: the kernel spreads connections, and the others replace one that
dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chelonia.core.values import replace
from chelonia.hosting.config import NodeConfig, parse_config, render_config
from tests.cluster.harness import Cluster
from tests.support.polling import poll

FILES = 40
"""So many connections go to one of two processes once in 2**39 times."""


def shared(config: NodeConfig) -> NodeConfig:
    return replace(config, listen=tuple(replace(each, shared="files" in each.serves) for each in config.listen))


def front_end(core: NodeConfig, name: str) -> NodeConfig:
    """A further front end beside a core: a Bartender with an id of its own, and the core's plain door."""
    assert core.bartender is not None
    assert core.librarian is not None
    bartender = replace(core.bartender, id="https://localhost:1/Bartender", librarians=(core.librarian.id,))
    door = next(each for each in core.listen if "files" in each.serves)
    own = replace(door, port=0, serves=("bartender",), shared=False)
    return replace(
        core, node=replace(core.node, name=name), listen=(own, door), ahash=None, librarian=None,
        bartender=bartender, log=replace(core.log, audit_file=""),
    )  # fmt: skip


@contextmanager
def running(config: NodeConfig, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process of that configuration that serves, and its log."""
    path, log = directory / f"{config.node.name}.toml", directory / f"{config.node.name}.log"
    path.write_text(render_config(config))
    argv = [sys.executable, "-m", "chelonia.hosting.cheloniad", "run", "--config", str(path)]
    with log.open("wb") as told, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=told) as process:
        try:
            poll(lambda: " serving " in log.read_text(), 60, what="the front end serves")
            yield process, log
        finally:
            process.kill()


def test_front_ends_share_a_port_and_one_that_dies_is_not_missed(
    own_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = own_cluster()
    place = cluster.root / "conf" / "core.toml"
    core = shared(parse_config(tomllib.loads(place.read_text())))
    place.write_text(render_config(core))
    cluster.wait_restarted("core", cluster.signal("core", signal.SIGTERM))
    names = [f"{cluster.files_url}/f{number}" for number in range(FILES)]
    poll(lambda: cluster.request("GET", cluster.files_url + "/").status == 200, 60, tolerate=OSError, what="it serves")
    with running(front_end(core, "second"), tmp_path) as (second, log):
        for name in names:  # each by a connection of its own
            assert cluster.request("PUT", name, body=name.encode()).status == 201
        assert 0 < log.read_text().count('op="write"') < FILES, log.read_text()
        second.send_signal(signal.SIGKILL)
        second.wait()
        assert [cluster.request("GET", name).body for name in names] == [name.encode() for name in names]
