"""A stranger, or another user of the same machine, gets no data out of running daemons, and no room either."""

import contextlib
import os
import stat
from pathlib import Path

from chelonia.core import bounds
from tests.cluster.harness import Cluster
from tests.cluster.load import put

FLOOD = 2 * bounds.SOAP_LARGE_BODIES_MAX
"""Unfinished messages of nearly the largest size: half a GiB, if all of them were kept."""
GROWTH_MAX = bounds.SOAP_LARGE_BODIES_MAX * bounds.SOAP_BODY_BYTES_MAX * 3 // 2


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mode_of(path: Path) -> int:
    """A file's mode; 0 where it has gone meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    return 0


async def test_what_daemons_keep_is_readable_by_them_alone(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await put(client, "/private-bytes", b"of the user")
    audit = [path for path in (cluster.root / "log").iterdir() if path.name.endswith("-audit.log")]
    kept = [path for name in cluster.names for path in cluster.data_dir(name).rglob("*") if path.is_file()]
    kept = [path for path in kept if not path.parent.name.endswith(".foreign")]  # set aside as somebody left it
    assert audit
    assert kept
    assert [path for path in (*audit, *kept) if mode_of(path) & 0o077] == []


def test_a_flood_of_unfinished_messages_leaves_room_for_others(cluster: Cluster) -> None:
    url, pid = cluster.url("bartender"), cluster.pid("core")
    before = resident_bytes(pid)
    head = f"POST /Bartender HTTP/1.1\r\nHost: a\r\nContent-Length: {bounds.SOAP_BODY_BYTES_MAX}\r\n\r\n".encode()
    body = b" " * (bounds.SOAP_BODY_BYTES_MAX - 1)
    with contextlib.ExitStack() as held:
        for _ in range(FLOOD):
            connection = held.enter_context(cluster.connected(url, "anonymous"))
            with contextlib.suppress(OSError):  # refused while it was still being sent
                connection.sendall(head + body)
        assert resident_bytes(pid) - before < GROWTH_MAX
        assert "wrong namespace" in cluster.soap(url, ENVELOPE, "user").text


ENVELOPE = (
    b'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><x:y xmlns:x="urn:x"/></s:Body>'
    b"</s:Envelope>"
)
