"""`cheloniad join` killed by SIGKILL at every step, and repeated: all is as if it had not been killed.

Steps are those of `test_cli_init_killed`. `admit` is this process, its A-Hash and Librarian are stand-ins.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from chelonia.durable_files import write_file
from chelonia.hosting.cheloniad import main
from chelonia.hosting.config import load_config
from chelonia.hosting.net.certificates import CertificateAuthority, KeyKind
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.credentials import explain_chain
from chelonia.hosting.net.tls import TlsSettings, load_trust
from chelonia.hosting.setup import host_files
from chelonia.hosting.setup.cli_ca import base_of
from chelonia.hosting.setup.first_config import HostPaths
from tests.unit.hosting.grid import real_now_ms
from tests.unit.hosting.setup.test_cli_init import ACCOUNT, init, places, tree, where
from tests.unit.hosting.setup.test_cli_init_killed import KILLED, LIVED, STEPS_MAX, begun, end_of, shape
from tests.unit.hosting.setup.test_cli_join import NEW, Admission, certify, say, site


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(host_files, "check_resolves", lambda _name: None)
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # what is killed is the process, not the machine


async def joined(admission: Admission, here: Path, step: int, *more: str) -> int:
    """Run `join` in a child that ends by SIGKILL just before its `step`th step; returns how it ended."""
    words = ["join", f"127.0.0.1:{admission.port}", "--as", NEW, "--token", admission.token, "--account", ACCOUNT]
    child = begun(step, [*words, *where(here), *more])
    ended = asyncio.Event()
    loop, handle = asyncio.get_running_loop(), os.pidfd_open(child)
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return end_of(child)


def check_whole(at: HostPaths) -> None:
    """Check that all files for the daemons are there, and fit together."""
    for config in (at.core, at.shepherd):
        assert main(["check-config", "--config", str(config)]) == 0
    chain = x509.load_pem_x509_certificates(at.cert.read_bytes())
    assert explain_chain(chain, load_trust(TlsSettings(ca_dir=at.ca_dir)), SystemClock().now_ms()) == ()
    key = serialization.load_pem_private_key(at.key.read_bytes(), None)
    assert key.public_key() == chain[0].public_key()
    section = load_config(at.core).ahash
    assert section is not None
    assert section.replica_id == 2


async def killed_at_each_step(
    root: Path, monkeypatch: pytest.MonkeyPatch, *more: str, certified: Callable[[HostPaths], None] = lambda at: None
) -> int:
    """Kill `join` at each step, and repeat it while the same `admit` waits; returns how many steps it has."""
    whole = places(root / "whole")
    certified(whole)
    say(monkeypatch, "y")
    async with Admission(root) as admission:
        assert await joined(admission, root / "whole", STEPS_MAX, *more) == LIVED
        await admission.task
    check_whole(whole)
    expected = shape(root / "whole")
    for step in range(STEPS_MAX):
        here = root / f"{step:03}"
        certified(places(here))
        say(monkeypatch, "y", "y")
        async with Admission(root) as admission:
            first = await joined(admission, here, step, *more)
            if first == LIVED:
                return step
            assert first == KILLED, f"at step {step}"
            kept = {path: path.read_bytes() for path in (places(here).key, places(here).cert) if path.exists()}
            assert await joined(admission, here, STEPS_MAX, *more) == LIVED, f"killed at step {step}"
            await admission.task
        check_whole(places(here))
        assert shape(here) == expected, f"killed at step {step}"
        assert {path: path.read_bytes() for path in kept} == kept, f"killed at step {step}"
        assert len(admission.group.changes) == 1, "a member is not made one again"
    raise AssertionError(f"join has more than {STEPS_MAX} steps")


async def test_killed_at_any_step_it_is_given_again_and_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init(tmp_path / "one") == 0
    assert await killed_at_each_step(tmp_path, monkeypatch) > 20


async def test_so_it_is_with_the_sites_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = site(tmp_path)
    steps = await killed_at_each_step(
        tmp_path, monkeypatch, "--site-certificate", certified=lambda at: certify(ca, at, NEW)
    )
    assert steps > 10


async def test_so_it_is_with_a_certificate_that_the_clusters_ca_gave_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cheloniad ca` accepts any; `admit` would have used `host/two.example.org`."""
    assert init(tmp_path / "one") == 0
    ca = CertificateAuthority.load(places(tmp_path / "one").grid)

    def certified(at: HostPaths) -> None:
        ca.issue_host(f"{base_of(ca)}/CN=second of ours", [NEW], real_now_ms()).write(at.cert, at.key)

    assert await killed_at_each_step(tmp_path, monkeypatch, certified=certified) > 10


async def test_a_certificate_of_another_ca_is_not_taken_for_that_of_an_earlier_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch)
    ca = CertificateAuthority.create(tmp_path / "site", "/DC=org/CN=Site CA", SystemClock().now_ms(), kind=KeyKind.P256)
    async with Admission(tmp_path) as admission:
        certify(ca, admission.two, NEW)
        before = tree(tmp_path / "two")
        assert await admission.join() == 1
    assert "is not of it: move hostcert.pem and hostkey.pem away" in capsys.readouterr().err
    assert tree(tmp_path / "two") == before
    assert admission.group.changes == []


async def test_the_secret_of_another_cluster_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "one") == 0
    say(monkeypatch, "y", "y")
    async with Admission(tmp_path) as admission:
        admission.two.secret.parent.mkdir(parents=True, exist_ok=True)
        write_file(admission.two.secret, b"that of the cluster before\n", 0o400)
        before = tree(tmp_path / "two")
        assert await admission.join() == 1
        assert "not the secret of this cluster" in capsys.readouterr().err
        assert tree(tmp_path / "two") == before
        admission.two.secret.unlink()
        assert await admission.join() == 0
