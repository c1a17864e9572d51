"""Files installed beside the code: the manual page has every verb, the wheel all that an operator needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from chelonia.hosting.manual import page as daemons_page
from chelonia_clients.manual import page
from chelonia_clients.verbs.table import VERBS

ROOT = Path(__file__).resolve().parents[2]


def test_the_manual_page_has_every_verb_and_reads_without_a_warning() -> None:
    text = page("1.0")
    for verb in VERBS:
        assert f".SS {verb.name}\n" in text
        for flag in verb.flags:
            assert flag.name.replace("-", r"\-") in text
    reads_well(text)


def test_the_daemons_manual_page_is_that_of_its_command_line() -> None:
    kept = (ROOT / "docs" / "man" / "cheloniad.8").read_text()
    assert kept == daemons_page(), "run: .venv/bin/python -m chelonia.hosting.manual docs/man/cheloniad.8"
    reads_well(kept)


def reads_well(text: str) -> None:
    if shutil.which("groff"):
        ran = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=text, text=True, capture_output=True, check=True)
        assert ran.stderr == ""


def test_the_command_needs_nothing_that_only_a_node_installs() -> None:
    needed = [Requirement(text) for text in metadata.requires("chelonia") or ()]
    nodes = {
        canonicalize_name(each.name) for each in needed if each.marker and each.marker.evaluate({"extra": "server"})
    }
    assert "berkeleydb" in nodes
    hidden = [name for name, of in metadata.packages_distributions().items() if {*map(canonicalize_name, of)} & nodes]
    load = f"import importlib, pkgutil, sys; sys.modules.update(dict.fromkeys({hidden!r})); import {{0}}"
    load += "; [importlib.import_module(each.name) for each in pkgutil.walk_packages({0}.__path__, '{0}.')]"
    for package in ("chelonia_clients", "chelonia_fuse"):
        ran = subprocess.run([sys.executable, "-c", load.format(package)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.long
def test_the_wheel_has_what_users_and_operators_need(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)
    [wheel] = tmp_path.glob("chelonia-*.whl")
    names = {name.partition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    for wanted in ("conf/librarian.toml", "systemd/chelonia@.service", "prometheus/alerts.yml", "completion/_chelonia"):
        assert f"share/chelonia/{wanted}" in names
    shipped = [*(ROOT / "chelonia").rglob("*.py"), *(ROOT / "clients").rglob("*.py"), *(ROOT / "conf").rglob("*.yml")]
    named = {page for path in shipped for page in re.findall(r"docs/operate/[a-z-]+\.md", path.read_text())}
    assert len(named) > 5
    assert {f"share/chelonia/{page}" for page in named} <= names
    assert {"share/man/man1/chelonia.1", "share/man/man8/cheloniad.8"} <= names


def shebang(script: Path) -> str:
    return script.read_text().splitlines()[0].removeprefix("#!")


def serves_and_mounts(programs: Path, place: Path) -> None:
    cluster, directory = place / "cluster", place / "mounted"
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(place),
        "CHELONIA_CLUSTER": str(cluster / "cluster.json"),
    }
    dev = [str(programs / "cheloniad"), "dev", "--dir", str(cluster), "--replicas", "1"]
    with subprocess.Popen(dev, env=env, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline().startswith("ready")

            def client(*told: str) -> str:
                command = [str(programs / "chelonia"), *told]
                return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

            client("put", str(programs / "chelonia"), "/script")
            assert "script" in client("ls", "/")
            if Path("/dev/fuse").exists() and shutil.which("fusermount3"):
                directory.mkdir()
                client("mount", "--background", "/", str(directory))
                assert (directory / "script").read_bytes() == (programs / "chelonia").read_bytes()
                client("umount", str(directory))
        finally:
            daemon.terminate()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_debian_package_installs_and_its_commands_run(tmp_path: Path) -> None:
    """It goes into a directory of its own, as root or not, and changes nothing of this machine. It uses the system's
    Python, which has no library of ours, where that has the package's version."""
    subprocess.run([str(ROOT / "scripts" / "build-deb"), sys.executable], check=True)
    [package] = (ROOT / "build").glob("chelonia_*.deb")
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    told = subprocess.run(["dpkg-deb", "--field", str(package), "Version"], capture_output=True, text=True, check=True)
    asked = ["git", "log", "-1", "--date=format-local:%Y%m%d%H%M%S", "--format=git%cd.g%h"]
    commit = subprocess.run(asked, cwd=ROOT, env=os.environ | {"TZ": "UTC"}, capture_output=True, text=True, check=True)
    assert told.stdout.strip().endswith(f"+{commit.stdout.strip()}"), "apt installs that of a later commit over it"
    makes = subprocess.run(["dpkg-deb", "--info", str(package), "postinst"], capture_output=True, text=True, check=True)
    assert "systemd-sysusers chelonia.conf" in makes.stdout, "the account of the nodes"
    for name, does in (("prerm", "systemctl stop 'chelonia@*.service'"), ("postrm", "stays; remove it if")):
        shown = ["dpkg-deb", "--info", str(package), name]
        assert does in subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    for command in ("chelonia", "cheloniad"):
        script = [sys.executable, "-I", str(root / "usr" / "bin" / command), "--version"]
        named = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        assert named.startswith(command)
        assert told.stdout.strip() in named, "nodes report it in `admin status`"
    if Path(shebang(root / "usr/bin/chelonia")).exists():
        serves_and_mounts(root / "usr/bin", tmp_path)
    mounts = [sys.executable, "-I", str(root / "usr/bin/chelonia"), "mount", "--status", "--json"]
    assert subprocess.run(mounts, capture_output=True, text=True, check=False).returncode == 0, "the mount is in it"
    conf = root / "usr" / "share" / "doc" / "chelonia" / "conf" / "shepherd.toml"
    shown = [sys.executable, "-I", str(root / "usr" / "bin" / "cheloniad"), "print-config", "--config", str(conf)]
    assert "[shepherd]" in subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    for wanted in (
        "lib/systemd/system/chelonia@.service",
        "share/man/man1/chelonia.1.gz",
        "share/man/man8/cheloniad.8.gz",
        "share/doc/chelonia/copyright",
        "sbin/mount.chelonia",
    ):
        assert (root / "usr" / wanted).is_file()
