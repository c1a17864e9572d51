"""`cheloniad init` killed by SIGKILL at every step, and repeated: all is as if it had not been killed.

A step is a visible change: a file or directory appears under its name, or gets its owner or mode.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from chelonia.hosting.cheloniad import main
from chelonia.hosting.config import load_config
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.credentials import explain_chain
from chelonia.hosting.net.tls import TlsSettings, load_trust
from chelonia.hosting.setup.first_config import HostPaths
from tests.unit.hosting.setup.test_cli_init import ACCOUNT, first_port, places, where

STEPS_MAX = 500
LIVED, KILLED = 0, -signal.SIGKILL


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # what is killed is the process, not the machine


def is_step(event: str, arguments: tuple[object, ...]) -> bool:
    match event, arguments:
        case "os.mkdir", (str() | os.PathLike() as path, *_):
            return not os.path.exists(path)
        case "os.chmod" | "os.chown", (target, *_):
            return not isinstance(target, int)  # of a temporary file, which is open
        case "os.rename" | "shutil.rmtree", _:
            return True
    return False


def begun(step: int, words: list[str]) -> int:
    """Run `cheloniad` in a child that ends by SIGKILL just before its `step`th step; returns its process id."""
    child = os.fork()
    if child == 0:
        left = step

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if is_step(event, arguments):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(watch)
            os._exit(main(words))
        except BaseException:
            os._exit(99)
    return child


def end_of(child: int) -> int:
    """How a child ended."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def init_words(root: Path, port: int, *more: str) -> list[str]:
    where_to = ["--account", ACCOUNT, "--port", str(port), "--with", "two.example.org", "--administrator", "Anna"]
    return ["init", "localhost", *where(root), *where_to, *more]


def home_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = root / "home"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return home


def shape(root: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, owner and group of every path, without files of the engine and leftovers of a killed process."""
    found = {}
    for path in sorted(root.rglob("*")):
        name, seen = str(path.relative_to(root)), path.lstat()
        if "/db/" not in name and not name.endswith(".tmp"):
            found[name] = (seen.st_mode, seen.st_uid, seen.st_gid)
    return found


def check_whole(at: HostPaths, home: Path) -> None:
    """Check that all files for the daemons and the administrator are there, and fit together."""
    for config in (at.core, at.shepherd):
        assert main(["check-config", "--config", str(config)]) == 0
    trust, now = load_trust(TlsSettings(ca_dir=at.ca_dir)), SystemClock().now_ms()
    for cert, key in ((at.cert, at.key), (home / ".globus" / "usercert.pem", home / ".globus" / "userkey.pem")):
        chain = x509.load_pem_x509_certificates(cert.read_bytes())
        assert explain_chain(chain, trust, now) == ()
        own = serialization.load_pem_private_key(key.read_bytes(), None)
        assert own.public_key() == chain[0].public_key()
    crl = x509.load_pem_x509_crl((at.grid / "ca" / "crl.pem").read_bytes())
    assert crl.next_update_utc is not None
    assert round((crl.next_update_utc.timestamp() * 1000 - now) / 86_400_000) == 395
    assert len(list(at.ca_dir.glob("*.0"))) == 2, "one CA, under both hashes"
    assert not list(at.ca_dir.glob("*.1"))
    section = load_config(at.core).ahash
    assert section is not None
    assert {path.name for path in at.ahash.iterdir()} == {"lock", "commits", "db"}


def steps_left(root: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, int]]:
    """A directory for each step, in which `init` was killed there; ends when it ran to its end."""
    for step in range(STEPS_MAX):
        here = root / f"{step:03}"
        home_of(here, monkeypatch)
        ended = end_of(begun(step, init_words(here, port)))
        if ended == LIVED:
            return
        assert ended == KILLED, f"at step {step}"
        yield here, step
    raise AssertionError(f"init has more than {STEPS_MAX} steps")


def test_killed_at_any_step_it_is_given_again_and_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = first_port()
    home = home_of(tmp_path / "whole", monkeypatch)
    assert main(init_words(tmp_path / "whole", port)) == 0
    check_whole(places(tmp_path / "whole"), home)
    expected = shape(tmp_path / "whole")
    steps = 0
    for here, step in steps_left(tmp_path, port, monkeypatch):
        steps += 1
        capsys.readouterr()
        assert main(init_words(here, port)) == 0, f"killed at step {step}: {capsys.readouterr().err}"
        check_whole(places(here), here / "home")
        assert shape(here) == expected, f"killed at step {step}"
    assert steps > 40
