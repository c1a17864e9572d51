"""Foreign clients at the plain door of a real cluster. `make conform` runs them and writes the table `docs/conform.md`.

Each client is a list of steps. A step passes when its commands end well and their results are there. The table names
clients that are not installed, and missing programs of single steps. Third-party copies go both ways, with a second
cluster and with Debian's XRootD, nginx and Apache (`far_ends`). They use a token, or a proxy that gfal2 delegates. It
runs as root, because those servers run as other users.

From apt: apache2-bin cadaver chromium chromium-driver davfs2 davix davix-tests gfal2-plugin-file gfal2-plugin-http
gfal2-util-scripts git-annex libnss3-tools litmus nginx-core nordugrid-arc-client nordugrid-arc-plugins-needed
python3-gfal2 rclone wget xrootd-server.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from pathlib import Path
from urllib.parse import quote

from tests.cluster.harness import Cluster
from tests.conform import browser
from tests.conform.far_ends import far_ends
from tests.support.polling import poll

PYTHON = os.environ.get("CHELONIA_CONFORM_PYTHON", "python3")
"""A Python with `webdav4`, `fsspec`, `aiohttp` and `uproot`; they are not the project's."""
TABLE = Path(__file__).parents[2] / "docs" / "conform.md"
SIZE = 3_000_000
WRITTEN_S = 1_600_000_000
"""When the file was written, as rclone keeps it."""
UPROOT_REQUESTS_MAX = 6
"""For 60 baskets; it takes 4."""
HEAD = f"""\
# Clients at the plain door

Unmodified clients against a real cluster, with a proxy certificate; uproot and git-annex show a token.
`make conform` writes this table.
A step counts when the client says that it went well and the bytes or names are what they should be.
The steps of litmus are its suites, of 103 tests in all; those of Chromium are of `make browser`.
uproot reads a file of 60 baskets by at most {UPROOT_REQUESTS_MAX} requests.
rclone keeps the file's time (`vendor = owncloud`).

| client | version | steps passed | what failed |
|---|---|---|---|
"""


@dataclass
class Bench:
    """A cluster with a second one beside it, a file of `SIZE` bytes, and the credentials of clients."""

    cluster: Cluster
    other: Cluster
    scratch: Path
    far: dict[str, tuple[str, Path]] = field(default_factory=dict)
    data: bytes = field(default_factory=lambda: os.urandom(SIZE))
    failed: bool = False

    def __post_init__(self) -> None:
        self.source.write_bytes(self.data)
        self.got = self.scratch / "got"
        (self.scratch / ".arc").mkdir()

    @property
    def source(self) -> Path:
        return self.scratch / "source"

    @property
    def https(self) -> str:
        return self.cluster.files_url

    @property
    def davs(self) -> str:
        return self.https.replace("https:", "davs:")

    @property
    def proxy(self) -> str:
        return str(self.cluster.info["user_proxy"])

    def token(self, path: str, *more: str) -> str:
        """A token that allows reading below `path`, and `more`; "" when there is none."""
        headers = {"Content-Type": "application/macaroon-request"}
        body = f'{{"caveats": ["activity:{",".join(("DOWNLOAD", "LIST", *more))}"]}}'.encode()
        asked = self.cluster.request("POST", f"{self.https}{path}", body=body, headers=headers)
        found = re.search(r'"macaroon": ?"([^"]+)"', asked.text)
        return found[1] if found else ""

    def run(self, *argv: str, stdin: str = "", home: Path | None = None) -> tuple[bool, str]:
        """Whether a command ended well, and all its output. Raises: NotInstalled."""
        if not shutil.which(argv[0]):
            raise NotInstalled(argv[0])
        done = subprocess.run(
            argv, env=self.environment(home), cwd=self.scratch, input=stdin.encode(), timeout=180, capture_output=True,
            check=False,
        )  # fmt: skip
        return done.returncode == 0, (done.stdout + done.stderr).decode("utf-8", "replace")

    def environment(self, home: Path | None = None) -> dict[str, str]:
        """The environment of clients."""
        return {
            **os.environ, "HOME": str(home or self.scratch), "X509_CERT_DIR": str(self.cluster.ca_dir),
            "X509_USER_PROXY": self.proxy, "GFAL_PYTHONBIN": "/usr/bin/python3",
            "SSL_CERT_FILE": str(ca_file(self)),
        }  # fmt: skip

    def holds(self, path: str) -> bool:
        """Whether a file of the cluster has the bytes."""
        return self.cluster.request("GET", f"{self.https}{path}?proxy").body == self.data

    def gone(self, path: str) -> bool:
        return self.cluster.request("HEAD", f"{self.https}{path}").status == 404

    def fetched(self) -> bool:
        """Whether the file that a client has just written has the bytes; then remove it."""
        good = self.got.exists() and self.got.read_bytes() == self.data
        self.got.unlink(missing_ok=True)
        return good


class NotInstalled(Exception):
    """The program of a step is not installed."""


Step = tuple[str, Callable[[], bool]]
Client = Callable[[Bench], list[Step]]


def told(
    bench: Bench,
    *argv: str,
    check: Callable[[str], bool] = lambda said: True,
    stdin: str = "",
    home: Path | None = None,
) -> bool:
    good, said = bench.run(*argv, stdin=stdin, home=home)
    if not (good and check(said)):
        print(f"    {' '.join(argv)[:200]}\n    {said.strip()[-600:]}", file=sys.stderr)
    return good and check(said)


def curl(bench: Bench) -> list[Step]:
    base = ("curl", "-sSf", "--capath", str(bench.cluster.ca_dir), "--cert", bench.proxy, "--key", bench.proxy)
    url, out = f"{bench.https}/curl", ("-o", str(bench.got))
    return [
        ("put", lambda: told(bench, *base, "-T", str(bench.source), url) and bench.holds("/curl")),
        ("get", lambda: told(bench, *base, *out, url) and bench.fetched()),
        ("get by redirect", lambda: told(bench, *base, "-L", *out, f"{url}?redirect") and bench.fetched()),
        (
            "put by redirect",
            lambda: told(bench, *base, "-L", "-T", str(bench.source), f"{url}2?redirect") and bench.holds("/curl2"),
        ),
        ("range", lambda: told(bench, *base, "-r", "5-9", *out, url) and bench.got.read_bytes() == bench.data[5:10]),
        ("list", lambda: told(bench, *base, f"{bench.https}/", check=lambda said: "curl2" in said)),
        ("delete", lambda: told(bench, *base, "-X", "DELETE", url) and bench.gone("/curl")),
    ]


def wget(bench: Bench) -> list[Step]:
    base = (
        "wget",
        "-q",
        f"--ca-directory={bench.cluster.ca_dir}",
        f"--certificate={bench.proxy}",
        f"--private-key={bench.proxy}",
    )
    url = f"{bench.https}/curl2"
    return [
        ("get", lambda: told(bench, *base, "-O", str(bench.got), url) and bench.fetched()),
        (
            "go on with a part",
            lambda: part(bench) and told(bench, *base, "-c", "-O", str(bench.got), url) and bench.fetched(),
        ),
    ]


def part(bench: Bench) -> bool:
    bench.got.write_bytes(bench.data[:1_000_000])
    return True


def davix(bench: Bench) -> list[Step]:
    who = ("--capath", str(bench.cluster.ca_dir), "--cert", bench.proxy)
    url = f"{bench.https}/davix"

    def tester(*commands: str) -> bool:
        own = ("davix-tester", "--auth", "proxy", "--cert", bench.proxy, "--uri", f"{url}/tester", "--command")
        return all(told(bench, *own, each, check=lambda said: "FAIL" not in said) for each in commands)

    return [
        ("mkdir", lambda: told(bench, "davix-mkdir", *who, url)),
        ("put", lambda: told(bench, "davix-put", *who, str(bench.source), f"{url}/f") and bench.holds("/davix/f")),
        ("get", lambda: told(bench, "davix-get", *who, f"{url}/f", str(bench.got)) and bench.fetched()),
        ("ls", lambda: told(bench, "davix-ls", "-l", *who, url, check=lambda said: str(SIZE) in said)),
        ("mv", lambda: bench.run("davix-mv", *who, f"{url}/f", f"{url}/g") != () and bench.gone("/davix/f")),
        ("rm", lambda: told(bench, "davix-rm", *who, f"{url}/g") and bench.gone("/davix/g")),
        ("davix-tester", lambda: tester("makeCollection", "populate 5", "listing 5", "statdir", "putMoveDelete")),
    ]


def gfal(bench: Bench) -> list[Step]:
    url, local, adler = f"{bench.davs}/gfal", f"file://{bench.source}", f"{zlib.adler32(bench.data):08x}"
    return [
        ("mkdir", lambda: told(bench, "gfal-mkdir", url)),
        ("copy up", lambda: told(bench, "gfal-copy", local, f"{url}/f") and bench.holds("/gfal/f")),
        ("copy down", lambda: told(bench, "gfal-copy", f"{url}/f", f"file://{bench.got}") and bench.fetched()),
        (
            "copy as third party",
            lambda: told(bench, "gfal-copy", "--copy-mode", "pull", f"{url}/f", f"{url}/g") and bench.holds("/gfal/g"),
        ),
        ("ls", lambda: told(bench, "gfal-ls", "-l", url, check=lambda said: str(SIZE) in said)),
        ("stat", lambda: told(bench, "gfal-stat", f"{url}/f", check=lambda said: str(SIZE) in said)),
        ("sum", lambda: told(bench, "gfal-sum", f"{url}/f", "ADLER32", check=lambda said: adler in said)),
        ("rename", lambda: told(bench, "gfal-rename", f"{url}/g", f"{url}/h") and bench.gone("/gfal/g")),
        ("rm", lambda: told(bench, "gfal-rm", f"{url}/h") and bench.gone("/gfal/h")),
    ]


def arc(bench: Bench) -> list[Step]:
    url = f"{bench.davs}/arc"
    return [
        (
            "cp up into a missing collection",
            lambda: told(bench, "arccp", str(bench.source), f"{url}/f") and bench.holds("/arc/f"),
        ),
        ("cp down", lambda: told(bench, "arccp", f"{url}/f", str(bench.got)) and bench.fetched()),
        ("ls", lambda: told(bench, "arcls", "-l", f"{url}/", check=lambda said: str(SIZE) in said)),
        ("mkdir", lambda: told(bench, "arcmkdir", f"{bench.https}/arc/d")),
        (
            "rename",
            lambda: told(bench, "arcrename", f"{bench.https}/arc/f", f"{bench.https}/arc/g") and bench.gone("/arc/f"),
        ),
        ("rm", lambda: told(bench, "arcrm", f"{url}/g") and bench.gone("/arc/g")),
    ]


def rclone(bench: Bench) -> list[Step]:
    who = (
        "--client-cert",
        bench.proxy,
        "--client-key",
        bench.proxy,
        "--ca-cert",
        str(ca_file(bench)),
        "--webdav-url",
        bench.https,
        "--webdav-vendor",
        "owncloud",
        "--retries",
        "1",
    )
    os.utime(bench.source, (WRITTEN_S, WRITTEN_S))

    def dated(path: str) -> bool:
        told = bench.cluster.request("HEAD", f"{bench.https}{path}").headers.get("last-modified", "")
        return told == formatdate(WRITTEN_S, usegmt=True)

    return [
        (
            "copyto up",
            lambda: (
                told(bench, "rclone", "copyto", *who, str(bench.source), ":webdav:rclone/f")
                and bench.holds("/rclone/f")
                and dated("/rclone/f")
            ),
        ),
        (
            "copyto down",
            lambda: (
                told(bench, "rclone", "copyto", *who, ":webdav:rclone/f", str(bench.got))
                and bench.got.stat().st_mtime == WRITTEN_S
                and bench.fetched()
            ),
        ),
        ("lsl", lambda: told(bench, "rclone", "lsl", *who, ":webdav:rclone", check=lambda said: str(SIZE) in said)),
        (
            "moveto",
            lambda: (
                told(bench, "rclone", "moveto", *who, ":webdav:rclone/f", ":webdav:rclone/g")
                and bench.gone("/rclone/f")
            ),
        ),
        ("purge", lambda: told(bench, "rclone", "purge", *who, ":webdav:rclone") and bench.gone("/rclone")),
    ]


def litmus(bench: Bench) -> list[Step]:
    def one(suite: str, count: int) -> bool:
        def check(said: str) -> bool:
            found = re.search(r"of (\d+) tests run: (\d+) passed", said)
            return bool(found and int(found[1]) == int(found[2]) == count) and "WARNING" not in said

        return told(bench, "env", f"TESTS={suite}", "litmus", "-c", str(pkcs12(bench)), f"{bench.https}/", check=check)

    names = {"basic": 16, "copymove": 13, "props": 30, "locks": 41, "http": 3}
    return [(f"{name} ({count})", partial(one, name, count)) for name, count in names.items()]


def davfs2(bench: Bench) -> list[Step]:
    at, conf = bench.scratch / "davfs", bench.scratch / "davfs2.conf"
    at.mkdir()
    (bench.scratch / "davfs-cache").mkdir()
    shutil.chown(bench.scratch / "davfs-cache", "davfs2", "davfs2")
    (bench.scratch / "davfs-cache").chmod(0o777)
    conf.write_text(
        f"trust_ca_cert {ca_file(bench)}\nclientcert {pkcs12(bench)}\nask_auth 0\ndelay_upload 0\n"
        "buf_size 64\n"  # KiB; Linux asks for more of a directory at once than the 16 that davfs2 takes by itself
        f"cache_dir {bench.scratch}/davfs-cache\n"
    )
    file = at / "davfs2" / "f"

    def mounted() -> bool:
        return told(bench, "mount.davfs", "-o", f"conf={conf}", f"{bench.https}/", str(at))

    def unmounted() -> bool:
        return told(bench, "umount", str(at))

    def written() -> bool:
        assert os.path.ismount(at)
        file.parent.mkdir()
        file.write_bytes(bench.data)
        poll(lambda: bench.holds("/davfs2/f"), 60, what="davfs2 uploads")
        return True

    def renamed() -> bool:
        file.rename(at / "davfs2" / "g")
        return bench.gone("/davfs2/f") and bench.holds("/davfs2/g")

    def removed() -> bool:
        shutil.rmtree(at / "davfs2")
        return bench.gone("/davfs2/")

    return [
        ("mount", mounted),
        ("mkdir and write", written),
        ("ls", lambda: [each.name for each in file.parent.iterdir()] == ["f"] and file.stat().st_size == SIZE),
        ("read in a new mount", lambda: unmounted() and mounted() and file.read_bytes() == bench.data),
        ("rename", renamed),
        ("rm -r", removed),
        ("umount", unmounted),
    ]  # fmt: skip


def cadaver(bench: Bench) -> list[Step]:
    """One session: cadaver asks about the certificate, and shows its own, only on a terminal."""
    rc = bench.scratch / "cadaverrc"
    rc.write_text(f"set client-cert {pkcs12(bench)}\n")
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "dumb"
        os.execlp("cadaver", "cadaver", "-r", str(rc))

    def heard() -> str:
        said = ""
        while not re.search(r"(dav:\S+> |\(y/n\) )\W*$", said):
            assert select.select([terminal], [], [], 60)[0], f"cadaver said {said!r}"
            said += os.read(terminal, 65536).decode("utf-8", "replace")
        return said

    def asked(line: str) -> str:
        os.write(terminal, f"{line}\n".encode())
        return heard()

    def good(*lines: str) -> bool:
        return all("succeeded" in asked(line) for line in lines)

    def ended() -> bool:
        os.write(terminal, b"quit\n")
        return os.waitpid(process, 0)[1] == 0

    heard()
    return [
        ("open", lambda: "(y/n)" in asked(f"open {bench.https}/") and "dav:/>" in asked("y")),
        ("mkcol and cd", lambda: good("mkcol cadaver") and "dav:/cadaver/>" in asked("cd cadaver")),
        ("put", lambda: good(f"put {bench.source} f") and bench.holds("/cadaver/f")),
        ("ls", lambda: str(SIZE) in asked("ls")),
        ("get", lambda: good(f"get f {bench.got}") and bench.fetched()),
        ("copy", lambda: good("copy f g") and bench.holds("/cadaver/g")),
        ("move", lambda: good("move g h") and bench.gone("/cadaver/g") and bench.holds("/cadaver/h")),
        ("propset, propget", lambda: good("propset f colour green") and "is: green" in asked("propget f colour")),
        ("lock, showlocks, unlock", lambda: good("lock f") and "exclusive" in asked("showlocks") and good("unlock f")),
        ("delete", lambda: good("delete f", "delete h") and bench.gone("/cadaver/f")),
        ("rmcol", lambda: bool(asked("cd ..")) and good("rmcol cadaver") and bench.gone("/cadaver/")),
        ("quit", ended),
    ]


def annex(bench: Bench) -> list[Step]:
    """By a token as its password, as git-annex shows no certificate."""
    bench.cluster.request("MKCOL", f"{bench.https}/annex")
    password = bench.token("/annex", "UPLOAD", "DELETE", "UPDATE_METADATA")
    repository, name = bench.scratch / "annex", "f 1%+ü"
    repository.mkdir()

    def did(*argv: str) -> bool:
        who = (f"WEBDAV_PASSWORD={password}", "WEBDAV_USERNAME=x", f"SYSTEM_CERTIFICATE_PATH={ca_file(bench)}")
        asked = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "annex.security.allowed-ip-addresses=all")
        return told(bench, "env", *who, "git", "-C", str(repository), *asked, *argv)

    def made(remote: str, *settings: str) -> bool:
        return did("annex", "initremote", remote, "type=webdav", f"url={bench.https}/annex/{remote}", *settings)

    def added() -> bool:
        shutil.copy(bench.source, repository / name)
        return did("annex", "add", ".") and did("commit", "-qm", "x")

    return [
        (
            "initremote",
            lambda: did("init", "-q") and did("annex", "init", "x") and made("parts", "encryption=none", "chunk=1MiB"),
        ),
        ("copy", lambda: added() and did("annex", "copy", "--to=parts", ".")),
        ("fsck", lambda: did("annex", "fsck", "--from=parts", ".")),
        ("drop and get", lambda: did("annex", "drop", ".") and did("annex", "get", ".")),
        (
            "export",
            lambda: (
                made("tree", "encryption=none", "exporttree=yes")
                and did("annex", "export", "HEAD", "--to=tree")
                and bench.holds(f"/annex/tree/{quote(name)}")
            ),
        ),
    ]


WEBDAV4 = """\
import ssl, sys
from webdav4.fsspec import WebdavFileSystem
url, proxy, source = sys.argv[1:4]
context = ssl.create_default_context()
context.load_cert_chain(proxy)
fs = WebdavFileSystem(url, verify=context)
data = open(source, "rb").read()
"""


def webdav4(bench: Bench) -> list[Step]:
    def did(code: str) -> bool:
        return told(bench, PYTHON, "-c", WEBDAV4 + code, bench.https, bench.proxy, str(bench.source))

    return [
        ("mkdir", lambda: did("fs.mkdir('webdav4')")),
        ("put", lambda: did("fs.put_file(source, 'webdav4/f')") and bench.holds("/webdav4/f")),
        ("ls", lambda: did("assert [each['size'] for each in fs.ls('webdav4')] == [len(data)]")),
        ("cat", lambda: did("assert fs.cat('webdav4/f') == data")),
        ("open and seek", lambda: did("f = fs.open('webdav4/f'); f.seek(2000); assert f.read(9) == data[2000:2009]")),
        ("write", lambda: did("with fs.open('webdav4/g', 'wb') as f: f.write(data)") and bench.holds("/webdav4/g")),
        ("mv", lambda: did("fs.mv('webdav4/g', 'webdav4/h')") and bench.holds("/webdav4/h")),
        ("rm", lambda: did("fs.rm('webdav4', recursive=True)") and bench.gone("/webdav4/")),
    ]  # fmt: skip


UPROOT = """\
import sys, numpy, uproot
path = sys.argv[1]
x, y = numpy.arange(300000.0), numpy.arange(300000) * 3
def same(tree):
    got = tree.arrays(["x", "y"], library="np")
    assert (got["x"] == x).all() and (got["y"] == y).all()
"""
UPROOT_WRITES = (
    UPROOT
    + """\
with uproot.recreate(path) as f:
    f.mktree("t", {"x": "f8", "y": "i8"})
    for n in range(0, 300000, 10000):
        f["t"].extend({"x": x[n:n+10000], "y": y[n:n+10000]})
"""
)
UPROOT_READS = (
    UPROOT
    + """\
with uproot.open({path: "t"}) as t:
    same(t)
"""
)
MULTI_RANGE = (
    "with uproot.open({path: 't'}, handler=uproot.HTTPSource) as t:\n same(t)\n source = t.file.source\n"
    " assert source.fallback is None, 'multi-range was not taken'\n"
    " print(source.num_requests, 'requests', source.num_requested_chunks, 'chunks')\n"
    f" assert source.num_requests <= {UPROOT_REQUESTS_MAX} < source.num_requested_chunks"
)


def uproot(bench: Bench) -> list[Step]:
    def did(code: str, where: str) -> bool:
        return told(bench, PYTHON, "-c", UPROOT + code, where)

    local = bench.scratch / "tree.root"
    wrote = told(bench, PYTHON, "-c", UPROOT_WRITES, str(local))
    if wrote:
        bench.cluster.request("PUT", f"{bench.https}/tree.root", body=local.read_bytes())
    url = f"{bench.https}/tree.root?authz={bench.token('/tree.root')}"
    return [
        ("read by multi-range, no fallback", lambda: wrote and did(MULTI_RANGE, url)),
        ("read by fsspec", lambda: wrote and told(bench, PYTHON, "-c", UPROOT_READS, url)),
    ]


def chromium(bench: Bench) -> list[Step]:
    """By share links, with and without scripts, and by certificates: an owner's and an administrator's."""
    home = bench.scratch / "chromium"
    home.mkdir()

    def looked(look: Callable[[Cluster, Path], None]) -> bool:
        look(bench.cluster, home)
        return True

    return [
        ("by a link", lambda: looked(browser.look)),
        ("without scripts", lambda: looked(browser.look_without_scripts)),
        ("by certificate", lambda: looked(browser.look_by_certificate)),
    ]


def third_party(bench: Bench) -> list[Step]:
    base = (
        "curl",
        "-sS",
        "--capath",
        str(bench.cluster.ca_dir),
        "--cert",
        bench.proxy,
        "--key",
        bench.proxy,
        "-X",
        "COPY",
    )
    there = f"{bench.other.files_url}/theirs"
    bench.other.request("MKCOL", there)
    asked = bench.other.request(
        "POST",
        there,
        body=b'{"caveats": ["activity:DOWNLOAD,LIST,UPLOAD,MANAGE"]}',
        headers={"Content-Type": "application/macaroon-request"},
    )
    token = re.search(r'"macaroon": ?"([^"]+)"', asked.text)
    bearer = ("-H", f"TransferHeaderAuthorization: Bearer {token[1] if token else ''}")
    bench.other.request("PUT", f"{there}/pulled", body=bench.data)
    bench.cluster.request("PUT", f"{bench.https}/pushed", body=bench.data)

    def well(said: str) -> bool:
        return said.endswith("success: Created\n")

    def copied(argv: tuple[str, ...], url: str) -> bool:
        return told(bench, *base, *argv, url, check=well)

    def gfaled(source: str, target: str, mode: str, *options: str) -> bool:
        """Whether gfal2 has copied a file, and the copy has the bytes."""
        davs = (each.replace("https:", "davs:") for each in (source, target))
        good = told(bench, "gfal-copy", "--copy-mode", mode, *options, *davs)
        got = ("curl", "-sSf", "--capath", str(bench.cluster.ca_dir), "--cert", bench.proxy, "--key", bench.proxy)
        return good and told(bench, *got, "-L", "-o", str(bench.got), target) and bench.fetched()

    no_token = ("-D", "HTTP PLUGIN:RETRIEVE_BEARER_TOKEN=false")
    steps: list[Step] = [
        (
            "gfal2: pull from a cluster by token",
            lambda: gfaled(f"{there}/pulled", f"{bench.https}/tokened", "pull"),
        ),
        (
            "gfal2: pull from a cluster by delegation",
            lambda: gfaled(f"{there}/pulled", f"{bench.https}/delegated", "pull", *no_token),
        ),
        (
            "gfal2: push to a cluster by delegation",
            lambda: gfaled(f"{bench.https}/pushed", f"{there}/delegated", "push", *no_token),
        ),
        (
            "pull from a cluster",
            lambda: (
                copied(("-H", f"Source: {there}/pulled", *bearer), f"{bench.https}/pulled") and bench.holds("/pulled")
            ),
        ),
        (
            "push to a cluster",
            lambda: (
                copied(("-H", f"Destination: {there}/pushed", *bearer), f"{bench.https}/pushed")
                and bench.other.request("GET", f"{there}/pushed?proxy").body == bench.data
            ),
        ),
    ]
    # after the two of gfal2, which have delegated a proxy; XRootD lets in its holder alone
    verify = ("-L", "-H", "Credential: gridsite", "-H", "RequireChecksumVerification: true")
    if "xrootd" in bench.far:
        url = bench.far["xrootd"][0]
        steps += [
            ("gfal2: pull from XRootD by delegation", lambda: gfaled(f"{url}/f", f"{bench.https}/gpulled", "pull")),
            ("gfal2: push to XRootD by delegation", lambda: gfaled(f"{bench.https}/pushed", f"{url}/h", "push")),
            ("gfal2: XRootD pulls", lambda: gfaled(f"{bench.https}/pushed", f"{url}/i", "pull")),
        ]
    for name in bench.far:
        steps += by_copy(bench, name, copied, verify if name == "xrootd" else ())
    if "nginx" in bench.far:
        at, token = bench.far["nginx"][0], "TransferHeaderAuthorization: Bearer known"

        def fetched(path: str, *more: str) -> bool:
            return copied(("-H", f"Source: {at}{path}", *more), f"{bench.https}/far") and bench.holds("/far")

        steps += [
            ("pull from nginx by token", lambda: fetched("/closed/f", "-H", token) and not fetched("/closed/f")),
            ("pull from nginx by redirect, TLS 1.2", lambda: fetched("/far/f")),
        ]
    return steps


def by_copy(
    bench: Bench, name: str, copied: Callable[[tuple[str, ...], str], bool], options: tuple[str, ...]
) -> list[Step]:
    """COPY from and to a foreign server."""
    at, store = bench.far[name]

    def pulled() -> bool:
        return copied(("-H", f"Source: {at}/f", *options), f"{bench.https}/{name}") and bench.holds(f"/{name}")

    def pushed(*more: str) -> bool:
        good = copied(("-H", f"Destination: {at}/g", *options, *more), f"{bench.https}/pushed")
        return good and (store / "g").read_bytes() == bench.data

    return [
        (f"pull from {name}", pulled),
        (f"push to {name}", pushed),
        (f"push to {name} what is there", lambda: not pushed("-H", "Overwrite: F")),
    ]


CLIENTS: dict[str, tuple[Client, tuple[str, ...]]] = {
    "curl": (curl, ("curl", "--version")),
    "wget": (wget, ("wget", "--version")),
    "davix": (davix, ("davix-get", "--version")),
    "gfal2": (gfal, ("gfal-copy", "--version")),
    "ARC": (arc, ("arccp", "--version")),
    "rclone": (rclone, ("rclone", "version")),
    "litmus": (litmus, ("litmus", "--version")),
    "cadaver": (cadaver, ("cadaver", "--version")),
    "davfs2": (davfs2, ("mount.davfs", "--version")),
    "git-annex": (annex, ("git-annex", "version")),
    "webdav4": (webdav4, (PYTHON, "-c", "import importlib.metadata as m; print(m.version('webdav4'))")),
    "uproot": (uproot, (PYTHON, "-c", "import uproot; print(uproot.__version__)")),
    "Chromium": (chromium, ("chromium", "--version")),
    "third-party": (third_party, ("curl", "--version")),
}


def main() -> int:
    """1 when a step failed."""
    asked = sys.argv[1:] or list(CLIENTS)
    if unknown := [name for name in asked if name not in CLIENTS]:
        sys.exit(f"no client is called {', '.join(unknown)}; there are: {', '.join(CLIENTS)}")
    root = Path(tempfile.mkdtemp(prefix="chelonia-conform-"))
    root.chmod(0o755)
    cluster, other = Cluster(root / "one", shepherds=3), Cluster(root / "two", shepherds=3)
    try:
        with ExitStack() as stack:
            stack.callback(cluster.stop)
            cluster.start()
            shutil.copytree(cluster.root / "certs", other.root / "certs")  # one CA for both
            stack.callback(other.stop)
            other.start()
            cluster.reconfigure("core", bartender={"tuning": {"transfer_networks": ["127.0.0.0/8", "::1/128"]}})
            poll(lambda: serves(cluster), 60.0, what="the door serves again")
            (root / "scratch").mkdir()
            bench = Bench(cluster, other, root / "scratch")
            bench.far |= stack.enter_context(far_ends(bench.scratch, cluster, bench.data))
            rows = [row(bench, name, client, version) for name, (client, version) in CLIENTS.items() if name in asked]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if len(rows) == len(CLIENTS):
        write_part(HEAD + "".join(rows))
    print("".join(rows))
    return int(bench.failed)


def write_part(text: str) -> None:
    """Write a table into the page, in the place of the one with the same heading."""
    heading, parts = text.partition("\n")[0], re.split(r"(?m)\n(?=# )", TABLE.read_text())
    written = [text if part.startswith(heading) else part for part in parts]
    TABLE.write_text("\n".join(written if text in written else [*written, text]))


def serves(cluster: Cluster) -> bool:
    try:
        return cluster.request("HEAD", f"{cluster.files_url}/").status == 200
    except OSError:
        return False


def row(bench: Bench, name: str, client: Client, version: tuple[str, ...]) -> str:
    """Run a client's steps; returns its line of the table."""
    if not shutil.which(version[0]):
        return f"| {name} | - | not installed | |\n"
    there, said = bench.run(*version)
    if not there and version[0] == PYTHON:
        return f"| {name} | - | not installed | |\n"
    number = re.search(r"\d+\.\d+(\.\d+)?", said)
    failed, steps = [], client(bench)
    for step, act in steps:
        print(f"{name}: {step}", flush=True)
        try:
            if not attempted(act):
                bench.failed = True
                failed.append(step)
        except NotInstalled as program:
            failed.append(f"{step}: no {program} here")
    shown = "-" if client is third_party else number[0] if number else "?"
    return f"| {name} | {shown} | {len(steps) - len(failed)} of {len(steps)} | {', '.join(failed)} |\n"


def attempted(act: Callable[[], bool]) -> bool:
    try:
        return act()
    except (OSError, AssertionError, subprocess.TimeoutExpired) as error:
        print(f"    {error!r}", file=sys.stderr)
        return False


# --- what some clients need ------------------------------------------------------------------------------------------


def ca_file(bench: Bench) -> Path:
    """The CA as one file, for clients that accept no directory of them."""
    path = bench.scratch / "ca.pem"
    path.write_bytes(b"".join(each.read_bytes() for each in sorted(bench.cluster.ca_dir.glob("*.0"))))
    return path


def pkcs12(bench: Bench) -> Path:
    """The user's certificate and key in a form that neon reads."""
    path, files = bench.scratch / "user.p12", bench.cluster.files("user")
    bench.run(
        "openssl",
        "pkcs12",
        "-export",
        "-in",
        str(files.cert),
        "-inkey",
        str(files.key),
        "-passout",
        "pass:",
        "-out",
        str(path),
    )
    return path


if __name__ == "__main__":
    sys.exit(main())
