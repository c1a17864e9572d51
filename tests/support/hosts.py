"""Hosts as network namespaces of this machine on one switch, daemons without root, and a person who types at each
prompt.

The person types the commands of a document. Each host has /etc and /var/lib of its own, and begins without this
machine's files of grids and of Chelonia. Its changes below /etc, /usr/local/bin, /usr/lib/sysusers.d and /var/lib are
in its own mount namespace and end with it. systemd does not run there. For `systemctl enable --now` the harness starts
the command of the unit file under its account, and restarts it as the unit would. `cut` drops packets (nft); it closes
nothing.
"""

import asyncio
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import far_network
from tests.support.polling import poll

ROOT = Path(__file__).parents[2]
DOMAIN = "example.org"
OVERLAID = ("/etc", "/usr/local/bin", "/usr/lib/sysusers.d", "/var/lib")
SCRATCH = "/mnt"
"""Where a host keeps its changes, in memory of its own."""
COMMAND_S = 60.0
PATIENCE_S = 90.0
"""How long a person waits for daemons to start: on a busy machine."""
HOME = f"{SCRATCH}/home"
ENVIRON = {"HOME": HOME, "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
DEATH = ("setpriv", "--pdeathsig", "KILL")
UNPRIVILEGED = ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all")
TOOLS = ("ip", "nft", "unshare", "nsenter", "setpriv", "systemd-sysusers")
CAPABILITIES = ("root", "netns", "tmpfs", *(f"command:{tool}" for tool in TOOLS))
FILTER = (
    "add table inet cut { set from { type ipv4_addr; }; "
    "chain in { type filter hook input priority 0; ip saddr @from drop; }; }"
)
RESTART_S = 0.2


@dataclass
class Host:
    """One namespace and the daemons in it, by unit."""

    name: str
    address: str
    log: Path
    holder: subprocess.Popen[bytes]
    units: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)
    crashed: bool = False
    """Whether a daemon ended by a signal that no test sent."""

    @property
    def full_name(self) -> str:
        """Its name in DNS."""
        return f"{self.name}.{DOMAIN}"

    def path(self, inside: str) -> Path:
        """A file of the host, seen from outside."""
        return Path(f"/proc/{self.holder.pid}/root{inside}")

    def argv(self, *command: str) -> list[str]:
        """A command line that runs there."""
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-m", "env", "-C", str(ROOT), *command]

    def popen(self, *command: str, **how: object) -> subprocess.Popen[str]:
        """Start a command there, as root."""
        return subprocess.Popen(
            [*DEATH, *self.argv(*command)], env=ENVIRON, text=True, **{"stdin": subprocess.DEVNULL, **how}  # type: ignore[call-overload,no-any-return]
        )  # fmt: skip

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command there to its end; returns its output."""
        done = subprocess.run(
            self.argv(*command), env=ENVIRON, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S,
        )  # fmt: skip
        if check and done.returncode:
            raise CommandFailed(f"{self.name}# {shlex.join(command)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    # --- daemons ----------------------------------------------------------------------------------------------------

    def launch(self, unit: str) -> None:
        """Start the command in the unit file of `chelonia@NAME`."""
        says = self._unit(unit.partition("@")[2])
        for folder in says["StateDirectory"][-1].split():
            owner = ("-o", says["User"][-1], "-g", says["Group"][-1], "-m", "0750")
            self.run("install", "-d", *owner, f"/var/lib/{folder}")
        became = ["--reuid", says["User"][-1], "--regid", says["Group"][-1], *UNPRIVILEGED]
        before = [f"{line} || exit" for line in says["ExecStartPre"]]
        script = "\n".join((f"umask {says['UMask'][-1]}", *before, f"exec {says['ExecStart'][-1]}"))
        with self.log.open("ab") as log:
            self.units[unit] = subprocess.Popen(
                self.argv("setpriv", *became, "--pdeathsig", "KILL", "sh", "-c", script),
                env=ENVIRON, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.wanted.add(unit)

    def _unit(self, instance: str) -> dict[str, list[str]]:
        text = self.path("/etc/systemd/system/chelonia@.service").read_text().replace("%i", instance)
        found: dict[str, list[str]] = {}
        for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
            found.setdefault(key, []).append(value)
        return found

    def kill(self, unit: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; with one that ends, wait, and leave it ended."""
        process = self.units[unit]
        if how not in (signal.SIGSTOP, signal.SIGCONT):
            self.wanted.discard(unit)
        process.send_signal(how)
        if how not in (signal.SIGSTOP, signal.SIGCONT):
            process.wait(30)

    def restart_the_ended(self) -> None:
        """Restart daemons that ended by themselves, as systemd does."""
        for unit in sorted(self.wanted):
            code = self.units[unit].poll()
            if code is not None:
                errors = re.findall(r"^.*level=ERROR.*$", self.log.read_text("utf-8", "replace"), re.MULTILINE)
                self.ended.append(f"{unit}: {code} {errors[-1] if errors else ''}")
                self.crashed |= code < 0
                self.launch(unit)

    def close(self) -> None:
        self.wanted.clear()
        for process in (*self.units.values(), self.holder):
            process.kill()
            process.wait()


class CommandFailed(AssertionError):
    """A command from a document failed."""


class Hosts:
    """Some hosts on one switch, by name, or `far_ms` from each other. `close` it, whatever happens."""

    def __init__(self, directory: Path, names: Sequence[str], far_ms: int = 0) -> None:
        self._directory = directory
        self._switch = _hold()
        self._far: subprocess.Popen[str] | None = None
        self.hosts: dict[str, Host] = {}
        try:
            for number, name in enumerate(names, start=1):
                self._add(name, number)
            self._wire(far_ms)
            known = "".join(f"{host.address} {host.full_name}\n" for host in self.hosts.values())
            for host in self.hosts.values():
                host.path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{known}")
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def _add(self, name: str, number: int) -> None:
        host = self.hosts[name] = Host(name, f"10.77.0.{number}", self._directory / f"{name}.log", _hold())
        host.run("sh", "-euc", _OWN_FILES.format(keep=_kept(), overlaid=" ".join(OVERLAID), scratch=SCRATCH))

    def _wire(self, far_ms: int) -> None:
        mtu = ""
        if far_ms:
            ends = [f"{host.holder.pid}:{host.address}" for host in self.hosts.values()]
            argv = [*DEATH, sys.executable, "-m", "tests.support.far_network", str(far_ms), *ends]
            self._far = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            assert self._far.stdout is not None
            assert self._far.stdout.readline() == "ready\n"
            mtu = f"mtu {far_network.MTU}"
        else:
            _in_switch(self._switch, "ip link add br0 type bridge forward_delay 0 && ip link set br0 up")
            for port, host in enumerate(self.hosts.values(), start=1):
                made = f"ip link add s{port} type veth peer name eth0 netns {host.holder.pid}"
                _in_switch(self._switch, f"{made} && ip link set s{port} master br0 up")
        for host in self.hosts.values():
            up = f"ip link set lo up; ip addr add {host.address}/24 dev eth0; ip link set eth0 {mtu} up"
            host.run("sh", "-euc", up)
            host.run("nft", FILTER)

    # --- the network ------------------------------------------------------------------------------------------------

    def cut(self, deaf: Iterable[str], mute: Iterable[str]) -> None:
        """From now on drop everything from `mute` to `deaf`."""
        silenced = ", ".join(self.hosts[name].address for name in mute)
        for name in deaf:
            self.hosts[name].run("nft", f"add element inet cut from {{ {silenced} }}")

    def split(self, one: Iterable[str], other: Iterable[str]) -> None:
        """Drop everything between two groups of hosts."""
        one, other = tuple(one), tuple(other)
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        for host in self.hosts.values():
            host.run("nft", "flush set inet cut from")

    # --- life -------------------------------------------------------------------------------------------------------

    async def supervise(self) -> None:
        """Restart daemons that end by themselves, until cancelled."""
        while True:
            for host in self.hosts.values():
                host.restart_the_ended()
            await asyncio.sleep(RESTART_S)

    def logs(self) -> str:
        """The end of each host's logs."""
        return "\n".join(f"=== {host.name}\n{host.log.read_text('utf-8', 'replace')[-4000:]}"
                         for host in self.hosts.values() if host.log.exists())  # fmt: skip

    def close(self) -> None:
        """End all daemons and namespaces at once."""
        for host in self.hosts.values():
            host.close()
        self._switch.kill()
        self._switch.wait()
        if self._far is not None:
            self._far.kill()
            self._far.communicate()


# --- a person who types ---------------------------------------------------------------------------------------------


def prompts(document: Path) -> list[tuple[str, str]]:
    """Return the commands in a document: (prompt, command), in order."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    return [match for block in blocks for match in re.findall(r"^(\w+)# (.+)$", block, re.MULTILINE)]


class Typist:
    """Types a document's commands on the hosts, answers their questions, and repeats those that come too early."""

    def __init__(self, hosts: Hosts, names: Sequence[str]) -> None:
        self._hosts, self._names = hosts, names
        self._admitting: subprocess.Popen[str] | None = None
        self._told = ""
        self.said: list[str] = []

    def type(self, where: str, command: str) -> None:
        """Type one line at one prompt. Raises: CommandFailed."""
        for name in self._names if where == "all" else (where,):
            self._type(self._hosts[name], command)

    def _type(self, host: Host, command: str) -> None:
        words = shlex.split(command)
        match words[:2]:
            case ["systemctl", "enable"]:
                for unit in words[3:]:
                    host.launch(unit)
            case ["systemctl", _]:
                pass
            case ["cheloniad", "admit"]:
                self._admit(host, words)
            case ["cheloniad", "join"]:
                self._join(host, command)
            case ["chelonia", _]:
                self._patiently(host, command)
            case _:
                self.said.append(host.run("sh", "-euc", command))

    def _patiently(self, host: Host, command: str) -> None:
        """Wait until started daemons are there, and repeat a command until its output is the page's, as a person
        would."""
        seen = {"ahash status": ("follower", len(self._names) - 1), "node list": (" alive ", len(self._names))}
        word, count = next((seen[each] for each in seen if each in command), ("", 0))

        def run() -> bool:
            for each in self._hosts.hosts.values():
                each.restart_the_ended()
            said = host.run("sh", "-euc", command)
            if said.count(word) < count:
                raise CommandFailed(said)
            self.said.append(said)
            return True

        poll(run, PATIENCE_S, interval=0.3, tolerate=CommandFailed, what=command)

    def _admit(self, host: Host, words: list[str]) -> None:
        def begin() -> bool:
            process = host.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert process.stdout is not None
            told = ""
            while "Waiting" not in told and (line := process.stdout.readline()):
                told += line
            if process.poll() is not None or "Waiting" not in told:
                process.kill()
                process.communicate()
                raise CommandFailed(told)
            self._admitting, self._told = process, told
            return True

        poll(begin, PATIENCE_S, interval=0.3, tolerate=CommandFailed, what=shlex.join(words))

    def _join(self, host: Host, command: str) -> None:
        """Carry the token over, compare the fingerprints, say yes."""
        admitting = self._admitting
        assert admitting is not None
        assert admitting.stdin is not None
        assert admitting.stdout is not None
        (printed,) = re.findall(r"cheloniad join .*", self._told)
        token = printed.rpartition("--token ")[2]
        typed = command.replace("TOKEN", token)
        assert typed == printed, f"the document says {command!r}, the command {printed!r}"
        joining = host.popen(*shlex.split(typed), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert joining.stdout is not None
        shown = joining.stdout.readline()
        while "fingerprint" not in (asked := admitting.stdout.readline()):
            assert asked, f"admit ended; join says {shown}"
        assert asked.split()[-1] == shown.split()[-1], "the same fingerprint on both"
        admitting.stdin.write("y\n")
        admitting.stdin.flush()
        for process, name in ((joining, "join"), (admitting, "admit")):
            said, _ = process.communicate(timeout=COMMAND_S)
            self.said.append(said)
            assert process.returncode == 0, f"{name} ended with {process.returncode}: {shown}{said}"
        self._admitting = None


# --- namespaces -----------------------------------------------------------------------------------------------------

_OWN_FILES = """
mount --make-rprivate /
umount -a -l -t fuse.chelonia
mount -t tmpfs -o mode=0755 tmpfs {scratch}
mkdir {scratch}/home {scratch}/keep
{keep}
for folder in {overlaid}; do
    over={scratch}/over$folder
    mkdir -p $over/upper $over/work
    mount -t overlay overlay -o lowerdir=$folder,upperdir=$over/upper,workdir=$over/work $folder
done
rm -rf /etc/hosts /etc/chelonia /etc/grid-security /var/lib/chelonia
"""


def _kept() -> str:
    """Commands that let an account without rights read the interpreter and this checkout, in one namespace. They cover
    closed parents, and mount both below again."""
    needed = [Path(sys.base_prefix).resolve(), ROOT.resolve()]
    closed = {each for path in needed if (each := _closed(path)) is not None}
    lines = []
    for number, path in enumerate(needed):
        if _closed(path) is not None:
            lines += [f"mkdir {SCRATCH}/keep/{number}", f"mount --rbind {path} {SCRATCH}/keep/{number}"]
    lines += [f"mount -t tmpfs -o mode=0755 tmpfs {folder}" for folder in sorted(closed)]
    for number, path in enumerate(needed):
        if _closed(path) is not None:
            lines += [f"mkdir -p {path}", f"mount --move {SCRATCH}/keep/{number} {path}"]
    return "\n".join(lines)


def _closed(path: Path) -> Path | None:
    """The first directory on the way to `path` that others may not pass."""
    return next((each for each in reversed([path, *path.parents]) if not each.stat().st_mode & stat.S_IXOTH), None)


def _hold() -> subprocess.Popen[bytes]:
    """A process in namespaces of its own, which live as long as it does."""
    holder = subprocess.Popen([*DEATH, "unshare", "--net", "--mount", "sleep", "infinity"], stdin=subprocess.DEVNULL)
    comm = Path(f"/proc/{holder.pid}/comm")
    poll(lambda: comm.read_text().strip() == "sleep", what="a namespace")
    return holder


def _in_switch(switch: subprocess.Popen[bytes], script: str) -> None:
    subprocess.run(["nsenter", "-t", str(switch.pid), "-n", "sh", "-euc", script], check=True, timeout=COMMAND_S)


def copy_out(host: Host, inside: str, outside: Path) -> Path:
    """Copy a file out of a host."""
    shutil.copyfile(host.path(inside), outside)
    outside.chmod(0o400)
    return outside
