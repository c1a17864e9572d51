"""Starts and breaks the demo's cluster: `cheloniad dev` and single Shepherds, all real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

CHELONIAD = Path(sys.executable).with_name("cheloniad")


class Cluster:
    """A development cluster in one directory."""

    def __init__(self, directory: Path, shepherds: int) -> None:
        """Start it and wait for `ready`. Raises: SystemExit with the log's place when it does not come."""
        self.directory = directory
        self._extra: list[subprocess.Popen[bytes]] = []
        arguments = [str(CHELONIAD), "dev", "--dir", str(directory), "--shepherds", str(shepherds), "--no-restart"]
        arguments += ["--trash-keep-s", "10"]  # what is deleted frees its space while one looks on
        with (directory.parent / "cluster.log").open("w") as log:
            self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
        raise SystemExit(
            f"the cluster did not start (exit {self._process.wait()}); its logs are in {directory / 'log'}"
        )

    @property
    def description(self) -> dict[str, Any]:
        """`cluster.json` as it is now."""
        data: dict[str, Any] = json.loads((self.directory / "cluster.json").read_text())
        return data

    def shepherd(self, index: int) -> dict[str, Any]:
        entry: dict[str, Any] = self.description["shepherds"][index]
        return entry

    def kill_shepherd(self, index: int) -> None:
        """kill -9, as a power cut would."""
        os.kill(self.shepherd(index)["pid"], signal.SIGKILL)

    def start_shepherd(self, index: int) -> None:
        """Start a killed Shepherd again on its old directory."""
        self._start(f"shepherd{index + 1}")

    def _start(self, name: str) -> None:
        config = self.directory / "conf" / f"{name}.toml"
        with (self.directory / "log" / f"demo-{name}.log").open("ab") as log:
            self._extra.append(
                subprocess.Popen([str(CHELONIAD), "run", "--config", str(config)], stdout=log, stderr=log)
            )

    def kill_core(self, replica: int) -> None:
        """kill -9 the node of one A-Hash replica, with its Librarian and Bartender, if it has them."""
        os.kill(self.description["ahash"][replica - 1]["pid"], signal.SIGKILL)

    def start_core(self, replica: int) -> None:
        """Start it again on its old directory."""
        self._start(f"core{replica}")

    def damage(self, index: int, reference: str) -> Path:
        """Flip 64 bytes in the middle of one stored replica, as a bad disk would. Returns the file."""
        [path] = [p for p in Path(self.shepherd(index)["data_dir"]).rglob(reference) if p.is_file()]
        with path.open("r+b") as file:
            middle = path.stat().st_size // 2
            file.seek(middle)
            old = file.read(64)
            file.seek(middle)
            file.write(bytes(255 - byte for byte in old))
        return path

    def stop(self) -> None:
        """Stop everything and wait for it."""
        running: list[subprocess.Popen[bytes] | subprocess.Popen[str]] = [*self._extra, self._process]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
