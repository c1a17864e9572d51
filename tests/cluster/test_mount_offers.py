"""Programs on a mount meet the errnos, locks, space and pages that its page of the manual states, as any user."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chelonia_fuse.xattrs import STATUS
from tests.cluster.harness import Cluster
from tests.cluster.mounts import Mount, two_mounts
from tests.support.polling import patience, poll

pytestmark = pytest.mark.capability("fuse")


@pytest.fixture(scope="module")
def two(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mount, Mount]]:
    """Two mounts of one collection."""
    with two_mounts(cluster, tmp_path_factory.mktemp("offers", numbered=False)) as pair:
        yield pair


def refused(act: Callable[[], object]) -> str:
    """The name of the errno of what is refused."""
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0].replace("ENOTSUP", "EOPNOTSUPP")  # two names of one number
    return "it succeeded"


def fallocate(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(8192)):
        raise OSError(ctypes.get_errno(), "fallocate")


def test_what_is_not_offered_is_refused_by_its_errno(two: tuple[Mount, Mount]) -> None:
    top = two[0].path
    file = top / "file"
    file.write_bytes(bytes(100_000))
    with file.open("r+b") as opened:
        fd = opened.fileno()
        assert refused(lambda: fallocate(fd)) == "EOPNOTSUPP"
        assert (os.lseek(fd, 0, os.SEEK_HOLE), os.lseek(fd, 0, os.SEEK_DATA)) == (100_000, 0), "it is all data"
        os.posix_fallocate(fd, 0, 200_000)
        assert os.fstat(fd).st_size == 200_000
    assert refused(lambda: os.open(top, os.O_TMPFILE | os.O_RDWR)) == "EOPNOTSUPP"
    for name in ("trusted.x", "security.x"):
        assert refused(lambda name=name: os.getxattr(file, name)) == "EOPNOTSUPP"
        assert refused(lambda name=name: os.setxattr(file, name, b"x")) == "EOPNOTSUPP"


def test_locks_hold_within_a_mount_and_not_between_two(two: tuple[Mount, Mount]) -> None:
    (two[0].path / "locked").write_bytes(b"x")
    with (two[0].path / "locked").open() as one, (two[0].path / "locked").open() as same:
        fcntl.flock(one, fcntl.LOCK_EX)
        assert refused(lambda: fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)) == "EAGAIN"
        with (two[1].path / "locked").open() as other:  # no request of it reaches the mount, which could refuse it
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_df_shows_the_quota(two: tuple[Mount, Mount], cluster: Cluster) -> None:
    def quota(*words: str) -> None:
        argv = [sys.executable, "-m", "chelonia_clients.cli", "--cluster", str(cluster.root), "--as", "admin"]
        argv += ["admin", "quota", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60 * patience())
        assert done.returncode == 0, done.stderr

    def space() -> tuple[int, int]:
        told = os.statvfs(two[0].path)
        return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize

    before = space()
    quota("set", "/offers", "--bytes", "64M")
    try:
        poll(lambda: space()[0] == 64 << 20, 60.0, what="the quota is shown")
        (two[0].path / "counted").write_bytes(bytes(16 << 20))
        poll(lambda: space()[1] <= 48 << 20, 60.0, what="so is its use")
        assert space()[1] > 40 << 20
    finally:
        quota("remove", "/offers")
    poll(lambda: space()[0] > 64 << 20, 60.0, what="the disks bound it again")
    assert before[0] > 64 << 20


def test_pages_stay_in_the_kernel_while_the_version_stands(two: tuple[Mount, Mount]) -> None:
    mine, theirs = (each.path / "paged" for each in two)

    def asked() -> int:
        """How many bytes the kernel asks of the mount when the file is opened and read."""
        before, data = read_bytes(), mine.read_bytes()
        assert data == theirs.read_bytes()
        return read_bytes() - before

    def read_bytes() -> int:
        return int(json.loads(os.getxattr(two[0].path, STATUS))["read_bytes"])

    theirs.write_bytes(os.urandom(500_000))
    poll(mine.exists, what="the other mount sees it")
    assert [asked(), asked(), asked()] == [500_000, 0, 0]
    theirs.write_bytes(os.urandom(600_000))
    assert [asked(), asked()] == [600_000, 0]


@pytest.mark.capability("root", "tmpfs", "command:setpriv", "command:fusermount3")
def test_a_user_without_privileges_mounts(two: tuple[Mount, Mount], cluster: Cluster) -> None:
    """In a namespace of its own, as /dev/fuse may be root's alone in a container."""
    (two[0].path / "read").write_bytes(b"by nobody")
    base = Path(tempfile.mkdtemp(prefix="chelonia-nobody-"))
    try:
        base.chmod(0o755)
        shutil.copytree(cluster.ca_dir, base / "cas")
        shutil.copy(cluster.files("proxy").cert or "", base / "proxy")
        (base / "m").mkdir()
        for each in ("m", "proxy"):
            shutil.chown(base / each, "nobody", "nogroup")
        who = f"--bartender {cluster.url('bartender')} --proxy {base}/proxy --ca-dir {base}/cas"
        chelonia = f"{sys.executable} -m chelonia_clients.cli"
        (base / "work").write_text(
            f"{chelonia} {who} mount --background -o cache=$HOME/cache /offers {base}/m\n"
            f"id -un; cat {base}/m/read; echo; echo nobody > {base}/m/written\n{chelonia} umount {base}/m\n"
        )
        setup = (
            "mkdir dev home; mount -t tmpfs tmpfs dev; mknod -m 666 dev/fuse c 10 229; "
            "mount --bind dev/fuse /dev/fuse; "
            "mount -t tmpfs -o uid=nobody tmpfs home; "
            "exec setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps=-all sh -eu work"
        )
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", setup]
        environ = {**os.environ, "HOME": f"{base}/home", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(argv, cwd=base, env=environ, capture_output=True, text=True, timeout=120 * patience())
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[1:] == ["nobody", "by nobody"], done.stdout
        assert (two[0].path / "written").read_text() == "nobody\n"
    finally:
        shutil.rmtree(base)
