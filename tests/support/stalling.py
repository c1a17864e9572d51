"""A relay that stops in the middle of what a client sends, so that a test can kill the client there."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


@contextmanager
def stalling(url: str, limit: int) -> Iterator[tuple[str, threading.Event]]:
    """A relay to a door that passes `limit` bytes of its clients, tells so, and stops. At its end the door has dropped
    all connections."""
    full, over, threads = threading.Event(), threading.Event(), []
    passed: list[int] = []

    def passing(source: socket.socket, end: socket.socket, *, counts: bool) -> None:
        with suppress(OSError):
            while not (counts and full.is_set()) and (data := source.recv(65536)):
                with suppress(OSError):
                    end.sendall(data)
                passed.append(len(data) * counts)
                if sum(passed) > limit:
                    full.set()
        if counts and full.is_set():
            over.wait()
        with suppress(OSError):
            end.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                ends = (listener.accept()[0], socket.create_connection(("localhost", urlsplit(url).port or 0)))
                for pair, counts in ((ends, True), (ends[::-1], False)):
                    threads.append(threading.Thread(target=passing, args=pair, kwargs={"counts": counts}, daemon=True))
                    threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}", full
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "the door keeps a connection whose client is gone"
