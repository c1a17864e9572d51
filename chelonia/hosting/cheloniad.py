"""The `cheloniad` command: runs a node, a whole development cluster, checks configurations, makes test certificates.

Exit codes: 0 done, 1 it failed (the reason is on stderr), 2 it was called wrongly or the configuration is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import faulthandler
import gc
import logging
import os
import resource
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

# First: loaded by any other module, aiohttp reads the system's CAs and keeps 1.6 MiB of them.
from chelonia.hosting.net.quick_bodies import trim_heaps

# isort: split
from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.config import NodeConfig, load_config, problems_of, render_config
from chelonia.hosting.config_looks import local_problems, local_warnings
from chelonia.hosting.logging_setup import LogSettings, configure
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import of_a_broken_connection
from chelonia.hosting.node import Node
from chelonia.hosting.watchdog import watched

OK, FAILED, USAGE = 0, 1, 2
STDERR: Final = 2

SWITCH_S: Final = 0.0005
"""Longest turn of a thread in Python while another waits. Each request passes between the event loop and the A-Hash's
threads: at the usual 5 ms, a read waited twice for a busy loop."""
COLLECT_AFTER: Final = 10_000
"""New objects that live, after which the garbage collector runs, where an A-Hash is served. At the usual 700 it ran 30
times in 1000 writes of 64 at once, and met only the objects of those writes."""

FILES_FEW: Final = 4096
"""Fewer open files than this are too few for a node: one listener may have 2000 connections."""
_TAKEN: Final = (
    ". `ss -tanp` shows who has it: another daemon, or an outgoing connection, as Linux gives those ports of the same "
    "range. Reserve Chelonia's with net.ipv4.ip_local_reserved_ports (docs/operate/first-cluster.md, Ports)"
)
_CLOSED: Final = (
    ". A node has to own what is in its data directories, `chown -R` gives it: `ls -l` shows who does now, as after a "
    "copy by root. Other commands: run them as root"
)
_LOW: Final = (
    ". Ports below 1024 are root's: take another, or let all accounts have it with net.ipv4.ip_unprivileged_port_start "
    "(`sysctl`, and a file in /etc/sysctl.d)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    options = parser_of(runs=list(words[:1]) == ["run"]).parse_args(words)
    try:
        code: int = options.act(options)
    except CheloniaError as error:
        print(f"cheloniad: {error}", file=sys.stderr)
        return USAGE if error.kind in (Kind.BAD_CONFIG, Kind.BAD_REQUEST) else FAILED
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"cheloniad: {message}{_cure(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return FAILED
    return code


def _cure(error: OSError) -> str:
    """Return advice to append to a system error's message; an error without a file is a socket's."""
    if error.errno == errno.EADDRINUSE:
        return _TAKEN
    if error.errno in (errno.EACCES, errno.EPERM):
        return _CLOSED if error.filename else _LOW
    return ""


def parser_of(*, runs: bool = False) -> argparse.ArgumentParser:
    """Return the command line's parser. `runs`: without the set-up commands, whose modules a node never uses."""
    parser = argparse.ArgumentParser(prog="cheloniad", description="The Chelonia daemon.")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    run = verbs.add_parser("run", help="run one node until SIGTERM; SIGHUP reads certificates again")
    run.add_argument("--config", required=True, type=Path, help="its configuration (TOML; see conf/)")
    run.set_defaults(act=_run)

    check = verbs.add_parser(
        "check-config", help="check a configuration and the files it names; report all that is wrong"
    )
    check.add_argument("--config", required=True, type=Path, help="what to read")
    check.set_defaults(act=_check_config)

    show = verbs.add_parser("print-config", help="print a configuration with every key, defaults included")
    show.add_argument("--config", required=True, type=Path, help="what to read")
    show.set_defaults(act=_print_config)

    if not runs:
        from importlib.metadata import version

        parser.add_argument("--version", action="version", version=f"cheloniad {version('chelonia')}")
        _add_setup(verbs)
    return parser


def _add_setup(verbs: Any) -> None:
    from chelonia.hosting.setup import cli_ahash, cli_ca, cli_init, cli_join, cli_store  # here: see `parser_of`

    _add_dev(verbs, cli_ca.whole_number)
    for module in (cli_init, cli_join, cli_ahash, cli_ca, cli_store):
        module.add_to(verbs)


def _add_dev(verbs: Any, whole_number: Callable[[int, int], Callable[[str], int]]) -> None:
    dev = verbs.add_parser(
        "dev",
        help="run a whole cluster on this machine, for tests and demos",
        description="Makes certificates and configurations below DIR the first time, starts nodes with A-Hash, "
        "Librarian, Bartender and N Shepherds, writes DIR/cluster.json, prints one line `ready` when all serve, and "
        "stays in the foreground until SIGTERM. A second start on DIR finds all data again.",
    )
    dev.add_argument("--dir", required=True, type=Path, help="where everything is kept")
    dev.add_argument(
        "--shepherds", type=whole_number(0, 100), default=3, metavar="N", help="how many Shepherds (default 3)"
    )
    dev.add_argument(
        "--replicas", type=int, choices=(1, 3, 5), default=3, metavar="N",
        help="replicas of the A-Hash, 1, 3 or 5 (default 3: a node for each, "
        "the first two with a Librarian and a Bartender; 1: one node with everything)",
    )  # fmt: skip
    dev.add_argument("--no-restart", action="store_true", help="leave a process that died dead")
    dev.add_argument("--port-base", type=int, default=0, metavar="P", help="first port (default: free ones, then kept)")
    dev.add_argument(
        "--trash-keep-s",
        type=whole_number(0, 366 * 86_400),
        default=3600,
        metavar="S",
        help="seconds for which deleted files are kept (3600)",
    )
    dev.add_argument(
        "--small-as-files", action="store_true", help="keep each replica in a file, to look at and to harm"
    )
    dev.set_defaults(act=_dev)


def _run(options: argparse.Namespace) -> int:
    config = load_config(options.config)
    _check_account(config)
    faulthandler.enable(STDERR, all_threads=True)  # a library that aborts or crashes leaves a trace
    os.umask(0o077)  # no other account may read replicas, metadata and the audit log
    configure(config.log, config.node.name)
    _allow_many_files()
    sys.setswitchinterval(SWITCH_S)
    gc.disable()  # a start makes millions of objects and no garbage
    if config.ahash is not None:
        gc.set_threshold(COLLECT_AFTER)

    async def node() -> int:
        async with watched():
            return await Node(config).run(on_ready=settle)

    return _loop(node())


def _check_account(config: NodeConfig) -> None:
    """Refuse root where another account runs the node and could not read root's files. Raises: BAD_CONFIG."""
    for section in (config.ahash, config.shepherd):
        lock = Path(section.data_dir) / "lock" if section is not None else Path("/")
        if os.geteuid() == 0 and lock.exists() and (owner := lock.stat()).st_uid != 0:
            cause = (
                "another account has run it, and root would leave files there that it cannot read: start the node with "
                f"systemctl, or put `setpriv --reuid {owner.st_uid} --regid {owner.st_gid} --clear-groups` before this"
            )
            raise CheloniaError(Kind.BAD_CONFIG, "run", str(lock.parent), cause)


def settle() -> None:
    """End the start: enable the garbage collector, exempt the objects made so far, return freed memory (1 MiB)."""
    gc.freeze()
    gc.enable()
    trim_heaps()


def _allow_many_files() -> None:
    """Raise the limit of open files as far as the administrator allows: connections and replicas need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it, and the present limit may do
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if 0 <= soft < FILES_FEW:
        cure = "connections beyond are refused; allow more (`ulimit -n`, LimitNOFILE= of the unit)"
        logging.getLogger("chelonia.node").warning("this process may open %d files at once: %s", soft, cure)


def _dev(options: argparse.Namespace) -> int:
    from chelonia.hosting.setup.dev import DevCluster, DevOptions  # here: see `parser_of`

    configure(LogSettings(), "dev")
    restart, keep_ms, as_files = not options.no_restart, options.trash_keep_s * 1000, options.small_as_files
    cluster = DevCluster(
        DevOptions(options.dir, options.shepherds, restart, options.port_base, options.replicas, keep_ms, as_files)
    )
    # The standard loop: it has no threads, which a fork would lose, and nothing here needs speed.
    return asyncio.run(cluster.run(lambda config: main(["run", "--config", str(config)])))


def _loop(work: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(note_trouble)
        return runner.run(work)


def note_trouble(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that the event loop could hand to no caller; a broken connection is no fault of this node."""
    if of_a_broken_connection(context):
        log = logging.getLogger("chelonia.http")
        log.info("connection broke: %s (%r)", context.get("message"), context.get("exception"))
    else:
        loop.default_exception_handler(context)


def _check_config(options: argparse.Namespace) -> int:
    problems = problems_of(options.config, lambda config: local_problems(config, SystemClock().now_ms()))
    for problem in problems:
        print(f"cheloniad: {problem}", file=sys.stderr)
    if problems:
        return USAGE
    warnings = list(local_warnings(load_config(options.config), SystemClock().now_ms()))
    for warning in warnings:
        print(f"cheloniad: warning: {warning}", file=sys.stderr)
    print(f"{options.config}: {'a node can start with it; see the warnings' if warnings else 'fine'}")
    return OK


def _print_config(options: argparse.Namespace) -> int:
    print(render_config(load_config(options.config)))
    return OK


if __name__ == "__main__":
    sys.exit(main())
