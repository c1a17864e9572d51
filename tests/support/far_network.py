"""Distant hosts: passes IP packets between network namespaces, in order and late. Needs root.

For machines whose kernel has no netem. Each namespace has a TUN device `eth0`, whose other end is this process. It runs
by itself (`python -m tests.support.far_network MS PID:ADDRESS...`), prints `ready`, and ends with its parent. A packet
between two of them takes MS; one that comes while more than `QUEUE` are under way is dropped, as by a router.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence

MTU = 8900
QUEUE = 20_000
_PACKETS_AT_ONCE = 64
_CLONE_NEWNET, _TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000
_DESTINATION = slice(16, 20)
"""The destination address in an IPv4 packet."""


def devices(ends: Sequence[str]) -> dict[bytes, int]:
    """A TUN device in each namespace, `PID:ADDRESS`, by its packed address."""
    libc, home = ctypes.CDLL(None, use_errno=True), os.open("/proc/self/ns/net", os.O_RDONLY)
    opened = {}
    for pid, _, address in (end.partition(":") for end in ends):
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        assert libc.setns(there, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(there)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TUN | _IFF_NO_PI))
        assert libc.setns(home, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        opened[socket.inet_aton(address)] = device
    return opened


def forward(ends: dict[bytes, int], late_s: float) -> None:
    """Pass packets on until killed."""
    ready, under_way = select.epoll(), deque[tuple[float, int, bytes]]()
    for device in ends.values():
        ready.register(device, select.EPOLLIN)
    while True:
        while under_way and under_way[0][0] <= time.monotonic():
            _, device, packet = under_way.popleft()
            with contextlib.suppress(OSError):  # the host is gone, or its queue is full
                os.write(device, packet)
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else -1
        for source, _ in ready.poll(wait_s):
            _take(source, ends, under_way, late_s)


def _take(source: int, ends: dict[bytes, int], under_way: deque[tuple[float, int, bytes]], late_s: float) -> None:
    for _ in range(_PACKETS_AT_ONCE):
        try:
            packet = os.read(source, 1 << 16)
        except BlockingIOError:
            return
        device = ends.get(packet[_DESTINATION])
        if device is not None and len(under_way) < QUEUE:
            under_way.append((time.monotonic() + late_s, device, packet))


if __name__ == "__main__":
    _late_ms, *_ends = sys.argv[1:]
    _opened = devices(_ends)
    print("ready", flush=True)
    forward(_opened, int(_late_ms) / 1000)
