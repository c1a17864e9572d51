"""The files of a host that `cheloniad init` and `join` make: checked for before, written whole, with the right owners.

It overwrites no present file. It writes the core's configuration last: where that is, all else is.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import shutil
import socket
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import write_file
from chelonia.hosting.ahash_replica import found_store, founded_only
from chelonia.hosting.config import (
    NodeConfig,
    PeerEntry,
    load_config,
    parse_config,
    read_secret,
    render_config,
    render_key,
)
from chelonia.hosting.setup.first_config import (
    LISTENING,
    ClusterFacts,
    HostFacts,
    HostPaths,
    core_config,
    shepherd_config,
)

START: Final = "systemctl enable --now chelonia@core chelonia@shepherd"
HEAD: Final = """# Made by `cheloniad {verb}`; yours to change. The files in conf/ of the distribution explain all keys;
# `cheloniad print-config --config FILE` shows those that are not here, with their defaults.

"""
_REPLICAS: Final = re.compile(r"^replicas = \[\n(?:  \{ .* \},\n)+\]\n", re.MULTILINE)
"""The list of replicas as `render_config` writes it."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account of the daemons, which owns the files that they write."""

    name: str
    uid: int
    gid: int


def account(name: str) -> Account:
    """Find the account. Raises: BAD_CONFIG with the cure."""
    try:
        found = pwd.getpwnam(name)
    except KeyError as error:
        cause = "no such account: install systemd/chelonia.sysusers.conf and run systemd-sysusers, or name another one"
        raise CheloniaError(Kind.BAD_CONFIG, "account", name, f"{cause} with --account") from error
    if found.pw_uid == 0:
        raise CheloniaError(Kind.BAD_CONFIG, "account", name, "the daemons do not run as root: name another account")
    if os.geteuid() not in (0, found.pw_uid):
        cause = "only root can give it its files: run this command as root"
        raise CheloniaError(Kind.BAD_CONFIG, "account", name, cause)
    return Account(name, found.pw_uid, found.pw_gid)


def set_up_before(places: HostPaths, name: str, verb: str) -> str:
    """Return a message when this host is set up already, under this name; empty when it is not.

    Raises: EXISTS when it is set up as another host or, for `join`, as a cluster of its own.
    """
    if not places.core.exists():
        return ""
    section = load_config(places.core).ahash
    had = section.id if section is not None else "it has no [ahash]"
    if section is None or f"//{name}:" not in section.id:
        cause = f"it configures another host ({had}): nothing is overwritten; move it, and what it names, away first"
        raise CheloniaError(Kind.EXISTS, verb, str(places.core), cause)
    cluster = section.tuning.get("cluster", "")
    if verb == "join" and len(section.replicas) == 1:
        cause = f"this host is a cluster of its own, {cluster}: nothing is overwritten; if that cluster is not wanted, "
        cause += "move it, and what it names, away first"
        raise CheloniaError(Kind.EXISTS, verb, str(places.core), cause)
    return f"{name} is set up already, in cluster {cluster}; nothing was changed. Start it: {START}"


def check_writable(places: HostPaths) -> None:
    """Check that the places can be written. Raises: BAD_CONFIG naming the first directory that cannot."""
    for option, path in (("conf", places.conf), ("grid", places.grid), ("data", places.data)):
        base = next(each for each in (path, *path.parents) if each.exists())
        if not base.is_dir():
            raise CheloniaError(Kind.BAD_CONFIG, "set up", str(base), f"it is no directory: --{option} names another")
        if not os.access(base, os.W_OK | os.X_OK):
            cause = f"cannot be written: run this command as root, or name another place with --{option}"
            raise CheloniaError(Kind.BAD_CONFIG, "set up", str(base), cause)


def check_free_of_data(places: HostPaths) -> None:
    """Check that there is no A-Hash's store without a configuration. Raises: EXISTS."""
    if places.ahash.exists() and any(places.ahash.iterdir()):
        cause = "there is a store of an A-Hash, but no configuration: move it away, or put the configuration back"
        raise CheloniaError(Kind.EXISTS, "set up", str(places.ahash), cause)


def founded_before(places: HostPaths, owner: Account) -> str:
    """Return the cluster whose store a killed `init` has founded, unused since; empty when there is none.

    Raises: EXISTS when there is any other.
    """
    cluster = founded_only(places.ahash)
    if not cluster:
        check_free_of_data(places)
        return ""
    give_all(places.ahash, owner)  # root has opened it: it may have a new log
    return cluster


def check_ports(first: int) -> None:
    """Check that the ports of the host's nodes are free. Raises: UNAVAILABLE."""
    taken = [port for port in (first + offset for offset in LISTENING) if not is_free(port)]
    if taken:
        ports = ", ".join(map(str, taken))
        cause = f"port {ports} is taken on this host: stop what listens there, or begin elsewhere with --port"
        raise CheloniaError(Kind.UNAVAILABLE, "set up", cause=cause)


def check_resolves(name: str) -> None:
    """Check that a name has an address: without one no other host could reach it. Raises: BAD_CONFIG."""
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        cause = f"this name has no address ({error.strerror or error}): put it into DNS, or /etc/hosts of all hosts"
        raise CheloniaError(Kind.BAD_CONFIG, "resolve", name, cause) from error


def write_secret(places: HostPaths, owner: Account, secret: str) -> None:
    """Write the secret of the Bartenders, unless it is there."""
    make_directory(places.conf, owner, of_root=True)
    if not places.secret.exists():
        write_file(places.secret, f"{secret}\n".encode(), 0o400)
    give(places.secret, owner)


def check_secret(places: HostPaths, secret: str) -> None:
    """Check that a present secret of Bartenders is this cluster's. Raises: EXISTS."""
    if places.secret.exists() and read_secret(places.secret).decode() != secret:
        cause = "it is not the secret of this cluster, but of another, or of one that it had: move it away"
        raise CheloniaError(Kind.EXISTS, "join", str(places.secret), cause)


def check_free_of_shepherd(host: HostFacts, cluster: ClusterFacts, places: HostPaths, verb: str) -> None:
    """Check that a present configuration of a Shepherd is as it will be written. Raises: EXISTS."""
    if places.shepherd.exists() and load_config(places.shepherd) != shepherd_config(host, cluster, places):
        cause = f"it is not what `{verb}` writes: move it away, or give `{verb}` again as it was given before"
        raise CheloniaError(Kind.EXISTS, verb, str(places.shepherd), cause)


def write_configs(host: HostFacts, cluster: ClusterFacts, places: HostPaths, owner: Account, verb: str) -> None:
    """Write both configurations, the core's last. Raises: EXISTS when another Shepherd is configured."""
    make_directory(places.conf, owner, of_root=True)
    check_free_of_shepherd(host, cluster, places, verb)
    _write_config(places.shepherd, shepherd_config(host, cluster, places), owner, verb)
    _write_config(places.core, core_config(host, cluster, places), owner, verb)


def name_replicas(path: Path, replicas: tuple[PeerEntry, ...]) -> bool:
    """Have the core's configuration name all replicas, in the lines that `init` or `join` wrote; all else in it stays.

    Returns: whether it does now; False where a person has written these lines in another way.
    """
    before = path.read_text(encoding="utf-8")
    block = "\n".join(render_key("replicas", replicas, brief=True)) + "\n"
    text, found = _REPLICAS.subn(lambda _: block, before)
    try:
        section = parse_config(tomllib.loads(text)).ahash
    except (CheloniaError, tomllib.TOMLDecodeError):
        return False
    if found > 1 or section is None or section.replicas != replicas:
        return False
    if text != before:
        kept = path.stat()
        owner = (kept.st_uid, kept.st_gid) if os.geteuid() == 0 else None
        write_file(path, text.encode(), stat.S_IMODE(kept.st_mode), owner)
    return True


def _write_config(path: Path, config: NodeConfig, owner: Account, verb: str) -> None:
    text = HEAD.format(verb=verb) + render_config(config, brief=True)
    write_file(path, text.encode(), 0o640, (0, owner.gid) if os.geteuid() == 0 else None)


def make_data(places: HostPaths, owner: Account) -> None:
    """Make the directories that the daemons write to."""
    for path in (places.data, places.data / "core", places.backups, places.data / "shepherd"):
        make_directory(path, owner)


def found(places: HostPaths, cluster: str, owner: Account) -> None:
    """Make the first store of the group, whole or not at all. Raises: EXISTS."""
    partial = places.ahash.with_name(places.ahash.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    found_store(partial, cluster)
    give_all(partial, owner)
    partial.rename(places.ahash)


def give(path: Path, owner: Account, *, of_root: bool = False) -> None:
    """Make `owner` the owner of a file; `of_root`: root owns it, and `owner` may read it through the group."""
    if os.geteuid() == 0:
        os.chown(path, 0 if of_root else owner.uid, owner.gid)


def give_back(made: Path, place: Path) -> None:
    """Give what root has made for a store to the owner of the store's place, as whom the daemon runs. While nothing is
    there, or root's, that is the owner of the directory above."""
    status = next((kept for each in (place, place.parent) if each.exists() and (kept := each.lstat()).st_uid), None)
    if status is not None:
        give_all(made, Account("", status.st_uid, status.st_gid))


def give_all(directory: Path, owner: Account) -> None:
    """Make `owner` the owner of a directory and all that is in it. It changes links themselves, never their targets."""
    if os.geteuid() == 0:
        os.chown(directory, owner.uid, owner.gid, follow_symlinks=False)
        for _, directories, files, descriptor in os.fwalk(directory):
            for name in (*directories, *files):
                os.chown(name, owner.uid, owner.gid, dir_fd=descriptor, follow_symlinks=False)


def make_directory(path: Path, owner: Account, *, of_root: bool = False) -> None:
    """Make a directory, whole or not at all, and its parents with the usual mode; one that is there stays as it is."""
    if path.exists():
        return
    partial = path.with_name(path.name + ".partial")
    partial.mkdir(mode=0o700, parents=True, exist_ok=True)
    give(partial, owner, of_root=of_root)
    partial.chmod(0o750)
    partial.rename(path)


def readers(paths: Iterable[Path]) -> None:
    """Let all accounts read what is public, whatever the umask: CAs and the directories above them."""
    for path in paths:
        path.chmod(0o755 if path.is_dir() else 0o444)


def is_free(port: int, host: str = "0.0.0.0") -> bool:
    """Return whether a port of this host is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True
