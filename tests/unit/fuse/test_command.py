"""The commands beside a mount: messages about the end of the background process."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError
from chelonia_fuse import behind, command
from chelonia_fuse.mounting import Stranded, _locked
from tests.support.cluster import MemoryCluster
from tests.unit.fuse.mounts import HOUR_S, mounted, without_haste


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


def test_a_mount_in_the_background_is_of_the_group_of_its_caller_until_it_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An automount let no other group through to the directory, and waited for the mount for ever."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho mounted $(cut -d ' ' -f 5 /proc/$$/stat) ${command.IN_BACKGROUND}\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    begun, popen = list[subprocess.Popen[bytes]](), subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **words: begun.append(popen(*args, **words)) or begun[-1])
    assert command.in_background(["mount", "/", "/mnt"], str(tmp_path / "log")) == f"mounted {os.getpgrp()} 1"
    begun[0].wait()


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
    with _locked(first, ""), _locked(tmp_path / "mount-2", ""), told, _locked(first, ""):
        raise AssertionError("both have it")
    with _locked(first, ""):
        pass  # the first one has ended


@pytest.mark.expect_log("is kept in|is committed now")
async def test_an_unmount_says_what_was_not_committed_and_the_status_does_afterwards(
    memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a mount waits 30 s for a cluster that is away. The second file that waits is a packed one."""
    without_haste(monkeypatch)
    cache = tmp_path / "mount-1"
    with _locked(cache, "/lab\n/mnt/lab\n0"):
        mount = await mounted(memory, cache)
        for name in "abcde":
            await mount.write(name, b"1")
        await mount.committer.behind.drained()
        monkeypatch.setattr(behind, "LINGER_S", HOUR_S)
        handle = await mount.open("a")
        await mount.system.write(handle, 0, b"2")
        late = await mount.open("f", os.O_CREAT | os.O_RDWR)
        await mount.system.write(late, 0, b"1")
        mount.network.away = True
        await mount.close(late)
        await mount.close(handle)
        assert [late.inode.guid in mount.committer.waiting, len(mount.committer.waiting)] == [False, 1]
        assert command.stranded(f"cache={tmp_path}") == []
        assert "f" in {each.path.strip("/") for each, _ in mount.committer._packed.records()}
        await mount.committer.drain(0)
        for task in mount.committer.behind._tasks:  # its process ends
            task.cancel()
    found = Stranded("/lab", "/mnt/lab", str(cache), 2)
    assert command.stranded(f"cache={tmp_path}") == [found]

    async def told(_: str) -> dict[str, object]:
        with subprocess.Popen(["true"]) as gone:
            gone.wait()
        return {"pid": gone.pid, "cache": str(cache), "place": "/lab", "mountpoint": "/mnt/lab"}

    monkeypatch.setattr(command, "mounts", lambda: ["/mnt/lab"])
    monkeypatch.setattr(command, "status", told)
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0))
    said = rf"2 files wait in {cache}; the next mount of /lab at /mnt/lab commits what waits"
    with pytest.raises(CheloniaError, match=said) as caught:
        await command.umount("/mnt/lab")
    assert caught.value.meaning.exit_code == 7
    again = await mounted(memory, cache)
    await again.committer.work_off()
    assert [await again.read(name) for name in "af"] == [b"2", b"1"]
    assert command.stranded(f"cache={tmp_path}") == []
    assert await command.umount("/mnt/lab") == ""


def test_a_mount_that_got_no_further_than_its_lock_hides_no_other_from_the_status(tmp_path: Path) -> None:
    """As where the disk was full. The status failed with "No such file"."""
    for number in (1, 2):
        with _locked(tmp_path / f"mount-{number}", f"/lab\n/mnt/{number}\n0"):
            pass
    (tmp_path / "mount-2" / "packed").mkdir()
    (tmp_path / "mount-2" / "journal").mkdir()
    (tmp_path / "mount-2" / "journal" / "6d4a.json").touch()
    assert [each.mountpoint for each in command.stranded(f"cache={tmp_path}")] == ["/mnt/2"]


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
