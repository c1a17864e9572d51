"""The background jobs of all nodes, as each node reports its own at `GET /jobs`.

It requests all at once, and waits for none of them long: a stuck node shows as an error beside the others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.jobs import NodeJobs
from chelonia.hosting.net.http_client import HttpClient, Sending, raise_for_status

JOBS_MS: Final = 5_000
"""Longest wait for a node's answer: one may be stuck."""


def node_urls(services: Iterable[str]) -> tuple[str, ...]:
    """Return the base URLs of services, by their ids."""
    parts = {urlsplit(url) for url in services if url}
    # An id without a port is no address: it names a client, as the `service` identity of `cheloniad dev`.
    return tuple(sorted({f"{part.scheme}://{part.netloc}" for part in parts if part.port}))


def by_version(versions: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each version with its nodes, the newest first; software that does not report its version comes last."""
    reported = sorted(set(versions.values()), key=_numbers, reverse=True)
    return [
        (each or "older, not reported", sorted(url for url, version in versions.items() if version == each))
        for each in reported
    ]


def _numbers(version: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall("[0-9]+", version)], version


async def jobs_of(http: HttpClient, node: str) -> NodeJobs:
    """Return the background jobs of a node, by its base URL. Raises: NETWORK, TIMEOUT, DENIED, ..."""
    try:
        async with asyncio.timeout(JOBS_MS / 1000):  # with a host that is gone there is not even a connection
            answer = await http.request(Sending("GET", f"{node}/jobs"))
    except TimeoutError:
        raise CheloniaError(Kind.TIMEOUT, "jobs", node, f"no answer within {JOBS_MS // 1000} s") from None
    raise_for_status(answer.status, answer.headers, answer.body, "jobs")
    try:
        return msgspec.json.decode(answer.body, type=NodeJobs)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        cause = "its answer is no list of jobs; is it of another version?"
        raise CheloniaError(Kind.BAD_REQUEST, "jobs", node, cause) from error


async def jobs_of_all(http: HttpClient, nodes: Iterable[str]) -> dict[str, NodeJobs | CheloniaError]:
    """Return the jobs of each process by its base URL, or its error. A process with several addresses comes once."""

    async def fetch(node: str) -> NodeJobs | CheloniaError:
        try:
            return await jobs_of(http, node)
        except CheloniaError as error:
            return CheloniaError(error.kind, "jobs", node, error.cause)

    urls, jobs, processes = tuple(nodes), dict[str, NodeJobs | CheloniaError](), set[str]()
    for url, answer in zip(urls, await asyncio.gather(*map(fetch, urls)), strict=True):
        if isinstance(answer, CheloniaError) or answer.process not in processes:
            jobs[url] = answer
        if isinstance(answer, NodeJobs):
            processes.add(answer.process)
    return jobs
