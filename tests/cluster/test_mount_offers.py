"""Programs on a mount meet the errnos and the locks that its page of the manual states."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.mounts import Mount

pytestmark = pytest.mark.capability("fuse")


@pytest.fixture(scope="module")
def two(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mount, Mount]]:
    """Two mounts of one collection."""
    base = tmp_path_factory.mktemp("offers")
    assert cluster.request("MKCOL", f"{cluster.files_url}/offers").status == 201
    pair = (
        Mount(cluster, "/offers", base / "a", base / "cache-a"),
        Mount(cluster, "/offers", base / "b", base / "cache-b"),
    )
    try:
        for each in pair:
            each.start()
        yield pair
        for each in pair:
            each.end()
            assert "Traceback" not in each.log()
    finally:
        for each in pair:
            each.abandon()


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
