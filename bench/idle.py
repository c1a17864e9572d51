"""How often does an idle cluster commit, and for which jobs?

Three replicas of the A-Hash and three Shepherds with the dev settings; every number is from the metrics. It counts the
whole cluster's commits a second, and their causes by `chelonia_transacts_total`. A job that writes over and over would
show: once 42 commits a second went unseen for 45 minutes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter

import cluster
from experiment import Outcome, Setup
from intervals import check, median_interval

from chelonia.hosting.net.http_client import Sending
from chelonia_clients.administrator import Administrator

SETTLE_S, BLOCK_S = 10.0, 5.0
TRANSACTS = re.compile(r'chelonia_transacts_total\{cause="([^"]*)"\} ([0-9.e+]+)')
COMMITS = re.compile(r"^chelonia_ahash_commits ([0-9.e+]+)", re.MULTILINE)


async def run(setup: Setup) -> Outcome:
    async with cluster.dev(setup.scratch, 3, replicas=3) as running, running.administrator() as asking:
        await asyncio.sleep(SETTLE_S)
        rates, causes = list[float](), Counter[str]()
        before, at = await _counted(asking), time.perf_counter()
        for _ in range(setup.blocks):
            await asyncio.sleep(BLOCK_S)
            after, now = await _counted(asking), time.perf_counter()
            rates.append((after["commits"] - before["commits"]) / (now - at))
            causes.update(after - before)
            before, at = after, now
    seconds = setup.blocks * BLOCK_S
    told = {cause: round(count / seconds, 3) for cause, count in causes.most_common() if cause != "commits"}
    setup.say(f"   idle: {median_interval(rates)} commits/s; transacts/s by cause: {told}")
    results = {"commits_per_s": rates, "transacts_per_s": told}
    return Outcome(results, [check("commits of an idle cluster, 1/s", "at most", 1.0, rates)])


async def _counted(asking: Administrator) -> Counter[str]:
    """Commits of the A-Hash, and the transacts of all Librarians by cause; each node counts once."""
    found = Counter[str]()
    for url in asking.ahashes:
        told = await asking.http.request(Sending("GET", url.rsplit("/", 1)[0] + "/metrics"))
        text = told.body.decode()
        found.update({cause: int(float(count)) for cause, count in TRANSACTS.findall(text)})
        found["commits"] = max(found["commits"], *(int(float(count)) for count in COMMITS.findall(text)))
    return found
