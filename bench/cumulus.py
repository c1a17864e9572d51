"""Figures 2 to 4 of the Cumulus paper: one transfer beside scp and GridFTP, by size; and 32 clients at once.

Figs. 2 and 3: `s3cmd` at the S3 door, `scp`, GridFTP (`globus-url-copy`, one stream) and the disk alone: `dd` with
fsync, then a read. Each is a whole process, as a user starts it, in turn. A program that is not on PATH is left out,
and the output says so. Sizes are 2 MB to 2 GB.

Fig. 4: 32 clients (`curl`, which signs) send and fetch a file each at the same time; the throughput of each, and
whether any was refused. The door's files have three copies, two of them durable before the answer, and all traffic is
encrypted; in the paper neither was so. `--full`: the paper's sizes, ten trials. CHELONIA_BENCH_CUMULUS_MIB: the largest
size.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster
import s3
from experiment import Outcome, Setup
from intervals import check
from machine import NoPeer, free_port, load, until_listening
from plot import Chart, Point, Series
from scp import sshd
from stream import timed

MIB = 1024 * 1024
SMALLEST, LARGEST, QUICK, FULL = 2, 64, 4, 2048
TRIALS, FULL_TRIALS = 3, 10
CLIENTS, CLIENT_MIB, CLIENT_QUICK_MIB, CLIENT_FULL_MIB = 32, 64, 2, 512
FAIR = 0.99
BUCKET = "cumulus"
PAPER_MIB = 512
PAPER = {
    "up": {"single": 269.0, "sum": 264.0, "deviation": 0.45, "farthest": 1.18},
    "down": {"single": 310.0, "sum": 210.0, "deviation": 0.18, "farthest": 0.40},
}
"""Mb/s of a file of 512 MB: one client, the sum of 32; of the 32 the standard deviation, and the largest one."""

Step = Callable[[Path, str], list[str]]
"""The command that moves a file to or from a name at a server."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How files go: up from a path, down to a path."""

    up: Step
    down: Step


async def run(setup: Setup) -> Outcome:
    async with cluster.dev(setup.scratch, 3, steady=True) as running:
        return await asyncio.to_thread(_measured, setup, running)


def _measured(setup: Setup, running: cluster.Running) -> Outcome:
    skipped: list[str] = []
    server = s3.own(running)
    with ExitStack() as stack:
        near = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="chelonia-bench-")))
        far = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=setup.scratch, prefix="cumulus-")))
        curl = _curl(server, s3.bundle(running))
        timed([*curl, "-X", "PUT", f"{server.url}/{BUCKET}"])
        ways = _ways(stack, server, s3.bundle(running), far, skipped)
        rates = _by_size(setup, ways, near)
        fair: dict[str, list[list[float]]] = {"up": [], "down": []}
        figures: dict[str, list[dict[str, Any]]] = {"up": [], "down": []}
        for _ in range(_of(setup, TRIALS, 1, FULL_TRIALS)):
            for direction, trials in fair.items():
                trials.append(_together(setup, curl, server, near, direction))
                figures[direction].append(_fairness(setup, direction, trials[-1]))
    checks = [
        check(f"Jain's index of {CLIENTS} clients, {direction}", "at least", FAIR, [each["jain"] for each in told])
        for direction, told in figures.items()
    ]
    charts = {f"cumulus-{direction}": _chart(direction, rates[direction]) for direction in ("up", "down")}
    charts["cumulus-fair"] = _fair_chart({direction: trials[-1] for direction, trials in fair.items()})
    return Outcome({"mbit_per_s": rates, "fair": figures, "paper": PAPER}, checks, charts, skipped)


# --- Figs. 2 and 3: one transfer, by size --------------------------------------------------------------------------


def _ways(stack: ExitStack, server: s3.S3Server, bundle: Path, far: Path, skipped: list[str]) -> dict[str, _Way]:
    ways = {
        "disk": _Way(
            lambda path, name: ["dd", f"if={path}", f"of={far / name}", "bs=1M", "conv=fsync", "status=none"],
            lambda path, name: ["dd", f"if={far / name}", f"of={path}", "bs=1M", "status=none"],
        )
    }
    if found := shutil.which("s3cmd"):
        host = server.url.partition("//")[2]
        base = [found, "-q", "--no-progress", f"--access_key={server.key}", f"--secret_key={server.secret}",
                f"--host={host}", f"--host-bucket={host}", f"--ca-certs={bundle}"]  # fmt: skip
        ways["s3cmd"] = _Way(
            lambda path, name: [*base, "put", str(path), f"s3://{BUCKET}/{name}"],
            lambda path, name: [*base, "get", "--force", f"s3://{BUCKET}/{name}", str(path)],
        )
    else:
        skipped.append("cumulus: no s3cmd here (Debian's package s3cmd)")
    try:
        ssh = stack.enter_context(sshd(far))
        ways["scp"] = _Way(
            lambda path, name: [*ssh.scp(), str(path), ssh.remote(far / f"scp-{name}")],
            lambda path, name: [*ssh.scp(), ssh.remote(far / f"scp-{name}"), str(path)],
        )
    except NoPeer as error:
        skipped.append(f"cumulus: no scp: {error}")
    try:
        url = stack.enter_context(_gridftp(far))
        ways["GridFTP"] = _Way(
            lambda path, name: ["globus-url-copy", f"file://{path}", f"{url}{far}/ftp-{name}"],
            lambda path, name: ["globus-url-copy", f"{url}{far}/ftp-{name}", f"file://{path}"],
        )
    except NoPeer as error:
        skipped.append(f"cumulus: no GridFTP: {error}")
    return ways


@contextlib.contextmanager
def _gridftp(far: Path) -> Iterator[str]:
    """A GridFTP server without identities on loopback; yields its URL. Raises: NoPeer."""
    if not (shutil.which("globus-url-copy") and shutil.which("globus-gridftp-server")):
        raise NoPeer("it is not installed (Debian: globus-gass-copy-progs, globus-gridftp-server-progs)")
    port, user = free_port(), pwd.getpwuid(os.getuid()).pw_name
    command = ["globus-gridftp-server", "-aa", "-allow-root", "-anonymous-user", user, "-p", str(port)]
    command += ["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1", "-home-dir", str(far), "-no-cas"]
    with (far / "gridftp.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until_listening(process, port, far / "gridftp.log")
        yield f"ftp://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _by_size(setup: Setup, ways: dict[str, _Way], near: Path) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Mb/s of each trial: by direction, way and MiB."""
    largest = int(os.environ.get("CHELONIA_BENCH_CUMULUS_MIB", "0")) or _of(setup, LARGEST, QUICK, FULL)
    rates: dict[str, dict[str, dict[int, list[float]]]] = {each: {way: {} for way in ways} for each in ("up", "down")}
    size = SMALLEST
    while size <= largest:
        source, fetched = near / "source", near / "fetched"
        source.write_bytes(os.urandom(MIB) * size if size > LARGEST else os.urandom(size * MIB))
        for trial in range(_of(setup, TRIALS, 1, FULL_TRIALS)):
            for name, way in list(ways.items())[:: 1 if trial % 2 == 0 else -1]:
                there = f"{size}-{trial}"
                for direction, command in (("up", way.up(source, there)), ("down", way.down(fetched, there))):
                    os.sync()
                    seconds, _ = timed(command)
                    rates[direction][name].setdefault(size, []).append(size * MIB * 8 / 1e6 / seconds)
                if fetched.stat().st_size != size * MIB:
                    raise SystemExit(f"{name} brought {fetched.stat().st_size} bytes of {size} MiB")
                fetched.unlink()
        for direction, seen in rates.items():
            told = ", ".join(f"{name} {statistics.mean(sizes[size]):.0f}" for name, sizes in seen.items())
            setup.say(f"  {size:5} MiB {direction:4}: {told} Mb/s")
        size *= 2
    return rates


def _of(setup: Setup, usual: int, quick: int, full: int) -> int:
    return full if setup.full else quick if setup.quick else usual


# --- Fig. 4: clients at once -----------------------------------------------------------------------------------------


def _curl(server: s3.S3Server, bundle: Path) -> list[str]:
    signed = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{server.key}:{server.secret}"]
    unsigned = ["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    return ["curl", "--silent", "--show-error", "--fail", "--cacert", str(bundle), *signed, *unsigned]


def _together(setup: Setup, curl: Sequence[str], server: s3.S3Server, near: Path, direction: str) -> list[float]:
    """Mb/s of each of the clients, which begin at the same time. Raises: SystemExit when one was refused."""
    size = _of(setup, CLIENT_MIB, CLIENT_QUICK_MIB, CLIENT_FULL_MIB) * MIB
    source = near / "shared"
    if not source.exists():
        source.write_bytes(os.urandom(MIB) * (size // MIB))
    command = [*curl, "--write-out", "%{time_total} %{size_upload} %{size_download}", "--output", os.devnull]
    if direction == "up":
        command += ["--upload-file", str(source)]
    clients = [
        subprocess.Popen([*command, f"{server.url}/{BUCKET}/client-{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(CLIENTS)
    ]
    rates = list[float]()
    for client in clients:
        told = client.communicate()[0].split()
        if client.returncode:
            raise SystemExit(f"one of {CLIENTS} clients was refused: curl ended with {client.returncode}")
        moved = int(told[1 if direction == "up" else 2])
        if moved != size:
            raise SystemExit(f"a client moved {moved} of {size} bytes")
        rates.append(size * 8 / 1e6 / float(told[0]))
    return rates


def _fairness(setup: Setup, direction: str, rates: Sequence[float]) -> dict[str, Any]:
    mean = statistics.mean(rates)
    told = {
        "mean": mean,
        "sum": sum(rates),
        "deviation": statistics.stdev(rates),
        "farthest": max(abs(rate - mean) for rate in rates),
        "jain": sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)),
        "load_average": load(),
    }
    theirs = PAPER[direction]
    setup.say(
        f"  {CLIENTS} clients {direction}: {mean:.2f} Mb/s each, standard deviation {told['deviation']:.2f} (paper "
        f"{theirs['deviation']} of {theirs['sum'] / CLIENTS:.1f}), farthest {told['farthest']:.2f} (paper "
        f"{theirs['farthest']}), Jain's index {told['jain']:.4f}, sum {told['sum']:.0f}; load {load()}"
    )
    return told


# --- figures ---------------------------------------------------------------------------------------------------------


def _chart(direction: str, rates: dict[str, dict[int, list[float]]]) -> Chart:
    series = []
    for number, (name, sizes) in enumerate(rates.items()):
        points = [Point(size, statistics.mean(seen), min(seen), max(seen)) for size, seen in sizes.items()]
        series.append(Series(name, points, dashed=name == "disk", colour=number))
    single = PAPER[direction]["single"]
    point = Point(PAPER_MIB, single, single, single)
    series.append(Series("Cumulus in the paper (1 Gb/s, HTTP)", [point], colour=len(rates)))
    return Chart(f"One transfer {direction}, by size", "MiB", "Mb/s", series, log_x=True)


def _fair_chart(fair: dict[str, list[float]]) -> Chart:
    series = []
    for number, (direction, rates) in enumerate(fair.items()):
        points = [Point(n, rate, rate, rate) for n, rate in enumerate(rates, 1)]
        theirs = PAPER[direction]["sum"] / CLIENTS
        series.append(Series(direction, points, colour=number))
        series.append(
            Series(
                f"{direction}, mean in the paper",
                [Point(1, theirs, theirs, theirs), Point(CLIENTS, theirs, theirs, theirs)],
                dashed=True,
                colour=number,
            )
        )
    return Chart(f"{CLIENTS} clients at once", "client", "Mb/s", series)
