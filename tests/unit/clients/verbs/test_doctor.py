"""The doctor names every problem and its cure, whoami shows the identity in use, and the program behaves at its
edges."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net.clock import SystemClock
from chelonia_clients.arguments import UsageError, parse_duration
from chelonia_clients.cli import main, run
from chelonia_clients.output import Output, table
from chelonia_clients.verbs.doctor import cure_of
from tests.support.polling import patience
from tests.unit.clients.faking import Command
from tests.unit.hosting.grid import OTHER_CA, Grid, publish_unlimited


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("X509_", "ARC_", "CHELONIA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def ran(*words: str) -> tuple[int, str]:
    out = Output(io.StringIO(), io.StringIO())
    code = run(words, out)
    assert isinstance(out.stdout, io.StringIO)
    return code, out.stdout.getvalue()


def test_without_anything_every_part_is_a_problem_with_a_cure(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    code, text = ran("--ca-dir", str(tmp_path / "none"), "--proxy", missing, "doctor")
    assert code == 1
    for topic in ("Bartender", "CAs", "credential"):
        assert f"[problem] {topic}:" in text
    assert text.count("cure: ") == 3
    assert missing in text
    assert text.count("make a proxy") == 1, "the cure once, and no advice to run the doctor"
    assert "chelonia doctor" not in text
    assert "3 problem(s) found." in text


def test_a_bartender_that_is_not_there_is_found_out(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid")
    words = ("--ca-dir", str(grid.trust_dir), "--anonymous", "-b", "https://localhost:1/Bartender")
    code, text = ran(*words, "doctor", "--json")
    said = json.loads(text)
    assert code == said["exit_code"] == 1
    [problem] = [each for each in said["results"] if not each["ok"]]
    assert problem["topic"] == "Bartender https://localhost:1/Bartender"
    assert "is it running?" in problem["text"]


def test_the_doctor_looks_at_everything_although_no_ca_is_there(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid")
    proxy = grid.settings(grid.proxy(grid.user())).proxy
    (tmp_path / "empty").mkdir()
    words = ("--ca-dir", str(tmp_path / "empty"), "--proxy", str(proxy))
    code, text = ran(*words, "-b", "https://localhost:1/Bartender", "doctor")
    assert (code, text.splitlines()[-1]) == (1, "1 problem(s) found.")


def test_a_revoked_certificate_needs_a_new_one_and_no_ca(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid")
    user = grid.user()
    grid.ca.revoke(user.certificate, SystemClock().now_ms())
    words = ("--ca-dir", str(grid.trust_dir), "--proxy", str(grid.settings(user).proxy))
    _, text = ran(*words, "-b", "https://localhost:1/Bartender", "doctor")
    chain = text.partition("[problem] chain:")[2].splitlines()
    assert "was revoked" in chain[0]
    assert "a new certificate" in chain[1]


@pytest.mark.expect_log("event=ca-unlimited")
def test_a_second_ca_that_may_issue_every_name_is_noted(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid")
    words = ("--ca-dir", str(grid.trust_dir), "--anonymous", "-b", "https://localhost:1/Bartender")
    assert "it has no signing policy" not in ran(*words, "doctor")[1]
    publish_unlimited(tmp_path / "other", grid.trust_dir)
    assert f"[note]    CAs: {OTHER_CA}: it has no signing policy" in ran(*words, "doctor")[1]


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (CheloniaError(Kind.UNKNOWN_OPERATION, cause="wrong namespace"), "a Bartender's ends in /Bartender"),
        (
            CheloniaError(Kind.NOT_SUPPORTED, cause="no service 'bartender' here: is it the right port?"),
            "correct the URL",
        ),
        (CheloniaError(Kind.UNTRUSTED, cause="the CRL of CA /CN=x (1.r0) has expired"), "bring that CRL up to date"),
        (CheloniaError(Kind.UNTRUSTED, cause="its root CA is not in the trust directory"), "install that cluster's CA"),
        (CheloniaError(Kind.UNTRUSTED, cause="refused: certificate is not yet valid"), "the clock of this machine"),
        (CheloniaError(Kind.UNTRUSTED, cause="the certificate was revoked by CA /CN=x"), "a new certificate"),
        (CheloniaError(Kind.UNTRUSTED, cause="the peer refuses our certificate"), "whose CA that cluster trusts"),
        (
            CheloniaError(Kind.UNTRUSTED, cause="the peer asks for a certificate, and none was shown"),
            "show a certificate",
        ),
        (CheloniaError(Kind.NETWORK, cause="cannot connect"), "firewall"),
        (CheloniaError(Kind.INTERNAL), "keeper"),
    ],
)
def test_each_kind_of_failure_has_its_cure(error: CheloniaError, cure: str) -> None:
    assert cure in cure_of(error)


def test_columns_stand_below_each_other_whatever_the_script() -> None:
    rows = [("日本", "x"), ("e\u0301a", "x"), ("abcd", "x")]
    assert table(rows) == ["日本  x", "e\u0301a    x", "abcd  x"]


def test_whoami_without_a_certificate(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid")
    code, text = ran("whoami", "--anonymous", "--ca-dir", str(grid.trust_dir))
    assert code == 0
    assert text.splitlines()[0] == "ANONYMOUS"


@pytest.mark.parametrize(("text", "ms"), [("90s", 90_000), ("30m", 1_800_000), ("2h", 7_200_000), ("3d", 259_200_000)])
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["0s", "00d", "-1d", "90", "1w", ""])
def test_what_is_no_duration(text: str) -> None:
    """A key for no time at all was good for ever."""
    with pytest.raises(UsageError, match="--for takes a time like"):
        parse_duration(text)


def test_interrupts_and_broken_pipes_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("chelonia_clients.cli.run", interrupted)
    assert main(["ls", "/"]) == 130
    program = [sys.executable, "-m", "chelonia_clients.cli", "help"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(30 * patience()) == 141
        assert process.stderr.read() == b""


def test_an_error_of_the_program_itself_is_one_line(chelonia: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("chelonia_clients.verbs.listing.stat", broken)
    ran = chelonia("stat", "/")
    assert ran.code == 1
    assert "RuntimeError('oops')" in ran.err
    assert "Traceback" not in ran.err
    with pytest.raises(RuntimeError):
        chelonia("-v", "-v", "stat", "/")


def test_help_needs_no_network_library() -> None:
    program = "import sys; from chelonia_clients import cli; cli.main(['help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"aiohttp", "rich", "cryptography"} & set(done.stdout.splitlines()[-1].split())
