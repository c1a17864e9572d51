"""The `chelonia` command against a real cluster: exit codes, output, whole trees there and back, pipes, overwriting."""

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from chelonia.core import bounds
from chelonia.hosting.net.identity import subject_dn
from tests.cluster.harness import Cluster
from tests.cluster.load import locations, put, until_live
from tests.support.polling import patience, poll

COMMAND = str(Path(sys.executable).parent / "chelonia")
Run = Callable[..., subprocess.CompletedProcess[bytes]]
ODD = [
    "plain.txt",
    "with blank",
    "é",
    "e\u0301",
    "日本語",
    "🐢",
    "-r",
    "a;b|c$d`e`",
    "%2F",
    "back\\slash",
    "...",
    "quote\"'",
    "<&>",
]


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Run:
    """Run the command as a caller of the cluster (`who`), in a directory of its own, with nothing else around it."""
    home = tmp_path / "home"
    home.mkdir()

    def act(*words: str, who: str = "user", **options: object) -> subprocess.CompletedProcess[bytes]:
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        environment |= options.pop("environment", {})  # type: ignore[arg-type, operator]
        places = ["--cluster", str(cluster.root / "cluster.json"), "--as", who] if who else []
        command = [COMMAND, *places, *words]
        options.setdefault("cwd", tmp_path)
        return subprocess.run(
            command, capture_output=True, check=False, timeout=60 * patience(), env=environment, **options
        )  # type: ignore[call-overload, no-any-return]

    return act


def ok(result: subprocess.CompletedProcess[bytes]) -> str:
    assert result.returncode == 0, (result.args, result.stdout[-500:], result.stderr[-500:])
    return str(result.stdout.decode())


def fails(result: subprocess.CompletedProcess[bytes], code: int, *said: str) -> None:
    """The exit code, a reason on stderr, and never a stack trace."""
    talk = (result.stdout + result.stderr).decode()
    assert result.returncode == code, (result.args, talk)
    assert result.stderr
    assert "Traceback" not in talk
    for word in said:
        assert word in talk


async def test_exit_codes(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"local bytes")
    ok(run("makeCollection", "/codes"))
    ok(run("put", "local", "/codes/file", "2"))
    fails(run("put", "missing", "/codes/x"), 3, "missing")
    fails(run("get", "/codes/file", "no/such/directory/file"), 3)
    fails(run("get", "/codes/file", "x" * 300), 2)
    fails(run(), 2)
    fails(run("frobnicate"), 2, "frobnicate")
    fails(run("move", "/codes"), 2)
    fails(run("stat", "/codes/.."), 2)
    fails(run("stat", "/nowhere"), 3)
    fails(run("get", "/codes/nothing"), 3)
    fails(run("mkdir", "/codes/no/parent"), 3)
    fails(run("delFile", "/codes/file", who="user2"), 4)
    fails(run("rm", "/codes/file", who="anonymous"), 4)
    fails(run("mkdir", "/codes"), 5)
    fails(run("put", "local", "/codes/file"), 5)
    fails(run("rmdir", "/codes"), 5)
    fails(run("-b", "https://localhost:9/Bartender", "stat", "/"), 7)
    assert ok(run("cat", "/codes/file")) == "local bytes"


SIZE = bounds.INLINE_BYTES_MAX + 1


async def test_bytes_that_are_wrong_everywhere_are_said_to_be_and_leave_nothing(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    cluster.expect_log("replica is invalid|check impossible|is lost, no verified copy is left")
    async with cluster.client("user") as client:
        await put(client, "/rotten", b"x" * SIZE)
        await until_live(client, "/rotten", 2)
        for place in await locations(client, "/rotten"):
            cluster.replica_file(place).write_bytes(b"y" * SIZE)
        fails(run("get", "/rotten", "fetched"), 1, "none of its 2 replicas is reachable and whole now")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
        await client.del_file("/rotten")


def test_a_tree_with_odd_names_comes_back_identical(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    for number, name in enumerate(ODD):
        folder = source / f"sub {number % 3}" / name
        folder.mkdir(parents=True)
        (folder / name).write_bytes(os.urandom(1000 * number))
        os.utime(folder / name, (1_500_000_000 + number, 1_500_000_000 + number))
    (source / "empty").mkdir()
    ok(run("put", "-r", "-j", "8", "--replicas", "2", "tree", "/"))
    ok(run("get", "-r", "/tree", "copy"))
    assert described(tmp_path / "copy") == described(source)
    listed = ok(run("ls", "-r", "/tree"))
    assert "日本語" in listed
    ok(run("rm", "-r", "/tree"))
    fails(run("stat", "/tree"), 3)


def described(root: Path) -> dict[str, object]:
    """Every path below, with content and modification time of files."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), int(path.stat().st_mtime)) if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def test_pipes(run: Run) -> None:
    data = bytes(range(256)) * 20_000
    ok(run("put", "-", "/piped", "2", input=data))
    got = run("get", "/piped", "-")
    assert (got.returncode, got.stdout) == (0, data)
    assert run("cat", "/piped", "/piped").stdout == data + data


def test_overwriting_is_refused_unless_asked_for(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"one")
    (tmp_path / "two").write_bytes(b"two")
    ok(run("put", "one", "/over"))
    fails(run("put", "two", "/over"), 5)
    assert ok(run("cat", "/over")) == "one"
    ok(run("put", "-f", "two", "/over"))
    assert ok(run("cat", "/over")) == "two"
    fails(run("get", "/over", "one"), 5)
    assert (tmp_path / "one").read_bytes() == b"one"
    ok(run("get", "-f", "/over", "one"))
    assert (tmp_path / "one").read_bytes() == b"two"
    fails(run("cp", "chelonia:/over", "chelonia:/over"), 5)
    ok(run("cp", "chelonia:/over", "chelonia:/copy"))
    fails(run("cp", "chelonia:/over", "chelonia:/copy"), 5)
    ok(run("put", "-f", "two", "/over"))
    ok(run("rm", "/over"))
    assert ok(run("cat", "/copy")) == "two"
    # other tests of this cluster harm copies, and repair may still be at them
    poll(lambda: run("admin", "fsck", who="admin").returncode == 0, 30, interval=0.5, what="fsck finds nothing")


def test_credentials_are_found_as_the_ecosystem_does(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    info = cluster.info
    base = {"X509_CERT_DIR": info["ca_dir"], "ARC_BARTENDER_URL": cluster.url("bartender")}
    (tmp_path / "f").write_bytes(b"x")
    by_proxy = {**base, "X509_USER_PROXY": info["user_proxy"]}
    ok(run("put", "f", "/with-proxy", "1", who="", environment=by_proxy))
    by_cert = {**base, "X509_USER_CERT": info["user2_cert"], "X509_USER_KEY": info["user2_key"]}
    assert "Jane Doe" in ok(run("stat", "/with-proxy", who="", environment=by_cert))
    fails(run("delFile", "/with-proxy", who="", environment=by_cert), 4)
    assert "Juan Perez" in ok(run("whoami", who="", environment=by_cert))
    ok(run("delFile", "/with-proxy", who="", environment=by_proxy))


def test_doctor_and_admin(cluster: Cluster, run: Run) -> None:
    ok(run("doctor"))
    nodes = ok(run("admin", "node", "list", who="admin"))
    for name in cluster.shepherd_names:
        assert cluster.url(name) in nodes
    ok(run("admin", "status", who="admin"))
    fails(run("admin", "status", who="user"), 4)
    broken = run("-b", "https://localhost:9/Bartender", "doctor")
    assert broken.returncode != 0


async def test_a_share_link_works_without_a_certificate(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"local bytes")
    ok(run("makeCollection", "/shared", "/shared/in"))
    ok(run("put", "local", "/shared/file"))
    ok(run("policy", "/shared/file", "clear", "ALL"))
    link = ok(run("share", "/shared/file")).strip()
    assert urlsplit(link)._replace(query="").geturl() == f"{cluster.files_url}/shared/file"
    assert cluster.request("GET", link.partition("?")[0], "anonymous").status == 401
    assert cluster.request("GET", link, "anonymous").body == b"local bytes"
    assert cluster.request("GET", link.replace("/shared/file", "/shared/"), "anonymous").status == 403
    assert cluster.request("DELETE", link, "user").status == 403
    assert cluster.request("GET", link[:-3] + "AAA", "anonymous").status == 401
    told = json.loads(ok(run("share", "--json", "--upload", "--for", "2h", "/shared/in")))
    box = told["results"][0]["link"].replace("/in/?", "/in/new?")
    assert cluster.request("PUT", box, "anonymous", body=b"theirs").status == 201
    assert cluster.request("PUT", box, "anonymous", body=b"again").status == 403
    assert "Jane Doe" in ok(run("stat", "/shared/in/new"))
    told = json.loads(ok(run("share", "--json", "--write", "/shared/in")))["results"][0]
    signed_in = {"Authorization": "Basic " + b64encode(f"jane:{told['password']}".encode()).decode()}
    for body in (b"mine", b"again"):
        assert cluster.request("PUT", f"{told['url']}/kept", "anonymous", body=body, headers=signed_in).status in (
            201,
            204,
        )
    assert cluster.request("DELETE", f"{told['url']}/kept", "anonymous", headers=signed_in).status == 204
    assert (
        cluster.request("PUT", f"{cluster.files_url}/shared/file", "anonymous", body=b"x", headers=signed_in).status
        == 403
    )
    fails(run("share", "/shared/file", "--for", "999d"), 2, "good for 1 s to")
    fails(run("share", "/shared/file", who="user2"), 4, "lacks read")
    fails(run("share", "/nowhere"), 3)
    other = x509.load_pem_x509_certificate(cluster.files("user2").cert.read_bytes())  # type: ignore[union-attr]
    # what a right of the giver opened closes with it
    ok(run("policy", "/shared/file", "change", subject_dn(other), "+read"))
    theirs = ok(run("share", "/shared/file", who="user2")).strip()
    assert cluster.request("GET", theirs, "anonymous").status == 200
    ok(run("policy", "/shared/file", "change", subject_dn(other), "-read"))
    refused = cluster.request("GET", theirs, "anonymous")
    assert (refused.status, b"whose token this is" in refused.body) == (403, True)
    # one link is revoked, by its giver alone, and no other
    another = ok(run("share", "/shared/file")).strip()
    given = json.loads(ok(run("share", "--json", "--list")))["results"]
    assert sorted(each["scope"] for each in given) == [
        "read addEntry on /shared/in",
        "read addEntry removeEntry delete modifyMetadata on /shared/in",
        *["read on /shared/file"] * 2,
    ]
    assert not ok(run("s3", "key", "list")).count("link-")
    fails(run("share", "--revoke", link, who="user2"), 3, "no such link")
    ok(run("share", "--revoke", link))
    poll(lambda: cluster.request("GET", link, "anonymous").status == 401, 20, what="the link is refused")
    assert b"was revoked" in cluster.request("GET", link, "anonymous").body
    assert cluster.request("GET", another, "anonymous").status == 200
    assert len(json.loads(ok(run("share", "--json", "--list")))["results"]) == 3
