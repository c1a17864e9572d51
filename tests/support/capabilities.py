"""Capabilities of a machine that a test may need, and the effect of a missing one.

Under CI (`CI=true`) a missing capability fails the test: a suite that silently tests less is worse than a red one.
Elsewhere it skips, and the end of the run lists every missing capability. Each probe tries the real thing and leaves
nothing behind.
"""

import ctypes
import functools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable

import pytest

MISSING_PREFIX = "missing capability"


def under_ci() -> bool:
    """Return whether this run is CI's, where nothing may be missing."""
    return os.environ.get("CI", "").lower() in {"true", "1", "yes"}


def capability(name: str) -> None:
    """Go on if this machine has the capability; otherwise fail under CI and skip elsewhere.

    Args:
        name: One of `PROBES`, or `command:<name>` for a program on the path, or `module:<name>` for a Python module.
    """
    reason = missing(name)
    if reason is None:
        return
    message = f"{MISSING_PREFIX} {name}: {reason}"
    if under_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@functools.cache
def missing(name: str) -> str | None:
    """Return why the capability is missing, or None if it is there."""
    kind, _, argument = name.partition(":")
    match kind:
        case "command" if argument:
            return None if shutil.which(argument) else f"no program {argument} on the path"
        case "module" if argument:
            return _probe_module(argument)
        case _:
            assert name in PROBES, f"unknown capability {name!r}; known: {', '.join(PROBES)}, command:X, module:X"
            return PROBES[name]()


def _probe_module(name: str) -> str | None:
    try:
        __import__(name)
    except ImportError as error:
        return str(error)
    return None


def _probe_root() -> str | None:
    return None if os.geteuid() == 0 else "not root"


def _probe_tmpfs() -> str | None:
    if reason := _probe_root():
        return reason
    with tempfile.TemporaryDirectory() as folder:
        mounted = _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
        if mounted is None:
            return _run("umount", folder)
        return mounted


def _probe_loop() -> str | None:
    if reason := _probe_root():
        return reason
    with tempfile.NamedTemporaryFile() as image:
        image.truncate(1 << 20)
        found = subprocess.run(["losetup", "--find", "--show", image.name], capture_output=True, text=True, check=False)
        if found.returncode != 0:
            return found.stderr.strip()
        return _run("losetup", "--detach", found.stdout.strip())


def _probe_netns() -> str | None:
    return _run("unshare", "--net", "true")


def _probe_fuse() -> str | None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:  # root may be refused too, in a container
        return f"/dev/fuse cannot be opened: {error.strerror}"
    return None


def _probe_ipv6() -> str | None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return str(error)
    return None


def _probe_libdb() -> str | None:
    try:
        ctypes.CDLL("libdb-5.3.so")
    except OSError as error:
        return str(error)
    return _probe_module("berkeleydb")


def _run(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return f"no program {command[0]} on the path"
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if result.returncode == 0 else (result.stderr.strip() or f"{command[0]} exited {result.returncode}")


PROBES: dict[str, Callable[[], str | None]] = {
    "root": _probe_root,
    "tmpfs": _probe_tmpfs,
    "loop": _probe_loop,
    "netns": _probe_netns,
    "fuse": _probe_fuse,
    "ipv6": _probe_ipv6,
    "libdb": _probe_libdb,
}
