"""The commands beside a mount: messages about the end of the background process."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError
from chelonia_fuse import command
from chelonia_fuse.mounting import _locked


def test_a_mount_in_the_background_that_ends_tells_what_the_system_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\necho 'fusermount3: user has no write access to mountpoint' >&2\n"
        "echo 'chelonia: mount: it failed (bad-config)' >&2\nexit 2\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    said = r"it did not mount: fusermount3: user has no write access to mountpoint; it failed$"
    with pytest.raises(CheloniaError, match=said):
        command.in_background(["mount", "/", "/mnt"], str(tmp_path / "log"))


def test_a_unit_is_told_once_the_directory_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Path(__file__).parents[3] / "systemd" / "chelonia-mount@.service"
    assert "Type=notify" in unit.read_text().splitlines()
    command.notify_systemd()  # nobody waits
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        command.notify_systemd()
        assert systemd.recv(100) == b"READY=1"


def test_a_second_mount_keeps_off_the_cache_directory_of_the_first(tmp_path: Path) -> None:
    first = tmp_path / "mount-1"
    told = pytest.raises(CheloniaError, match="another mount uses this cache directory")
    with _locked(first), _locked(tmp_path / "mount-2"), told, _locked(first):
        raise AssertionError("both have it")
    with _locked(first):
        pass  # the first one has ended


@pytest.mark.parametrize(
    ("number", "remark", "asked", "lazy"),
    [
        (errno.ENOTCONN, command.LEFT, False, True),
        (errno.ENODATA, command.UNKNOWN, False, False),
        (errno.EACCES, command.UNKNOWN, False, False),
        (errno.EACCES, command.UNKNOWN, True, True),
    ],
)
async def test_only_a_process_that_is_gone_is_called_gone(
    monkeypatch: pytest.MonkeyPatch, number: int, remark: str, asked: bool, lazy: bool
) -> None:
    """A mount of another version, or of another user, does not publish its process."""
    told: list[list[str]] = []

    def refused(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    def run(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        told.append(argv)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(command, "mounts", lambda: ["/mnt/lab"])
    monkeypatch.setattr(os, "getxattr", refused)
    monkeypatch.setattr(subprocess, "run", run)
    assert await command.umount("/mnt/lab", lazy=asked) == remark
    assert told == [["fusermount3", "-u", *(["-z"] if lazy else []), "/mnt/lab"]]
