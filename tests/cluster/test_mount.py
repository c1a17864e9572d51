"""The mount on real daemons and a real kernel: plain file work, two mounts on one collection, deaths on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import hashlib
import json
import mmap
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Content, Done, Splice, When
from chelonia_clients.client import new_call
from chelonia_fuse.cluster import DEADLINE_S
from chelonia_fuse.lookups import VALID_S
from chelonia_fuse.mounting import READ_MS
from chelonia_fuse.options import INODES_MIN
from chelonia_fuse.xattrs import STATUS
from tests.cluster.harness import Cluster, now_ms
from tests.cluster.mounts import Mount, two_mounts
from tests.support.polling import patience, poll

pytestmark = pytest.mark.capability("fuse")

DATA = os.urandom(3_000_000)
NOREPLACE, EXCHANGE = 1, 2


@pytest.fixture(scope="module")
def two(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mount, Mount]]:
    """Two mounts of one collection."""
    with two_mounts(cluster, tmp_path_factory.mktemp("mounted", numbered=False)) as pair:
        yield pair


def rename2(source: Path, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags):
        raise OSError(ctypes.get_errno(), str(source))


def test_plain_file_work(two: tuple[Mount, Mount], cluster: Cluster) -> None:
    a, b = (each.path for each in two)
    desk = a / "desk"
    desk.mkdir(0o750)
    (desk / "small").write_bytes(b"abc")
    (desk / "large").write_bytes(DATA)
    assert (b / "desk/small").read_bytes() == b"abc"
    assert hashlib.sha256((b / "desk/large").read_bytes()).digest() == hashlib.sha256(DATA).digest()
    with (desk / "large").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"in the middle")
    with (desk / "large").open("ab") as file:
        file.write(b"at the end")
    os.truncate(desk / "small", 2)
    with (desk / "told").open("wb") as file:  # as tar does
        file.write(b"x")
        os.fchmod(file.fileno(), 0o604)
    assert stat.S_IMODE((b / "desk/told").stat().st_mode) == 0o604
    expected = DATA[:1_000_000] + b"in the middle" + DATA[1_000_013:] + b"at the end"
    assert (b / "desk/large").read_bytes() == expected
    assert cluster.request("GET", f"{cluster.files_url}/mounted/desk/large").body == expected
    with (desk / "sparse").open("wb") as file:
        file.seek(1 << 32)
        file.write(b"end")
    with (b / "desk/sparse").open("rb") as file:
        assert file.read(5) == bytes(5)
        assert file.seek(1 << 32)
        assert file.read() == b"end"
    listed = subprocess.run(["ls", "-a", b / "desk"], capture_output=True, text=True, check=True).stdout.split()
    assert listed == [".", "..", "large", "small", "sparse", "told"]
    assert (b / "desk/small").read_bytes() == b"ab"
    assert stat.S_IMODE((b / "desk").stat().st_mode) == 0o750
    space = os.statvfs(a)
    assert 0 < space.f_bavail <= space.f_blocks


def test_who_has_a_file_open_reads_what_is_appended_elsewhere(two: tuple[Mount, Mount]) -> None:
    written, read = (each.path / "log" for each in two)
    written.write_text("one\n")
    with read.open() as tail:
        assert tail.read() == "one\n"
        with written.open("a") as log:
            log.write("two\n")
        poll(lambda: tail.read() == "two\n", 30.0, what="it is read on, as by `tail -f`")


def test_attributes_links_and_special_files(two: tuple[Mount, Mount]) -> None:
    a, b = (each.path / "attributes" for each in two)
    a.mkdir()
    file = a / "file"
    file.write_bytes(b"x")
    file.chmod(0o640)
    os.chown(file, 1234, 5678)
    os.utime(file, ns=(1_000_000_001, 1_700_000_000_123_456_789))
    os.setxattr(file, "user.run", b"\x00\xff")
    os.link(file, a / "other")
    (a / "link").symlink_to("file")
    os.mkfifo(a / "pipe", 0o600)
    seen = (b / "other").stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_nlink) == (0o640, 1234, 5678, 2)
    assert (seen.st_atime_ns, seen.st_mtime_ns) == (1_000_000_001, 1_700_000_000_123_456_789)
    assert seen.st_ino == file.stat().st_ino
    assert os.getxattr(b / "other", "user.run") == b"\x00\xff"
    assert os.listxattr(file) == ["user.run"]
    assert os.getxattr(file, "chelonia.checksum") == b"sha256:" + hashlib.sha256(b"x").hexdigest().encode()
    poll(lambda: os.getxattr(file, "chelonia.health").startswith(b"3 of 3"), 60.0, what="a slow third copy is made")
    # Each look reports the Shepherds that answered soon.
    poll(lambda: len(os.getxattr(file, "chelonia.locations").split()) == 3, 60.0, what="all three are told of")
    os.utime(file, (1, 40_000_000_000))
    assert file.stat().st_mtime_ns == bounds.TIME_S_MAX * 10**9
    assert os.readlink(b / "link") == "file"
    assert stat.S_ISFIFO((b / "pipe").stat().st_mode)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        a.rmdir()


def test_many_files_are_read_by_another_mount_as_soon_as_they_are_closed(two: tuple[Mount, Mount]) -> None:
    a, b = (each.path / "many" for each in two)
    a.mkdir()
    for n in range(20):
        with (a / f"f{n}").open("xb") as file:
            file.write(b"%d" % n * 100)
        if n % 4 == 3:
            told = {entry.name: entry.stat().st_size for entry in os.scandir(b)}  # a size that the kernel keeps
            assert len(told) == n + 1
            assert (b / f"f{n}").read_bytes() == b"%d" % n * 100
    (a / "f3").write_bytes(b"longer" * 100)
    assert (b / "f3").read_bytes() == b"longer" * 100
    assert [(b / f"f{n}").read_bytes() for n in range(20) if n != 3] == [b"%d" % n * 100 for n in range(20) if n != 3]


def test_rename_dances(two: tuple[Mount, Mount]) -> None:
    a, b = (each.path / "dance" for each in two)
    a.mkdir()
    (a / "config").write_bytes(b"old")
    for turn in range(5):  # what editors do
        (a / "config.new").write_bytes(b"%d" % turn)
        (a / "config.new").rename(a / "config")
        assert (b / "config").read_bytes() == b"%d" % turn
    (a / "other").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        rename2(a / "other", a / "config", NOREPLACE)
    rename2(a / "other", a / "config", EXCHANGE)
    poll(lambda: (b / "config").read_bytes() == b"other", 10.0, what="names are at most a second old")
    assert ((a / "config").read_bytes(), (b / "other").read_bytes()) == (b"other", b"4")
    (a / "sub").mkdir()
    (a / "other").rename(a / "sub/other")
    (a / "sub").rename(a / "moved")
    assert (b / "moved/other").read_bytes() == b"4"


def test_who_is_in_a_directory_stays_in_it_though_others_move_it_or_make_it_anew(two: tuple[Mount, Mount]) -> None:
    a, b = (each.path / "moving" for each in two)
    (a / "run").mkdir(parents=True)
    (a / "run/log").write_bytes(b"1")
    inside = os.open(a / "run", os.O_RDONLY)
    (b / "run").rename(b / "old")
    (b / "run").mkdir()
    os.close(os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=inside))
    os.unlink("log", dir_fd=inside)
    os.close(inside)
    assert (os.listdir(b / "run"), os.listdir(b / "old")) == ([], ["made"])
    (a / "gone").mkdir()
    (b / "gone").rmdir()
    (b / "gone").mkdir()
    (a / "gone/made").mkdir()  # the kernel knows the directory that was there a moment ago
    assert os.listdir(b / "gone") == ["made"]


def test_lines_that_programs_on_two_mounts_append_at_a_time_are_all_kept(two: tuple[Mount, Mount]) -> None:
    a, b = (each.path / "lines" for each in two)
    a.mkdir()
    opened = [os.open(path / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND) for path in (a, a, b)]
    for n in range(30):
        for each, fd in enumerate(opened):
            os.write(fd, b"%d of %d\n" % (n, each))
        os.close(os.dup(opened[n % 3]))
    with pytest.raises(OSError, match="No such device"):  # what is written to a page would be appended
        mmap.mmap(opened[0], 0)
    for fd in opened:
        os.close(fd)
    assert sorted((a / "log").read_bytes().splitlines()) == sorted(
        b"%d of %d" % (n, each) for n in range(30) for each in range(3)
    )
    assert (a / "log").read_bytes() == (b / "log").read_bytes()


def test_an_open_file_is_read_and_written_after_it_lost_its_name(two: tuple[Mount, Mount]) -> None:
    a, b = (each.path for each in two)
    (a / "gone").write_bytes(DATA)
    with (b / "gone").open("r+b") as file:
        (b / "gone").unlink()
        assert file.read() == DATA
        file.write(b"more")
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"more"
        assert os.fstat(file.fileno()).st_nlink == 0
    assert not (b / "gone").exists()
    poll(lambda: not (a / "gone").exists(), 10.0, what="the other mount sees that it is gone")


def test_reads_go_on_when_shepherds_die(two: tuple[Mount, Mount], cluster: Cluster) -> None:
    a, b = (each.path for each in two)
    (a / "tough").write_bytes(DATA * 5)
    poll(lambda: os.getxattr(a / "tough", "chelonia.health").startswith(b"3 of 3"), 60.0, what="the third has a copy")
    digest = hashlib.sha256()
    with (b / "tough").open("rb", buffering=0) as file:
        digest.update(file.read(100_000))
        olds = {name: cluster.kill(name) for name in cluster.shepherd_names[:2]}
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    assert digest.digest() == hashlib.sha256(DATA * 5).digest()
    for name, old in olds.items():
        cluster.wait_restarted(name, old)
    asyncio.run(cluster.until_serving(*olds))


def test_what_is_said_of_what_is_mounted_already_not_there_or_not_mounted(cluster: Cluster, tmp_path: Path) -> None:
    mount = Mount(cluster, "/", tmp_path / "größer als\tm", tmp_path / "cache")
    mount.path.mkdir()

    def said(*words: str) -> tuple[int, str, str]:
        argv = mount.chelonia(*words, str(mount.path))
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60 * patience(), env={**os.environ, "HOME": str(tmp_path)}
        )
        return done.returncode, done.stdout, done.stderr

    begin = ("mount", "--background", "-o", f"cache={mount.cache}")
    code, _, trouble = said(*begin, "/nosuch")
    assert (code, "there is no such name" in trouble) == (3, True)
    code, out, trouble = said("--json", *begin, mount.place)
    assert (code, json.loads(out)["results"][0]["mountpoint"]) == (0, str(mount.path)), trouble
    code, _, trouble = said(*begin, mount.place)
    assert (code, "mounted there already" in trouble) == (2, True)
    assert said("umount")[0] == 0
    for words in (("umount",), ("mount", "--status")):
        code, _, trouble = said(*words)
        assert (code, "nothing of Chelonia is mounted there" in trouble) == (3, True)


async def test_what_a_mount_knows_is_bounded_by_its_setting(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.client() as client:
        assert client.files is not None
        await client.make_collection("/walked")
        for start in range(0, WALKED, 500):
            made = await client.files.apply(new_call(), tuple(map(_empty, range(start, start + 500))))
            assert all(isinstance(each, Done) for each in made)
    mount = Mount(cluster, "/walked", tmp_path / "m", tmp_path / "cache", f"inodes={INODES_MIN}").start()
    try:
        for _ in range(2):
            seen = await asyncio.to_thread(lambda: [each.stat().st_size for each in os.scandir(mount.path)])
            assert seen == [0] * WALKED
            poll(lambda: _known(mount) < 1.15 * INODES_MIN, what="the kernel has let go of the oldest")
        await asyncio.to_thread(mount.end)
    finally:
        mount.abandon()


WALKED = 2500


def _empty(number: int) -> Splice:
    place = parse_ln(f"/walked/{number}")
    return Splice(place, Content(size=0, whole=True), when=When(absent=True))


def _known(mount: Mount) -> int:
    return int(json.loads(os.getxattr(mount.path, STATUS))["inodes"])


def test_a_mount_that_stands_still_is_told_and_ended(cluster: Cluster, tmp_path: Path) -> None:
    mount = Mount(cluster, "/", tmp_path / "m", tmp_path / "cache").start()
    assert mount.process is not None
    mount.process.send_signal(signal.SIGSTOP)
    try:
        for words, code, said in (
            (("mount", "--status"), 7, "does not answer"),
            (("umount",), 0, "what was closed and is not committed is in its cache"),
        ):
            argv = mount.chelonia(*words, str(mount.path))
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60 * patience())
            assert done.returncode == code, done.stderr
            assert said in done.stderr
    finally:
        mount.process.send_signal(signal.SIGCONT)
        mount.abandon()


def test_a_mount_tells_of_itself_while_the_cluster_is_away(cluster: Cluster, tmp_path: Path) -> None:
    mount = Mount(cluster, "/", tmp_path / "m", tmp_path / "cache").start()
    try:
        time.sleep(VALID_S)  # the kernel knows no attributes any more
        with stopped(cluster, *cluster.core_names):
            argv = mount.chelonia("mount", "--status", str(mount.path))
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60 * patience())
            assert (done.returncode, str(mount.path) in done.stdout) == (0, True), done.stderr
        mount.end()
    finally:
        mount.abandon()


def test_an_unmount_while_the_cluster_is_away_says_which_files_wait(
    two: tuple[Mount, Mount], cluster: Cluster, tmp_path: Path
) -> None:
    """It used to say that all was committed."""
    mount = Mount(cluster, two[0].place, tmp_path / "m", tmp_path / "cache").start()

    def told(*words: str) -> tuple[int, dict[str, Any]]:
        argv = mount.chelonia("--json", *words)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120 * patience(), check=False)
        return done.returncode, json.loads(done.stdout)

    try:
        file = (mount.path / "unsent").open("wb")
        file.write(b"unsent")
        with stopped(cluster, *cluster.core_names):
            file.close()
            code, answer = told("umount", str(mount.path))
        assert mount.process is not None
        assert mount.process.wait(30 * patience()) == 0
        assert (code, answer["results"][0]["committed"]) == (7, False)
        assert f"1 file waits in {mount.cache}/mount-" in answer["error"]["cause"]
        (left,) = told("mount", "--status", "-o", f"cache={mount.cache}")[1]["stranded"]
        assert (left["place"], left["mountpoint"], left["waiting"]) == ("/mounted", str(mount.path), 1)
        mount.start()
        poll(lambda: "/mounted/unsent is committed now" in mount.log(), what="the next mount commits it")
        mount.end()
    finally:
        mount.abandon()


def test_what_is_closed_without_a_cluster_outlives_the_mount_beside_what_others_write(
    two: tuple[Mount, Mount], cluster: Cluster, tmp_path: Path
) -> None:
    other, mount = two[0].path, Mount(cluster, two[0].place, tmp_path / "m", tmp_path / "cache").start()
    names = {"cached": b"cached", "both": b"before", "mine": b"before"}
    try:
        for name, data in names.items():
            (mount.path / name).write_bytes(data)
        with stopped(cluster, *cluster.names):
            for _ in range(2):  # after the first one the mount knows that the cluster is away
                argv = ["cat", str(mount.path / "cached")]
                done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S * patience(), check=True)
                assert done.stdout == b"cached"
            for name in ("both", "mine"):
                with (mount.path / name).open("r+b") as file:
                    file.write(b"closed")
            mount.kill()
        poll(lambda: _written(other / "both", b"theirs"), what="the cluster is back")
        mount.start()
        poll(lambda: (other / "mine").read_bytes() == b"closed", what="the next mount commits it")
        poll(lambda: list(other.glob("both.conflict-*")), what="it keeps what it cannot commit")
        (kept,) = other.glob("both.conflict-*")
        assert (kept.read_bytes(), (other / "both").read_bytes()) == (b"closed", b"theirs")
        argv = mount.chelonia("mount", "--status", str(mount.path))
        status = subprocess.run(argv, capture_output=True, text=True, timeout=30 * patience(), check=True)
        head, row = (re.split("  +", line) for line in status.stdout.splitlines())
        assert row[head.index("conflicts")] == "1"
        mount.end()
    finally:
        mount.abandon()
    for line in (
        "close /mounted/both: .*it is kept in .*and will be committed later",
        "2 files were closed before and not committed; they are committed now",
        f"/mounted/both was changed by somebody else while it was changed here: .*is kept as /mounted/{kept.name}",
        "/mounted/mine is committed now",
    ):
        assert re.search(line, mount.log()), line


def _written(path: Path, data: bytes) -> bool:
    try:
        path.write_bytes(data)
    except OSError as error:
        return error.errno != errno.EIO
    return True


def test_who_waits_for_a_cluster_that_is_away_can_be_interrupted(two: tuple[Mount, Mount], cluster: Cluster) -> None:
    mount, other = two
    (other.path / "cold").write_bytes(b"x")
    time.sleep(VALID_S)  # a mount may know for that long that there is no such name
    argv = ["cat", str(mount.path / "cold")]
    with stopped(cluster, *cluster.core_names), subprocess.Popen(argv, stdout=subprocess.DEVNULL) as reader:
        doing = Path(f"/proc/{reader.pid}/wchan")
        poll(lambda: doing.read_text() == "request_wait_answer", what="it waits for the mount")
        reader.terminate()  # Ctrl-C would not do: what a shell starts in the background ignores it
        assert reader.wait(READ_MS / 2000) == -signal.SIGTERM
    poll(lambda: (mount.path / "cold").read_bytes() == b"x", what="the cluster is back")


def test_what_is_closed_after_a_certificate_has_ended_is_committed_once_it_is_renewed(
    two: tuple[Mount, Mount], cluster: Cluster, tmp_path: Path
) -> None:
    """The mount used to keep the proxy of its start, but it outlives many proxies."""
    own, there = tmp_path / "own.pem", two[0].path
    first = cluster.ca.issue_user("/DC=org/DC=chelonia/O=Dev/CN=Jane Doe", now_ms())
    first.write_proxy(own)
    mount = Mount(cluster, "/mounted", tmp_path / "m", tmp_path / "cache", proxy=own).start()
    try:
        files = {name: (mount.path / name).open("wb") for name in ("small-late", "large-late")}
        for size, file in zip((10, 300_000), files.values(), strict=True):
            file.write(bytes(size))
        (mount.path / "read").write_bytes(b"x")
        cluster.ca.revoke(first.certificate, now_ms())
        for name in cluster.names:
            cluster.signal(name, signal.SIGHUP)
        cluster.expect_log("handshake-refused|untrusted")
        poll(lambda: _refused(mount.path / "none"), what="the certificate is no good any more")
        for file in files.values():
            file.close()
        assert (mount.path / "read").read_bytes() == b"x"
        own.unlink()
        cluster.ca.issue_user("/DC=org/DC=chelonia/O=Dev/CN=Jane Doe", now_ms()).write_proxy(own)
        poll(lambda: [(there / name).stat().st_size for name in files] == [10, 300_000], what="all is committed")
        assert "certificates were renewed" in mount.log()
        mount.end()
    finally:
        mount.abandon()


def _refused(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        return error.errno == errno.EIO


def test_a_mount_in_the_foreground_shows_what_goes_on(
    two: tuple[Mount, Mount], cluster: Cluster, tmp_path: Path
) -> None:
    screen, terminal = os.openpty()
    os.set_blocking(screen, False)
    mount = Mount(cluster, "/mounted", tmp_path / "m", tmp_path / "cache", terminal=terminal)
    shown = bytearray()

    def shows() -> bool:
        (mount.path / "shown").write_bytes(bytes(50_000))
        with contextlib.suppress(BlockingIOError):
            shown.extend(os.read(screen, 4096))
        rates = rb"[1-9][0-9]*/s, [0-9.]+ MB/s read, [0-9.]+ MB/s written"
        return re.search(rates + rb", [0-9]+ waiting, 0 conflicts", shown) is not None

    try:
        mount.start()
        poll(shows, what="a line of activity")
        mount.end()
    finally:
        mount.abandon()
        os.close(screen)
        os.close(terminal)


@contextlib.contextmanager
def stopped(cluster: Cluster, *names: str) -> Iterator[None]:
    """Freeze processes of a cluster while held."""
    for name in names:
        cluster.signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        for name in names:
            cluster.signal(name, signal.SIGCONT)


def test_what_was_closed_or_synced_survives_the_death_of_the_mount(cluster: Cluster, tmp_path: Path) -> None:
    mount = Mount(cluster, "/mounted", tmp_path / "m", tmp_path / "cache").start()
    try:
        (mount.path / "closed").write_bytes(b"closed")
        fd = os.open(mount.path / "synced", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"synced")
        os.fsync(fd)
        mount.kill()
        with contextlib.suppress(OSError):
            os.close(fd)
        mount.start()
        assert (mount.path / "closed").read_bytes() == b"closed"
        assert (mount.path / "synced").read_bytes() == b"synced"
        argv = mount.chelonia("mount", "--status")
        status = subprocess.run(argv, capture_output=True, text=True, timeout=30 * patience())
        assert str(mount.path) in status.stdout
        mount.end()
    finally:
        mount.abandon()
