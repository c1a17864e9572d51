"""The measure for streams: OpenSSH's `scp` against a server of its own on loopback, with keys made for the occasion."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import NoPeer, free_port, until_listening

SSHD = "/usr/sbin/sshd"
PACKAGES = ("openssh-server", "openssh-client")
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host
PidFile {directory}/pid
AuthorizedKeysFile {directory}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True, slots=True)
class Sshd:
    """A running server."""

    port: int
    directory: Path
    pid: int

    def scp(self) -> list[str]:
        """The command, without source and target."""
        return [
            "scp", "-q", "-B", "-P", str(self.port), "-i", str(self.directory / "user"), "-F", "none",
            "-o", f"UserKnownHostsFile={self.directory / 'known'}", "-o", "StrictHostKeyChecking=yes",
            "-o", "IdentitiesOnly=yes",
        ]  # fmt: skip

    def remote(self, path: Path) -> str:
        """A path as the other side of a copy."""
        return f"127.0.0.1:{path}"

    def cpu_s(self) -> float:
        """CPU seconds of the sessions that have ended: each is a child of the server, which waits for it."""
        give_up = time.monotonic() + 5
        while _children(self.pid) and time.monotonic() < give_up:
            time.sleep(0.01)
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def sshd(scratch: Path) -> Iterator[Sshd]:
    """A server on a private port. Raises: NoPeer."""
    _ensure_installed()
    with tempfile.TemporaryDirectory(dir=scratch, prefix="sshd-") as name:
        directory = Path(name)
        for key in ("host", "user"):
            _checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / key)])
        port = free_port()
        (directory / "known").write_text(f"[127.0.0.1]:{port} {(directory / 'host.pub').read_text()}")
        (directory / "config").write_text(CONFIG.format(port=port, directory=directory))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(directory / "config")], stderr=log, stdout=log)
        try:
            until_listening(process, port, directory / "log")
            yield Sshd(port, directory, process.pid)
        finally:
            process.terminate()
            process.wait(10)


def _ensure_installed() -> None:
    if Path(SSHD).exists() and shutil.which("scp"):
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    if os.getuid() != 0 or not shutil.which("apt-get"):
        raise NoPeer(f"no OpenSSH server here, and no right to install it: run `{' '.join(command)}` as root")
    print("+", " ".join(command), flush=True)
    _checked(command)


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoPeer(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
