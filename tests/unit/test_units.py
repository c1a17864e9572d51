"""The systemd units: systemd itself understands every line, and finds them well closed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPOSURE_MAX = 15
"""Limit out of 100, as `systemd-analyze security` counts; the units have 14 today."""

pytestmark = pytest.mark.capability("command:systemd-analyze")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root directory with the units and their programs."""
    units, programs = tmp_path / "etc/systemd/system", tmp_path / "usr/local/bin"
    for folder in (units, programs, tmp_path / "bin", tmp_path / "usr/bin", tmp_path / "usr/lib/systemd/system"):
        folder.mkdir(parents=True)
    for name in ("chelonia@.service", "chelonia.target", "chelonia-mount@.service"):
        shutil.copy(ROOT / "systemd" / name, units)
    for target in ("basic", "sysinit", "shutdown", "network-online", "multi-user", "timers"):
        (tmp_path / f"usr/lib/systemd/system/{target}.target").write_text("[Unit]\nDescription=stands for it\n")
    for program in (
        programs / "cheloniad",
        programs / "chelonia",
        tmp_path / "bin/kill",
        tmp_path / "usr/bin/fusermount3",
    ):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return tmp_path


def analyze(image: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *words[:1], f"--root={image}", *words[1:]]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )  # fmt: skip


def test_systemd_has_nothing_to_say_about_the_units(image: Path) -> None:
    units = ("chelonia@core.service", "chelonia.target", "chelonia-mount@lab.service")
    done = analyze(image, "verify", "--man=no", *units)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_node_that_takes_long_to_start_is_not_taken_for_a_frozen_one() -> None:
    unit = (ROOT / "systemd" / "chelonia@.service").read_text().splitlines()
    assert "Type=notify" in unit, "the watchdog's time begins with the first sign of life"


@pytest.mark.capability("command:systemctl")
@pytest.mark.parametrize("unit", ["chelonia@core.service", "chelonia-mount@lab.service"])
def test_what_is_enabled_starts_with_the_machine(image: Path, unit: str) -> None:
    subprocess.run(["systemctl", f"--root={image}", "enable", unit], check=True, capture_output=True, timeout=60)
    assert (image / "etc/systemd/system/multi-user.target.wants" / unit).is_symlink()


@pytest.mark.parametrize(
    ("line", "mistake"), [("UMask=0077", "UMsk=0077"), ("Restart=always", "Restart=often"), ("/bin/kill", "/bin/kil")]
)
def test_a_mistake_in_a_unit_is_noticed(image: Path, line: str, mistake: str) -> None:
    unit = image / "etc/systemd/system/chelonia@.service"
    unit.write_text(unit.read_text().replace(line, mistake))
    assert analyze(image, "verify", "--man=no", "chelonia@core.service").stdout


def test_a_node_could_do_little_harm(image: Path) -> None:
    limit = f"--threshold={EXPOSURE_MAX}"
    done = analyze(image, "security", "--offline=true", limit, "--no-pager", "chelonia@core.service")
    assert done.returncode == 0, done.stdout
    unit = image / "etc/systemd/system/chelonia@.service"
    unit.write_text(unit.read_text().replace("User=chelonia\n", "").replace("ProtectSystem=strict\n", ""))
    done = analyze(image, "security", "--offline=true", limit, "--no-pager", "chelonia@core.service")
    assert done.returncode != 0, "root is more than that"
