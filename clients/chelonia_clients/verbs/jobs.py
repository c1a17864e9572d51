"""`admin jobs`: the background work of every node, as each node sees its own."""

from __future__ import annotations

from chelonia.core.errors import CheloniaError
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.timing.jobs import FAILING, JobView
from chelonia.hosting.net.node_jobs import jobs_of_all
from chelonia_clients.output import table
from chelonia_clients.session import Session

JOB_FAILS = 1
"""Exit code while a job fails, though it is tried again."""


async def jobs(session: Session) -> None:
    """Print the background jobs of all nodes (`admin jobs`); exit code 1 while one fails."""
    administrator, out = session.administrator(), session.out
    records: tuple[ServiceRecord, ...] = ()
    try:
        records = await administrator.services()
    except CheloniaError as error:
        if not error.meaning.retryable:
            raise
        out.failure(error)  # go on with the nodes of the A-Hash, which mostly host Librarians
    urls = administrator.node_urls(records)
    rows: list[tuple[str, ...]] = [("NODE", "SERVICE", "JOB", "STATE", "NEXT", "LEADER", "BUGS", "WHY")]
    for url, answer in (await jobs_of_all(administrator.http, urls)).items():
        if isinstance(answer, CheloniaError):
            out.failure(answer, node=url)
        else:
            rows += [_row(session, url, answer.node, job) for job in answer.jobs]
    out.write(*table(rows, frozenset({4, 6})))
    if any(row[3] == FAILING for row in rows):
        out.exit_code = out.exit_code or JOB_FAILS


def _row(session: Session, url: str, node: str, job: JobView) -> tuple[str, ...]:
    session.out.result(  # `url` too: nodes are called alike on all hosts of an `init`
        url=url, node=node, service=job.service, job=job.name, state=job.state, why=job.why, last_error=job.last_error,
        bugs=job.bugs, next_in_ms=job.next_in_ms, needs_lease=job.needs_lease,
    )  # fmt: skip
    due = "" if job.next_in_ms is None else f"{job.next_in_ms / 1000:.1f}s"
    leader = "yes" if job.needs_lease else ""
    why = f"{job.why}; last error: {job.last_error}" if job.why and job.last_error else job.why or job.last_error
    return (url, job.service, job.name, job.state, due, leader, str(job.bugs or ""), why)
