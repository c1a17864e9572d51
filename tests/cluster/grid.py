"""Grid jobs on real A-REX and real daemons: inputs and outputs by URL, with the user's delegated proxy.

`make grid` runs it, as root, with Debian's `nordugrid-arc-arex nordugrid-arc-client nordugrid-arc-plugins-needed
nordugrid-arc-plugins-arcrest`. Cluster and A-REX (fork, one job after another) are in a network namespace of their own.

Each job reads an `https:` and a `davs:` file, and writes one into a collection that is not there. Of every output the
bytes, the owner and the audit line are checked; the directory of a run that failed is kept. Rounds:
- quiet
- a Shepherd that holds an input killed while inputs are staged in
- one killed while outputs are staged out
- a Bartender killed between
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.harness import Cluster, runs
from tests.cluster.load import locations, put
from tests.cluster.test_full_disk import JANE
from tests.support.polling import poll

NEEDED = ("/usr/share/arc/arc-arex-start", "/usr/share/arc/arc-arex-ws-start", "/usr/bin/arcsub", "/usr/bin/unshare")
INSIDE = "CHELONIA_GRID_INSIDE"
PORT = 8500
SIZE = 3_000_000
JOB_S = 900.0
ROUNDS = ("quiet", "stage-in", "between", "stage-out")

CONF = """\
[common]
hostname=localhost
x509_host_key={certs}/core1-key.pem
x509_host_cert={certs}/core1-cert.pem
x509_cert_dir={ca_dir}
[authgroup:all]
all=yes
[mapping]
map_to_user=all nobody:nogroup
[lrms]
lrms=fork
[arex]
controldir={root}/control
sessiondir={root}/session
scratchdir={root}/scratch
runtimedir={root}/runtime
logfile={root}/arex.log
pidfile={root}/arex.pid
joblog={root}/joblog
wakeupperiod=2
maxrerun=0
[arex/data-staging]
maxtransfertries=10
speedcontrol=0 300 0 300
[arex/ws]
wsurl=https://localhost:{port}/arex
logfile={root}/ws.log
pidfile={root}/ws.pid
[arex/ws/jobs]
allowaccess=all
[infosys]
loglevel=3
logfile={root}/infoprovider.log
[infosys/glue2]
admindomain_name=test
[infosys/cluster]
alias=test
[queue:fork]
comment=one after another
"""
JOB = """\
&(jobName="{name}")
 (executable="/bin/sh")
 (arguments="-c" "{wait}cat one two > sum")
 (inputFiles=("one" "{files}/in/one") ("two" "{davs}/in/two"))
 (outputFiles=("sum" "{davs}/out/{name}/sum"))
 (stdout="stdout")(stderr="stderr")
"""


@dataclass
class Grid:
    """A-REX beside a cluster."""

    cluster: Cluster
    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        for name in ("control", "session", "scratch", "runtime", "home/.arc"):
            (self.root / name).mkdir(parents=True)
        (self.root / "scratch").chmod(0o1777)
        (self.root / "session").chmod(0o1777)
        self._give_primes()
        certs = self.cluster.root / "certs"
        conf = self.root / "arc.conf"
        conf.write_text(CONF.format(certs=certs, ca_dir=self.cluster.ca_dir, root=self.root, port=PORT))
        self.environment = {
            **os.environ, "ARC_CONFIG": str(conf), "HOME": str(self.root / "home"),
            "X509_CERT_DIR": str(self.cluster.ca_dir), "X509_USER_PROXY": self.cluster.info["user_proxy"],
        }  # fmt: skip
        for start in NEEDED[:2]:
            with (self.root / "start.log").open("ab") as log:  # a pipe would be held open by the daemon
                subprocess.run([start], env=self.environment, check=True, timeout=180, stdout=log, stderr=log)
        poll(lambda: "1" if self.states() is not None else "", 60.0, what="A-REX answers")

    def _give_primes(self) -> None:
        """Write known primes of RFC 7919: without them, an `openssl` searches for minutes, even after all has ended."""
        words = ("openssl", "genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048", "-out")
        subprocess.run([*words, self.root / "control/dhparam.pem"], check=True, timeout=60)

    def stop(self) -> None:
        for name in ("ws.pid", "arex.pid"):
            path = self.root / name
            if path.exists():
                pid = int(path.read_text())
                os.kill(pid, signal.SIGTERM)
                poll(lambda pid=pid: not runs(pid), 30.0, what=f"{name} ends")  # type: ignore[misc]

    def tool(self, *argv: str, check: bool = True) -> str:
        """Run one of ARC's tools and return its stdout."""
        done = subprocess.run(argv, env=self.environment, timeout=120, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout

    def submit(self, name: str, wait_s: int) -> str:
        """Submit a job; returns its id."""
        description = self.root / f"{name}.xrsl"
        files = self.cluster.files_url
        davs = files.replace("https:", "davs:")
        wait = f"sleep {wait_s}; " if wait_s else ""
        description.write_text(JOB.format(name=name, files=files, davs=davs, wait=wait))
        url = f"https://localhost:{PORT}/arex"
        told = self.tool("arcsub", "-C", url, "-T", "arcrest", "-Q", "NONE", str(description))
        found = re.search(r"jobid: (\S+)", told)
        assert found, told
        return found[1]

    def states(self) -> Mapping[str, str] | None:
        """Jobs and their states at A-REX, from its control directory; None while it is not up."""
        if not (self.root / "ws.pid").exists() or not (self.root / "arex.pid").exists():
            return None
        found = {}
        for path in (self.root / "control").rglob("job.*.status"):
            with suppress(FileNotFoundError):  # it has just moved on
                found[path.name.split(".")[1]] = path.read_text().strip()
        return found


@contextmanager
def running(cluster: Cluster, root: Path) -> Iterator[Grid]:
    grid = Grid(cluster, root)
    try:
        grid.start()
        yield grid
    finally:
        grid.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20, help="in each round (default 20)")
    parser.add_argument("--rounds", default=",".join(ROUNDS), help=f"of {','.join(ROUNDS)} (default: all)")
    args = parser.parse_args()
    missing = [path for path in NEEDED if not Path(path).exists()]
    if missing or os.geteuid() != 0:
        sys.exit(f"needs root and {', '.join(missing) or 'nothing else'}: see the head of {__file__}")
    if INSIDE not in os.environ:
        inside = f'ip link set lo up && exec {sys.executable} -m tests.cluster.grid "$@"'
        argv = ["unshare", "--net", "sh", "-c", inside, "grid", *sys.argv[1:]]
        os.execvpe(argv[0], argv, {**os.environ, INSIDE: "1"})
    root = Path(tempfile.mkdtemp(prefix="chelonia-grid-"))
    root.chmod(0o755)
    cluster = Cluster(root / "cluster", shepherds=5, replicas=3)
    good = False
    try:
        cluster.start()
        with running(cluster, root / "arex") as grid:
            rounds = [play(grid, name, args.jobs, first=not n) for n, name in enumerate(args.rounds.split(","))]
            good = all(rounds)
    finally:
        cluster.stop()
        if good:
            shutil.rmtree(root)
        else:
            print(f"kept: {root}")
    sys.exit(0 if good else 1)


def fault(grid: Grid, name: str) -> None:
    """Kill the node that this round is for, once a job is in the round's stage; the supervisor starts it again."""
    stage, victim = {
        "quiet": ("", ""),
        "stage-in": ("PREPARING", holder(grid.cluster, "/in/one")),
        "between": ("INLRMS", "core1"),
        "stage-out": ("FINISHING", "shepherd2"),
    }[name]
    if not stage:
        return
    poll(lambda: stage in (grid.states() or {}).values(), JOB_S, what=f"a job is in {stage}")
    old = grid.cluster.kill(victim)
    grid.cluster.wait_restarted(victim, old)


def holder(cluster: Cluster, path: str) -> str:
    """Return a Shepherd that has a whole copy of a file."""

    async def places() -> Mapping[str, str]:
        async with cluster.client("user") as client:
            return await locations(client, path)

    return next(cluster.named(at) for at, state in asyncio.run(places()).items() if state == "alive")


def output(grid: Grid, name: str, expected: str) -> str:
    """Return the fault of a job's output; "" when it is whole, the user's, and its writing was audited."""
    path, cluster = f"/out/{name}/sum", grid.cluster

    async def owner() -> str:
        async with cluster.client("user") as client:
            return (await client.stat(path))["entry"]["owner"]

    answer = cluster.request("GET", f"{cluster.files_url}{path}?proxy")
    if answer.status != 200:
        return f"{path}: {answer.status}"
    if hashlib.sha256(answer.body).hexdigest() != expected:
        return f"{path}: other bytes"
    if asyncio.run(owner()) != JANE:
        return f"{path}: another owner"
    audits = [cluster.root / "log" / f"{core}-audit.log" for core in cluster.core_names]
    written = re.compile(f'who="{JANE}" op="(write|putFile)" ln="/out/{name}" action="addEntry" decision="allowed"')
    return "" if any(written.search(audit.read_text()) for audit in audits) else f"{path}: no audit line"


def play(grid: Grid, name: str, jobs: int, *, first: bool) -> bool:
    """One round; returns whether all its jobs finished with the right outputs."""
    began = time.monotonic()
    one, two = os.urandom(SIZE), os.urandom(SIZE)

    async def fill() -> None:
        async with grid.cluster.client("user") as client:
            if first:
                await client.make_collection("/in")
            for path, data in (("/in/one", one), ("/in/two", two)):
                await put(client, path, data, replace=True)

    asyncio.run(fill())
    ids = [grid.submit(f"{name}-{n}", 0 if name == "quiet" else 3) for n in range(jobs)]
    fault(grid, name)
    own = [each.rpartition("/")[2] for each in ids]

    def over() -> bool:
        states = grid.states() or {}
        return all(states.get(each, "") in ("FINISHED", "DELETED") for each in own)

    poll(over, JOB_S, what=f"the jobs of {name} end")
    failed = [each for each in own if list((grid.root / "control").rglob(f"*{each}*failed*"))]
    expected = hashlib.sha256(one + two).hexdigest()
    wrong = [found for n in range(jobs) if (found := output(grid, f"{name}-{n}", expected))]
    print(f"{name}: {jobs - len(failed)} of {jobs} FINISHED, {jobs - len(wrong)} outputs right, "
          f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    for line in (*wrong, *failed):
        print(f"  {line}")
    return not failed and not wrong


if __name__ == "__main__":
    main()
