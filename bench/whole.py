"""A whole cluster with the intervals of production, whose processes are started and killed together or one by one.

A-Hash, Librarian and Bartender in one process and three Shepherds, below one directory; filled by `filling.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cluster
import filling

from chelonia.core.errors import CheloniaError
from chelonia.core.values import replace
from chelonia.hosting.config import load_config, render_config
from chelonia.hosting.setup.dev import DevCluster, DevOptions
from chelonia.hosting.transfer import upload as uploads

SHEPHERDS = 3
NAMES = ("core", *(f"shepherd{n}" for n in range(1, SHEPHERDS + 1)))
KEPT = {"librarian": ("root_policy", "root_default_policy", "root_owner"), "shepherd": ("domain", "min_free_bytes")}
"""Settings of `cheloniad dev` that stay; all others are as in production."""
POLL_S = 0.05
PATIENCE_S = 900.0


class Whole:
    """The processes below a directory. `cache_mib`: of the A-Hash, 0: as in production."""

    def __init__(self, directory: Path, cache_mib: int = 0) -> None:
        self.directory = directory
        self._cache_mib = cache_mib
        self.running = cluster.Running(directory)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        DevCluster(DevOptions(directory, SHEPHERDS)).prepare()
        for name in NAMES:
            self._settle(directory / "conf" / f"{name}.toml")

    def _settle(self, path: Path) -> None:
        config = load_config(path)
        for part, kept in KEPT.items():
            section = getattr(config, part)
            if section is not None:
                tuning = {key: value for key, value in section.tuning.items() if key in kept}
                config = replace(config, **{part: replace(section, tuning=tuning)})
        if config.ahash is not None and self._cache_mib:
            tuning = {**config.ahash.tuning, "cache_bytes": self._cache_mib * 1024**2}
            config = replace(config, ahash=replace(config.ahash, tuning=tuning))
        path.write_text(render_config(config))

    def log(self, name: str) -> Path:
        """The log of a process since its last start."""
        return self.directory / "log" / f"{name}.log"

    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes.values())

    def by_name(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def start(self) -> None:
        for name in NAMES:
            assert name not in self._processes, f"{name} runs"
            with self.log(name).open("wb") as log:
                config = self.directory / "conf" / f"{name}.toml"
                command = (*cluster.CHELONIAD, "run", "--config", str(config))
                self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        self._describe()

    def end(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            process.send_signal(number)
        for process in self._processes.values():
            process.wait(120)
        self._processes.clear()

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait(120)

    async def fill(self, files: int, every: int, size: int) -> None:
        """Put one file, stop, and fill the stopped cluster after its pattern; see `filling.py`."""
        self.start()
        async with self.running.client() as client:
            await until(lambda: client.make_collection(f"/{filling.COLLECTION}"))
            source, wish = uploads.bytes_source(bytes(size)), uploads.UploadOptions(2)
            await until(lambda: uploads.upload(client, source, f"/{filling.COLLECTION}/{filling.PATTERN}", wish))
            await logged(self, "inventory compared")
        self.end(signal.SIGTERM)
        command = [sys.executable, filling.__file__, str(self.directory), str(files), str(every), str(size)]
        await asyncio.to_thread(subprocess.run, command, check=True)

    def resident_mib(self) -> dict[str, int]:
        """Resident memory by process."""
        page = os.sysconf("SC_PAGE_SIZE")
        sizes = {name: Path(f"/proc/{p.pid}/statm").read_text().split()[1] for name, p in self._processes.items()}
        return {name: int(size) * page // 1024**2 for name, size in sizes.items()}

    def _describe(self) -> None:
        conf, certs = self.directory / "conf", self.directory / "certs"
        core = load_config(conf / "core.toml")
        assert core.ahash is not None
        assert core.librarian is not None
        assert core.bartender is not None
        pid = self._processes["core"].pid
        told: dict[str, Any] = {
            name: [{"url": section.id, "pid": pid}]
            for name, section in (("ahash", core.ahash), ("librarian", core.librarian), ("bartender", core.bartender))
        }
        told["shepherds"] = []
        for name in NAMES[1:]:
            section = load_config(conf / f"{name}.toml").shepherd
            assert section is not None
            told["shepherds"].append({"url": section.id, "pid": self._processes[name].pid})
        told["s3"] = [f"https://localhost:{each.port}" for each in core.listen if "s3" in each.serves]
        told |= {"ca_dir": str(certs / "certificates"), "user_proxy": str(certs / "user-proxy.pem")}
        told |= {f"admin_{part}": str(certs / f"admin-{part}.pem") for part in ("cert", "key")}
        self.running.description.write_text(json.dumps(told))


async def until(act: Callable[[], Awaitable[object]]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            await act()
            return
        except CheloniaError as error:
            if time.monotonic() > give_up:
                raise SystemExit(f"it never served: {error}") from error
        await asyncio.sleep(POLL_S)


async def logged(whole: Whole, text: str) -> None:
    """Wait until every Shepherd's log contains this text."""
    give_up = time.monotonic() + PATIENCE_S
    while not all(text in whole.log(name).read_text() for name in NAMES[1:]):
        if time.monotonic() > give_up:
            raise SystemExit(f"{text!r} was never logged")
        await asyncio.sleep(POLL_S)
