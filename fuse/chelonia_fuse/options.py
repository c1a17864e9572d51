"""The options of a mount, as after `-o`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia_clients.arguments import amount

CACHE_BYTES: Final = 1 << 30
INODES, INODES_MIN = 16_000, 1_000
"""Default and least number of known entries, 1 KiB each: a directory of that many can be read, then looked through."""
_IGNORED: Final = frozenset({"rw", "defaults", "auto", "noauto", "user", "nouser", "users", "_netdev", "nofail", "dev",
                             "nodev", "suid", "nosuid", "relatime", "noatime", "nodiratime", "async"})  # fmt: skip
"""Options of `mount` and fstab that are for other programs, or hold anyhow."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a mount.

    Args:
        uid, gid: owner and group of all entries; -1: as stored, else those of the mounting user.
        umask: permission bits that are never shown; -1: as stored.
        inodes: known entries from which on the kernel has to forget the oldest files. By itself it does so only when
            the machine's memory is short.
        cache: directory of staged and cached bytes, "" for one below the user's; `cache_bytes`: limit of cached bytes.
        noexec: no program on it can be run.
        strict: a file is closed only once it is committed, however long the network is away.
    """

    read_only: bool = False
    uid: int = -1
    gid: int = -1
    umask: int = -1
    inodes: int = INODES
    cache: str = ""
    cache_bytes: int = CACHE_BYTES
    strict: bool = False
    allow_other: bool = False
    noexec: bool = False
    debug: bool = False


def parse(text: str) -> Options:
    """Read a comma-separated list. Raises: BAD_CONFIG."""
    values: dict[str, str] = {}
    flags: set[str] = set()
    for word in filter(None, text.split(",")):
        name, given, value = word.partition("=")
        if name in _IGNORED or name.startswith("x-"):
            continue
        if name in ("ro", "strict", "allow_other", "noexec", "debug") and not given:
            flags.add(name)
        elif word == "exec":  # as for mount(8) the last one counts: `user` brings `noexec` along
            flags.discard("noexec")
        elif name in ("uid", "gid", "umask", "inodes", "cache", "cache_size"):
            values[name] = value
        else:
            options = "ro uid= gid= umask= inodes= cache= cache_size= strict allow_other noexec debug"
            raise CheloniaError(Kind.BAD_CONFIG, "mount", word, f"no option of a mount; there are: {options}")
    return Options(
        read_only="ro" in flags,
        uid=_number(values, "uid", 10),
        gid=_number(values, "gid", 10),
        umask=_number(values, "umask", 8),
        inodes=max(_number(values, "inodes", 10), INODES_MIN) if "inodes" in values else INODES,
        cache=values.get("cache", ""),
        cache_bytes=_size(values["cache_size"]) if values.get("cache_size") else CACHE_BYTES,
        strict="strict" in flags,
        allow_other="allow_other" in flags,
        noexec="noexec" in flags,
        debug="debug" in flags,
    )


def _number(values: dict[str, str], name: str, base: int) -> int:
    try:
        return int(values[name], base) if name in values else -1
    except ValueError:
        raise CheloniaError(Kind.BAD_CONFIG, "mount", f"{name}={values[name]}", "that is no number") from None


def _size(text: str) -> int:
    size = amount(text)
    if size < 0:
        raise CheloniaError(Kind.BAD_CONFIG, "mount", f"cache_size={text}", "write bytes, or 512M, 10G")
    return size
