"""Ports for servers of tests: a range belongs to one process until that frees it, even beside other test runs.

They are below the range of the system's own ports, and of those of `cheloniad dev`. So a server that is stopped for a
while finds its ports free when it starts again.
"""

import random
import socket
from dataclasses import dataclass

FIRST, RANGES, LENGTH = 10_000, 200, 50


@dataclass
class Range:
    """`LENGTH` ports from `first` on. The claim is a name that the kernel frees when its process ends."""

    first: int
    claim: socket.socket

    def close(self) -> None:
        self.claim.close()


def claimed() -> Range:
    """A free range of ports that nothing listens on."""
    for number in random.sample(range(RANGES), RANGES):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0chelonia-test-ports-{number}")
            found = Range(FIRST + number * LENGTH, claim)
            _require_free(found)
        except OSError:
            claim.close()
        else:
            return found
    raise AssertionError("all ports for tests are taken: does something that tests have started still run?")


def _require_free(found: Range) -> None:
    for port in range(found.first, found.first + LENGTH):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


_kept: list[Range] = []
_left: list[int] = []


def free_ports(count: int) -> list[int]:
    """So many ports for servers of this process; none is given twice."""
    while len(_left) < count:
        _kept.append(claimed())
        _left.extend(range(_kept[-1].first, _kept[-1].first + LENGTH))
    return [_left.pop() for _ in range(count)]
