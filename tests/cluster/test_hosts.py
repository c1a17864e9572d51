"""Three hosts, set up by the commands of the operator's page, and a network that fails: a smoke of `make hosts`."""

import re
import stat
from pathlib import Path

import pytest

from tests.cluster import hosts
from tests.cluster.hosts import THREE, Trial
from tests.support import capabilities
from tests.support.hosts import CAPABILITIES

LOUD = re.compile(r"level=(WARNING|ERROR|CRITICAL)|^Traceback", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.capability(*CAPABILITIES)
async def test_three_hosts_set_up_by_the_page_outlive_a_master_that_is_cut_off(tmp_path: Path) -> None:
    async with hosts.cluster(tmp_path, THREE) as trial:
        check_quiet(trial)
        check_unprivileged(trial)
        check_keys(trial)
        check_nobody_joins_twice(trial)
        await hosts.run(trial, [hosts.master_alone])
        assert trial.acknowledged > 100
        if not capabilities.missing("command:go"):  # tests/history says so where it is
            await hosts.noted(trial, hosts.STRIKES[:2])


def check_quiet(trial: Trial) -> None:
    """Check that the commands of the page cause no complaint."""
    for name in trial.names:
        assert not LOUD.findall(text := trial.hosts[name].log.read_text()), text


def check_unprivileged(trial: Trial) -> None:
    """No daemon has root, or any right of root's."""
    for name in trial.names:
        host = trial.hosts[name]
        (account,) = re.findall(r"^chelonia:x:(\d+):", host.path("/etc/passwd").read_text(), re.MULTILINE)
        for process in host.units.values():
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert set(re.findall(r"^Uid:\s+(.*)$", status, re.MULTILINE)[0].split()) == {account} != {"0"}
            assert re.findall(r"^Cap(?:Prm|Eff|Bnd|Inh):\s+(\w+)$", status, re.MULTILINE) == ["0" * 16] * 4


def check_keys(trial: Trial) -> None:
    """Every host has a key of its own, closed to others; the CA's stays on the first."""
    keys = {trial.hosts[name].path("/etc/grid-security/hostkey.pem") for name in trial.names}
    assert len({key.read_bytes() for key in keys}) == len(trial.names)
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o400}
    assert [name for name in trial.names if trial.hosts[name].path("/etc/grid-security/ca").exists()] == ["one"]


def check_nobody_joins_twice(trial: Trial) -> None:
    """A name at work is not given away, and a host that is set up is left alone."""
    said = trial.hosts["one"].run("cheloniad", "admit", "two.example.org", check=False)
    assert "is at work" in said
    assert "token" not in said.lower()
    said = trial.hosts["two"].run("cheloniad", "join", "one.example.org:60005", "--as", "two.example.org")
    assert "nothing was changed" in said
