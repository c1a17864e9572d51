"""The units under a booted systemd, in namespaces of this machine: the limits of a node's sandbox, and the end of one
that hangs. Mounts by their unit, by a line of fstab and by an automount.

Nothing is left behind: files are in a layer of memory above this machine's.
"""

import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import ENVIRON, HOME, ROOT
from tests.support.polling import poll

pytestmark = [
    pytest.mark.slow, pytest.mark.long,
    pytest.mark.capability("root", "netns", "tmpfs", "command:systemctl", "command:systemd-sysusers"),
]  # fmt: skip

NODES = ("chelonia@core", "chelonia@shepherd")
GUARD = "[c]onnection_guard"
LOUD = re.compile(r".*level=(?:WARNING|ERROR|CRITICAL).*|Traceback.*")
BOOT = r"""
set -e
echo $$ > {group}/cgroup.procs
exec unshare --cgroup --fork --pid --kill-child=KILL sh -euc '
mount -t tmpfs tmpfs {at}
mkdir {at}/upper {at}/work {at}/root
mount -t overlay overlay -o lowerdir=/,upperdir={at}/upper,workdir={at}/work {at}/root
cd {at}/root
mkdir -p opt/python opt/source opt/site old
mount --bind {python} opt/python
mount --bind {source} opt/source
mount --bind {site} opt/site
for each in proc sysfs:sys cgroup2:sys/fs/cgroup tmpfs:run tmpfs:tmp tmpfs:dev; do
    mount -t ${{each%%:*}} none ${{each#*:}}
done
for each in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 dev/${{each%%:*}} c 1 ${{each#*:}}; done
mknod -m 666 dev/tty c 5 0
mknod -m 666 dev/fuse c 10 229
mknod -m 600 dev/autofs c 10 235
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 none dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
echo /opt/python/lib > etc/ld.so.conf.d/python.conf
for each in cheloniad:chelonia.hosting.cheloniad chelonia:chelonia_clients.cli; do
    {{
        echo "#!/opt/python/bin/python{version} -P"
        echo "import sys"
        echo "sys.path[:0] = [\"/opt/source\", \"/opt/source/clients\", \"/opt/source/fuse\", \"/opt/site\"]"
        echo "from ${{each#*:}} import main"
        echo "sys.exit(main())"
    }} > usr/local/bin/${{each%%:*}}
    chmod 755 usr/local/bin/${{each%%:*}}
done
{{
    echo "#!/bin/sh"
    echo "export PYTHONPATH=/opt/source:/opt/source/clients:/opt/source/fuse:/opt/site"
    echo "exec /opt/python/bin/python{version} -P -m chelonia_clients.mount_helper \"\$@\""
}} > usr/sbin/mount.chelonia
chmod 755 usr/sbin/mount.chelonia
cp opt/source/systemd/chelonia*.service opt/source/systemd/chelonia.target etc/systemd/system/
cp opt/source/systemd/chelonia.sysusers.conf usr/lib/sysusers.d/chelonia.conf
rm -rf etc/systemd/system/*.wants etc/chelonia etc/grid-security var/lib/chelonia
for each in udevd udev-trigger modules-load networkd resolved timesyncd logind sysctl; do
    ln -sf /dev/null etc/systemd/system/systemd-$each.service
done
ln -sf /lib/systemd/system/basic.target etc/systemd/system/default.target
echo "127.0.0.1 localhost one.example.org" > etc/hosts
ip link set lo up
pivot_root . old
umount -l old
ldconfig
exec env -i container=test /lib/systemd/systemd --system
'
"""


class Booted:
    """A machine that has booted."""

    def __init__(self, directory: Path) -> None:
        mounted = subprocess.run(["findmnt", "-nt", "cgroup2", "-o", "TARGET"], capture_output=True, text=True)
        self._group = Path(mounted.stdout.split()[0]) / f"chelonia-{directory.name}"
        self._group.mkdir()
        script = BOOT.format(
            group=self._group, at=directory, python=sys.base_prefix, source=ROOT, site=sysconfig.get_path("purelib"),
            version=f"{sys.version_info.major}.{sys.version_info.minor}",
        )  # fmt: skip
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--uts", "--ipc", "--net", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
        )

    def run(self, *command: str, patient: bool = False) -> str:
        """Run a command there; returns its output. `patient`: again until it succeeds."""

        def attempt() -> tuple[int, str]:
            first = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            inside = ["nsenter", "-t", first[0], "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", *command]
            done = subprocess.run(
                inside, env=ENVIRON, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=60,
            )  # fmt: skip
            if patient and done.returncode:
                raise OSError(done.stdout)
            return done.returncode, done.stdout

        code, said = poll(attempt, 60, interval=0.3, tolerate=(OSError, IndexError)) if patient else attempt()
        assert code == 0, f"{' '.join(command)} ended with {code}: {said}"
        return said

    def shown(self, node: str, what: str) -> str:
        return self.run("systemctl", "show", "-P", what, node).strip()

    def close(self) -> None:
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            subprocess.run(["kill", "-KILL", child], check=False)
        self._process.kill()
        self._process.wait()

        def removed() -> bool:
            for each in sorted((path for path in self._group.rglob("*") if path.is_dir()), reverse=True):
                each.rmdir()
            self._group.rmdir()
            return True

        poll(removed, what="its processes are gone", tolerate=OSError)


KEYS = "/etc/chelonia/mounts"
BARTENDER = "https://one.example.org:60000/Bartender"
MOUNT_UNIT = f"""\
LN=/lab
DIRECTORY=/mnt/lab
OPTIONS=allow_other,cache=/var/cache/chelonia
ARC_BARTENDER_URL={BARTENDER}
X509_USER_CERT={KEYS}/cert.pem
X509_USER_KEY={KEYS}/key.pem
CHELONIA_REPLICAS=1
"""
FSTAB = (
    "/lab /mnt/lab chelonia _netdev,noauto,x-systemd.automount,allow_other,cache=/var/cache/fstab,"
    f"bartender={BARTENDER},cert={KEYS}/cert.pem,key={KEYS}/key.pem 0 0"
)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Booted]:
    booted = Booted(tmp_path)
    try:
        booted.run("test", "-e", "/run/systemd/private", patient=True)
        yield booted
    finally:
        booted.close()


def test_nodes_live_within_the_sandbox_of_their_unit(machine: Booted) -> None:
    machine.run("mkdir", "-p", HOME)
    machine.run("systemd-sysusers")
    machine.run("cheloniad", "init", "one.example.org")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", *NODES)
    machine.run("sh", "-c", "chelonia admin status | grep '1 alive'", patient=True)
    for node in NODES:
        state = machine.run("cat", f"/proc/{machine.shown(node, 'MainPID')}/status")
        held = dict(re.findall(r"^(CapBnd|CapEff|NoNewPrivs|Seccomp):\s*(\w+)$", state, re.MULTILINE))
        assert held == {"CapBnd": "0" * 16, "CapEff": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    machine.run("sh", "-c", "echo hello > /run/sent && chelonia put /run/sent /sent 1 && chelonia get /sent /run/got")
    assert machine.run("cat", "/run/got") == "hello\n"
    machine.run("chelonia", "admin", "ahash", "backup", "first")
    assert len(machine.run("pgrep", "-f", GUARD).split()) == 2, "their guards run in the sandbox too"

    before = machine.shown(NODES[0], "MainPID")
    machine.run("systemctl", "reload", *NODES)
    machine.run("sh", "-c", f"journalctl -u {NODES[0]} | grep tls-reloaded", patient=True)
    assert machine.shown(NODES[0], "MainPID") == before

    machine.run("kill", f"-{signal.SIGSTOP.name.removeprefix('SIG')}", before)
    poll(lambda: machine.shown(NODES[0], "MainPID") not in (before, "0"), 40, what="the one that hangs is replaced")
    machine.run("sh", "-c", "rm /run/got; chelonia get /sent /run/got", patient=True)
    assert machine.run("cat", "/run/got") == "hello\n"

    machine.run("systemctl", "stop", *NODES)
    assert [machine.shown(node, "Result") for node in NODES] == ["success"] * len(NODES)
    machine.run("sh", "-c", f"! pgrep -f '{GUARD}'")
    assert not LOUD.findall(said := machine.run("journalctl", "-u", "chelonia@*", "-o", "cat")), said


@pytest.mark.capability("fuse", "command:fusermount3")
def test_the_unit_and_the_fstab_line_of_a_mount(machine: Booted) -> None:
    def sh(*lines: str, patient: bool = False) -> str:
        return machine.run("sh", "-euc", "\n".join(lines), patient=patient)

    sh(f"mkdir -p {HOME} /mnt/lab", "systemd-sysusers", "cheloniad init one.example.org", "systemctl daemon-reload")
    machine.run("systemctl", "enable", "--now", *NODES)
    sh("chelonia admin status | grep '1 alive'", patient=True)
    sh(
        f"mkdir {KEYS}",
        *(f"install -m 0400 /etc/grid-security/host{each}.pem {KEYS}/{each}.pem" for each in ("cert", "key")),
    )
    sh("chelonia mkdir /lab", "chelonia policy /lab change /O=Grid/O=Chelonia/CN=host/one.example.org +read +addEntry")

    sh(
        f"printf '%s' '{MOUNT_UNIT}' > {KEYS}/lab.env",
        "systemctl start chelonia-mount@lab",
        "echo hello > /mnt/lab/sent",
    )
    assert sh("systemctl stop chelonia-mount@lab", "ls -A /mnt/lab", "chelonia cat /lab/sent") == "hello\n"
    assert sh("systemctl start chelonia-mount@lab", "cat /mnt/lab/sent") == "hello\n"
    machine.run("systemctl", "stop", "chelonia-mount@lab")
    assert machine.shown("chelonia-mount@lab", "Result") == "success"

    sh(f"echo '{FSTAB}' >> /etc/fstab", "mount -fav", "CHELONIA_REPLICAS=1 mount /mnt/lab", "mount -a")
    assert sh("findmnt -nt fuse.chelonia -o TARGET", "cat /mnt/lab/sent") == "/mnt/lab\nhello\n"
    assert sh("echo again > /mnt/lab/new", "umount /mnt/lab", "ls -A /mnt/lab") == ""
    sh("systemctl daemon-reload", "systemctl start mnt-lab.automount")
    assert sh("cat /mnt/lab/new", "findmnt -nt fuse.chelonia -o TARGET") == "again\n/mnt/lab\n"
    stop = "systemctl stop mnt-lab"
    assert sh(f"{stop}.automount", f"{stop}.mount", "findmnt -nt fuse.chelonia || true") == ""
    assert not LOUD.findall(said := machine.run("journalctl", "-u", "chelonia-mount@*", "-o", "cat")), said
