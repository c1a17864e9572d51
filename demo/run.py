"""`make demo`: starts a real cluster, does its main job on real files, breaks it, and shows how it heals.

There are three A-Hash replicas, two of them with a Librarian and a Bartender, and five Shepherds. All are separate
processes with mutual TLS. The machine's own Python library goes in and comes back.

Ten large files with four replicas each play the self-healing experiment of the Chelonia paper (its Fig. 3). One
Shepherd is killed and comes back; one stored replica is damaged. Last the master of the A-Hash is killed under a
writing client.
Results: a table beside the paper's figures, `build/demo.json` and `build/demo.svg`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from chelonia.core.ids import ServiceId
from chelonia_clients.administrator import Administrator

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster
from experiment import FILES, REPLICAS, WANTED, Experiment
from outage import Outage, kill_master
from view import View

from chelonia.core.caller import Call
from chelonia.core.ids import ReferenceId
from chelonia_clients import connect
from chelonia_clients.client import Client

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SHEPHERDS = 5
FULL = os.environ.get("FULL", "") not in ("", "0")
FILE_BYTES = 114_000_000 if FULL else 16_000_000


def main() -> int:
    """Run the demo; 0 when it showed everything it should."""
    view = View()
    began = time.monotonic()
    work = BUILD / "demo"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    view.heading(
        f"A cluster: three A-Hash replicas, two Librarians, two Bartenders, {SHEPHERDS} Shepherds; eight processes"
    )
    cluster = Cluster(work / "cluster", SHEPHERDS)
    try:
        os.environ["CHELONIA_CLUSTER"] = str(cluster.directory / "cluster.json")
        view.note(f"ready; test CA, host, user and proxy certificates in {_short(cluster.directory / 'certs')}")
        _main_job(view, work)
        experiment = asyncio.run(_heal(view, cluster, work / "large"))
        outage = asyncio.run(_survive(view, cluster))
    except KeyboardInterrupt:
        view.note("interrupted")
        return 130
    finally:
        cluster.stop()
    _report(view, experiment)
    seconds = time.monotonic() - began
    view.note(f"the demo took {seconds:.0f} s; the cluster's logs are in {_short(cluster.directory / 'log')}")
    return 0 if experiment.complete and not (outage.errors or outage.lost) else 1


def _main_job(view: View, work: Path) -> None:
    view.heading("The main job: files in, files out, byte for byte")
    library = _copy_of_library(work / "library")
    large = work / "large"
    large.mkdir()
    for number in range(FILES):
        _make_file(large / f"file{number}.dat", number)
    _chelonia(view, "put", "-r", str(library), "/library", "2")
    _chelonia(view, "put", "-r", str(large), "/large", str(REPLICAS))
    _chelonia(view, "get", "-r", "/library", str(work / "library-back"))
    _chelonia(view, "get", "-r", "/large", str(work / "large-back"))
    for original, back in ((library, work / "library-back"), (large, work / "large-back")):
        count = _compare(original, back)
        view.note(f"{count} files of {_short(original)} came back identical")


async def _heal(view: View, cluster: Cluster, large: Path) -> Experiment:
    view.heading("The self-healing experiment: ten files, four replicas each, on five Shepherds")
    names = {entry["id"]: f"S{number}" for number, entry in enumerate(cluster.description["shepherds"], 1)}
    async with connect.from_environment() as client:
        experiment = Experiment(client, view, names, [f"/large/{path.name}" for path in sorted(large.iterdir())])
        view.start_watching(names)
        try:
            await experiment.until("40 replicas alive", lambda s: s.alive == WANTED and s.creating == 0)
            await experiment.linger(1.5)
            async with connect.administrator_from_environment() as administrator:
                await _kill_and_return(experiment, cluster, administrator)
            await _damage(experiment, cluster, client)
        finally:
            view.stop_watching()
    return experiment


async def _survive(view: View, cluster: Cluster) -> Outage:
    view.heading("The A-Hash loses its master while a client makes collections")
    seen = await kill_master(cluster)
    view.note(f"replica {seen.killed} was master and was killed (kill -9); replica {seen.successor} took over")
    view.note(
        f"an ordinary write took {seen.ordinary_s * 1000:.0f} ms, the longest one after the kill {seen.longest_s:.2f} s"
    )
    failed = len(seen.errors)
    view.note(f"{seen.writes} writes acknowledged, {seen.lost} of them lost, {failed} errors seen by the client")
    for error in seen.errors:
        view.note(error)
    view.note("the paper: 10 s on average, 60.9 s at worst (master restarted every 60 s)")
    return seen


async def _kill_and_return(experiment: Experiment, cluster: Cluster, administrator: Administrator) -> None:
    experiment.mark("S3 killed (kill -9)")
    cluster.kill_shepherd(2)
    await experiment.until("S3's copies are seen to be away", lambda s: s.offline > 0)
    experiment.note("the library's files heal at the same time: a minute may pass here on a busy machine")
    await experiment.ask_forecast(administrator)
    await experiment.until("40 alive again without S3", lambda s: s.alive == WANTED and s.creating == 0)
    await experiment.linger(1.5)
    experiment.mark("S3 started again")
    cluster.start_shepherd(2)
    await experiment.until("surplus: more than 40", lambda s: s.alive + s.thirdwheel > WANTED)
    await experiment.until("exactly 40 again", lambda s: s.alive == WANTED and s.thirdwheel == 0 and s.offline == 0)
    await experiment.linger(1.5)


async def _damage(experiment: Experiment, cluster: Cluster, client: Client) -> None:
    ln = experiment.files[0]
    place = next(iter(sorted((await client.stat(ln))["locations"])))
    service, reference = place.split(" ")
    index = next(i for i, entry in enumerate(cluster.description["shepherds"]) if entry["id"] == service)
    cluster.damage(index, reference)
    experiment.mark(f"64 bytes flipped on {experiment.names[service]}")
    async with connect.administrator_from_environment() as administrator:
        scrub = asyncio.ensure_future(
            administrator.shepherd(ServiceId(service)).scrub(Call(), (ReferenceId(reference),))
        )
        await experiment.until("the damage is seen", lambda s: s.invalid > 0)
        await scrub
    await experiment.until(
        "replaced: 40 sound replicas", lambda s: s.alive == WANTED and s.invalid == 0 and s.creating == 0
    )
    await experiment.linger(1.0)


def _report(view: View, experiment: Experiment) -> None:
    view.heading(
        f"What was seen here ({FILE_BYTES / 1e6:.0f} MB files, one machine) beside the paper"
        " (ISGC 2012, Fig. 3: 114 MB files, five machines)"
    )
    view.table("", ("", "here", "paper"), experiment.comparison())
    first, last = experiment.initial.per_shepherd, experiment.samples[-1].per_shepherd
    paper = ((9, 9), (8, 7), (8, 8), (7, 9), (8, 7))
    rows = [
        (experiment.names[s], str(first[s]), str(last[s]), str(before), str(after))
        for s, (before, after) in zip(first, paper, strict=True)
    ]
    view.table("Replicas per Shepherd", ("", "initial", "final", "paper initial", "paper final"), rows)
    experiment.write(BUILD / "demo.json", BUILD / "demo.svg", FILE_BYTES)
    view.note(f"samples: {_short(BUILD / 'demo.json')}   plot: {_short(BUILD / 'demo.svg')}")


def _chelonia(view: View, *arguments: str) -> None:
    view.note("$ chelonia " + " ".join(_short(Path(a)) if a.startswith(str(ROOT)) else a for a in arguments))
    began = time.monotonic()
    command = [str(Path(sys.executable).with_name("chelonia")), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"chelonia {arguments[0]} failed with exit code {done.returncode}:\n{done.stdout[-2000:]}")
    lines = done.stdout.strip().splitlines()
    view.note(f"  {len(lines)} lines like: {_short_text(lines[-1]) if lines else ''}")
    view.note(f"  {time.monotonic() - began:.1f} s")


def _copy_of_library(target: Path) -> Path:
    """The modules of this machine's Python, without tests and site-packages."""
    source = Path(sysconfig.get_path("stdlib"))

    def ignore(folder: str, names: list[str]) -> list[str]:
        skip = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib-dynload"}
        return [
            name for name in names
            if name in skip or name.startswith("config-")
            or (not name.endswith(".py") and not (Path(folder) / name).is_dir())
        ]  # fmt: skip

    shutil.copytree(source, target, ignore=ignore, symlinks=False)
    return target


def _make_file(path: Path, number: int) -> None:
    """A file of fixed size whose bytes do not repeat."""
    block = hashlib.shake_256(f"chelonia demo {number}".encode()).digest(1_000_000)
    with path.open("wb") as file:
        for index in range(FILE_BYTES // len(block)):
            file.write(block[index:] + block[:index])


def _compare(original: Path, back: Path) -> int:
    """Compare two trees; the number of files. Raises: SystemExit at the first difference."""
    before = {path.relative_to(original): path for path in original.rglob("*") if path.is_file()}
    after = {path.relative_to(back): path for path in back.rglob("*") if path.is_file()}
    if before.keys() != after.keys():
        raise SystemExit(f"other files came back: {sorted(map(str, before.keys() ^ after.keys()))[:10]}")
    for name, path in before.items():
        if path.read_bytes() != after[name].read_bytes():
            raise SystemExit(f"{name} came back with other bytes")
    return len(before)


def _short_text(line: str) -> str:
    return line.replace(f"{ROOT}/", "")


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    raise SystemExit(main())
