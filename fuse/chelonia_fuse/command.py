"""The commands `chelonia mount` and `chelonia umount`, once the command line is read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.names import parse_ln
from chelonia.hosting.net.http_client import HttpClient
from chelonia_fuse import options as mount_options
from chelonia_fuse.journal import count_waiting
from chelonia_fuse.mounting import Mount, MountConnection, Stranded, cache_home, find_stranded
from chelonia_fuse.xattrs import STATUS

TYPE: Final = "fuse.chelonia"
READY: Final = "mounted"
IN_BACKGROUND: Final = "CHELONIA_MOUNT_IN_BACKGROUND"
"""Variable of the environment of a mount that leaves the session of its caller once it is mounted. An automount waits
for the mount, and lets only the process group that systemd has begun for it through to the directory."""
SWITCH_S: Final = 0.000_5
"""How long a thread waits for the interpreter while others run. The default 5 ms would be paid for each sync, and for
each name that the kernel has to forget."""
ANSWER_S: Final = 5.0
END_S: Final = 60.0
UNANSWERED: Final = (
    "its process does not answer, so it was let go of without it: what was closed and is not committed is in its "
    "cache, and is committed when it goes on; if it is killed, by the next mount of the same collection there"
)
LEFT: Final = (
    "its process had gone: what was closed and is not committed is in its cache, and is committed by the next mount of "
    "the same collection there"
)
UNKNOWN: Final = (
    "let go of, and not waited for: its process does not tell this command its number; it is another user's, or was "
    "started by another version"
)
GONE: Final = (errno.ENOTCONN, errno.ECONNABORTED)
"""Errors of the kernel where the process of a mount is gone."""
UNENDED: Final = (
    f"let go of, and its process has not ended in {END_S:.0f} s: somebody uses it, it still commits, or a container "
    "has a copy of it (`grep -ls fuse.chelonia /proc/*/mountinfo` shows whose)"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to mount `ln` at `mountpoint`. `write`: prints lines for a person; `live`: show activity on stderr."""

    ln: str
    mountpoint: str
    options: str
    write: Callable[[str], None]
    live: bool = False


async def mount(request: Request, bartenders: Sequence[str], http: HttpClient, replicas: int) -> None:
    """Mount, and return when it was unmounted. Raises: BAD_CONFIG, NOT_FOUND, DENIED, ..."""
    importlib.import_module("chelonia.hosting.net.quick_bodies")  # loaded now: else the first large file waits for it
    options = mount_options.parse(request.options)
    if _is_mounted(request.mountpoint):  # also where its process is gone
        cause = f"something is mounted there already; `chelonia umount {request.mountpoint}` ends it"
        raise CheloniaError(Kind.BAD_CONFIG, "mount", request.mountpoint, cause)
    mountpoint = Path(request.mountpoint).resolve()
    if not mountpoint.is_dir():
        cause = "it is no directory here; make it first"
        raise CheloniaError(Kind.BAD_CONFIG, "mount", request.mountpoint, cause)
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger("chelonia_fuse").setLevel(logging.DEBUG if options.debug else logging.INFO)
    mounted = Mount(MountConnection(bartenders, http, replicas), parse_ln(request.ln), mountpoint, options)

    def ready() -> None:
        if os.environ.pop(IN_BACKGROUND, ""):
            os.setsid()
        notify_systemd()
        request.write(f"{READY} {request.ln} at {request.mountpoint}; end it by `chelonia umount {request.mountpoint}`")

    try:
        await mounted.run(ready, _live if request.live else None)
    except RuntimeError as error:  # raised by the binding
        cause = (
            f"{error}; are /dev/fuse and fusermount3 (package fuse3) there? For allow_other /etc/fuse.conf must say "
            "user_allow_other"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "mount", request.mountpoint, cause) from error


def notify_systemd() -> None:
    """Notify systemd that the directory can be used (sd_notify(3)), so that no later unit writes into the one below."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


def _live(line: str) -> None:
    sys.stderr.write(f"\r\033[K{line}")
    sys.stderr.flush()


def in_background(argv: Sequence[str], log: str) -> str:
    """Start a mount as a process of its own. Returns: its line once it is mounted. Raises: its failure."""
    path = Path(log) if log else cache_home() / "mount.log"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    began = os.fstat(out).st_size
    process = subprocess.Popen(
        [sys.executable, "-m", "chelonia_clients.cli", *argv],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out,
        env={**os.environ, IN_BACKGROUND: "1"},
    )  # fmt: skip
    os.close(out)
    assert process.stdout is not None, "it is a pipe"
    with process.stdout as pipe:
        line = pipe.readline().decode()
    if line.startswith(READY):
        return line.rstrip()
    process.wait()
    output = path.read_bytes()[began:].decode(errors="replace").strip()
    failures = re.findall(r"^chelonia: (?:mount:? )?(.*) \(([a-z-]+)\)$", output, re.MULTILINE) or [
        (output or line, "bad-config")
    ]
    cause, kind = failures[-1]
    cause = "; ".join((*re.findall(r"^fusermount3: .*$", output, re.MULTILINE), cause))  # it knows best what it refused
    raise CheloniaError(kind_from_wire(kind), "mount", cause=f"it did not mount: {cause}")


def mounts() -> list[str]:
    """Return the directories of this machine at which Chelonia is mounted."""
    out = []
    for line in os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")[:-1]:
        words = line.split(" ")
        if TYPE in words[words.index("-") + 1 :]:
            out.append(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4]))
    return out


def stranded(options: str) -> list[Stranded]:
    """Return the files that wait where no mount is. `options`: as of the mounts. Raises: BAD_CONFIG, OSError."""
    return find_stranded(mount_options.parse(options))


def _is_mounted(directory: str) -> bool:
    """Whether Chelonia is mounted there. Looks at the directory itself last: its process may hang."""
    above, name = os.path.split(os.path.abspath(directory))
    mounted = mounts()
    return os.path.join(os.path.realpath(above), name) in mounted or os.path.realpath(directory) in mounted


def _expect_mounted(mountpoint: str, op: str) -> None:
    if not _is_mounted(mountpoint):
        cause = "nothing of Chelonia is mounted there; `chelonia mount --status` shows what is"
        raise CheloniaError(Kind.NOT_FOUND, op, mountpoint, cause)


async def status(mountpoint: str) -> dict[str, object]:
    """Return the status of a mount. Raises: NOT_FOUND, TIMEOUT or NETWORK when it does not answer, NOT_SUPPORTED when
    it reports none."""
    _expect_mounted(mountpoint, "mount")
    asking = Future[str | bytes | bytearray]()

    def ask() -> None:
        try:
            asking.set_result(os.getxattr(mountpoint, STATUS))
        except OSError as error:
            asking.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()  # the end of this process does not wait for it
    try:
        async with asyncio.timeout(ANSWER_S):
            return dict(json.loads(await asyncio.shield(asyncio.wrap_future(asking))))
    except TimeoutError as error:
        cause = f"its process does not answer; `chelonia umount {mountpoint}` lets go of it all the same"
        raise CheloniaError(Kind.TIMEOUT, "mount", mountpoint, cause) from error
    except OSError as error:
        if error.errno not in GONE:
            cause = f"{error.strerror}: it tells nothing of itself here"
            raise CheloniaError(Kind.NOT_SUPPORTED, "mount", mountpoint, cause) from error
        cause = f"{error.strerror}: its process is gone; `chelonia umount {mountpoint}`, then mount it again"
        raise CheloniaError(Kind.NETWORK, "mount", mountpoint, cause) from error


async def umount(mountpoint: str, *, lazy: bool = False) -> str:
    """Unmount, and return when its process has ended and all closed files are committed. Returns: a remark for the user
    where the end was not awaited, else "". Raises: BUSY, NOT_FOUND; INCOMPLETE when files wait in its journal."""
    _expect_mounted(mountpoint, "umount")
    process, remark, facts = -1, "", dict[str, object]()
    try:
        facts = await status(mountpoint)
        process = _process(int(str(facts["pid"])))
    except CheloniaError as error:
        lazy |= error.kind is not Kind.NOT_SUPPORTED  # the kernel lets go all the same
        remark = {Kind.TIMEOUT: UNANSWERED, Kind.NETWORK: LEFT}.get(error.kind, UNKNOWN)
    argv = ["fusermount3", "-u", *(["-z"] if lazy else []), mountpoint]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
    if done.returncode:
        cause = f"{done.stderr.strip()}; `fuser -m {mountpoint}` shows who uses it, --lazy detaches it"
        raise CheloniaError(Kind.BUSY, "umount", mountpoint, cause)
    if process >= 0 and not await asyncio.to_thread(_until_ended, process):
        return UNENDED
    if facts:
        _expect_committed(mountpoint, facts)
    return remark


def _expect_committed(mountpoint: str, facts: dict[str, object]) -> None:
    """Look whether an ended mount has left changes. Raises: INCOMPLETE."""
    cache = str(facts["cache"])
    try:
        waiting = count_waiting(Path(cache))
    except OSError as error:
        cause = f"it is unmounted; what waits is not known: {cache}: {error.strerror}"
        raise CheloniaError(Kind.INCOMPLETE, "umount", mountpoint, cause) from error
    if waiting:
        left = Stranded(str(facts["place"]), str(facts["mountpoint"]), cache, waiting)
        raise CheloniaError(Kind.INCOMPLETE, "umount", mountpoint, f"it is unmounted, but {left}")


def _process(pid: int) -> int:
    """A descriptor of a process; -1 when it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _until_ended(process: int) -> bool:
    ends = select.poll()
    ends.register(process, select.POLLIN)
    ended = ends.poll(END_S * 1000)
    os.close(process)
    return bool(ended)
