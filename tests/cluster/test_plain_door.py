"""The plain door on real daemons: curl, a broken upload, a Shepherd that dies under a download, access rights."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from chelonia.core import bounds
from chelonia.core.values import replace
from chelonia.hosting.net.certificates import CertificateAuthority, Issued, KeyKind, load_key, make_key
from chelonia.hosting.net.identity import subject_dn
from chelonia.hosting.transfer.download import download
from tests.cluster.harness import Away, Cluster, Files, lowered, now_ms
from tests.cluster.load import fetch, locations, put, until_live
from tests.cluster.test_foreign_clients import curl
from tests.support.polling import patience, poll, poll_async
from tests.support.voms import Ac, carrying

DATA = os.urandom(3_000_000)


@pytest.fixture
def place(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """The URL of a fresh collection."""
    url = f"{cluster.files_url}/plain-{request.node.name[:40].replace('[', '-').replace(']', '')}"
    assert cluster.request("MKCOL", url).status == 201
    return url


@pytest.mark.capability("command:curl")
def test_curl_puts_and_gets_and_lists(cluster: Cluster, place: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    sent = curl(cluster, "-i", "-T", str(source), f"{place}/file")
    assert b" 201 " in sent.stdout, sent
    assert curl(cluster, f"{place}/file").stdout == DATA
    assert curl(cluster, "-L", "-A", "a browser", f"{place}/file").stdout == DATA
    assert b"307" in curl(cluster, "-i", "-A", "a browser", f"{place}/file").stdout.splitlines()[0]
    assert curl(cluster, "-r", "1000000-1999999", f"{place}/file").stdout == DATA[1_000_000:2_000_000]
    assert curl(cluster, f"{place}/").stdout == b"file\n"
    assert b" 204 " in curl(cluster, "-i", "-X", "DELETE", f"{place}/file").stdout
    (guid,) = re.findall(r'name="guid" value="([^"]+)"', curl(cluster, f"{place}/?trash").stdout.decode())
    form = f"guid={guid}&name=file"
    assert b" 403 " in curl(cluster, "-i", "-d", form, f"{place}/?trash").stdout, "what another site would send"
    ours = ("-i", "-H", f"Origin: {place.rpartition('/')[0]}")
    back = curl(cluster, *ours, "-d", form, f"{place}/?trash")
    assert b"303" in back.stdout.splitlines()[0], back
    added = curl(cluster, *ours, "-F", f"file=@{source};filename=by form", f"{place}/")
    assert b" 303 " in added.stdout, added
    assert curl(cluster, f"{place}/by%20form").stdout == DATA
    assert b" 204 " in curl(cluster, "-i", "-X", "DELETE", f"{place}/by%20form").stdout
    assert curl(cluster, f"{place}/file").stdout == DATA


def test_what_the_door_writes_every_other_door_sees(cluster: Cluster, place: str) -> None:
    name = urlsplit(place).path

    async def by_the_sdk() -> bytes:
        async with cluster.client("user") as client:
            await put(client, f"{name}/sdk", b"from the SDK")
            return await fetch(client, f"{name}/door")

    assert cluster.request("PUT", f"{place}/door", body=b"from the door").status == 201
    assert asyncio.run(by_the_sdk()) == b"from the door"
    assert cluster.request("GET", f"{place}/sdk").body == b"from the SDK"


@pytest.mark.capability("command:curl")
def test_a_large_upload_goes_to_a_shepherd_and_a_lock_keeps_it_here(
    cluster: Cluster, place: str, tmp_path: Path
) -> None:
    source, told = tmp_path / "source", "%{http_code} %{num_redirects}"
    source.write_bytes(DATA)

    def sent() -> bytes:
        return curl(cluster, "-L", "-o", os.devnull, "-w", told, "-T", str(source), f"{place}/file?redirect").stdout

    assert sent() == b"201 1"
    assert cluster.request("GET", f"{place}/file?proxy").body == DATA
    info = b"<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>"
    lock = cluster.request("LOCK", f"{place}/file", body=info)
    assert lock.status == 200
    assert sent() == b"423 0"
    token = {"Lock-Token": lock.headers["lock-token"]}
    assert cluster.request("UNLOCK", f"{place}/file", headers=token).status == 204
    assert sent() == b"201 1"


def test_who_has_a_token_writes_at_a_shepherd_what_it_allows(cluster: Cluster, place: str) -> None:
    kind, asked = {"Content-Type": "application/macaroon-request"}, b'{"caveats": ["activity:UPLOAD"]}'
    token = json.loads(cluster.request("POST", f"{place}/", body=asked, headers=kind).body)["macaroon"]
    shown = {"Authorization": f"Bearer {token}", "User-Agent": "libdavix/0.8", "Expect": "100-continue"}

    def sent(url: str, body: bytes, **fields: str) -> tuple[int, str]:
        answer = cluster.request("PUT", url, "anonymous", body=body, headers=fields)
        return answer.status, answer.headers.get("location", "")

    status, turl = sent(f"{place}/new", DATA, **shown)
    assert (status, cluster.request("GET", f"{place}/new").status) == (307, 404)
    assert sent(turl, DATA + b"more") == (413, ""), "what was announced, and no more"
    assert sent(turl, DATA) == (201, "")
    assert cluster.request("GET", f"{place}/new?proxy").body == DATA
    assert sent(turl, DATA[::-1]) == (409, ""), "once"
    assert sent(f"{place}/new", DATA, **shown)[0] == 403, "the token replaces nothing"
    assert sent(f"{place.rpartition('/')[0]}/new", DATA, **shown)[0] == 403


def test_who_has_a_token_reads_ranges_at_a_shepherd(cluster: Cluster, place: str) -> None:
    assert cluster.request("PUT", f"{place}/file", body=DATA).status == 201
    kind, asked = {"Content-Type": "application/macaroon-request"}, b'{"caveats": ["activity:DOWNLOAD"]}'
    token = json.loads(cluster.request("POST", f"{place}/file", body=asked, headers=kind).body)["macaroon"]
    shown = {"Authorization": f"Bearer {token}", "User-Agent": "libdavix/0.8"}
    sent = cluster.request("GET", f"{place}/file", "anonymous", headers=shown)
    assert sent.status == 307
    for first in (0, 1_000_000):
        part = cluster.request("GET", sent.headers["location"], "anonymous", headers={"Range": f"bytes={first}-"})
        assert (part.status, part.body) == (206, DATA[first:])


@pytest.mark.parametrize("rotten", [1, 3])
@pytest.mark.parametrize("by", ["door", "node"])
async def test_rot_is_never_told(cluster: Cluster, place: str, rotten: int, by: str) -> None:
    """The door finds the one good copy, in whatever order it tries them; without one it sends nothing."""
    cluster.expect_log("replica is invalid|check impossible|is lost, no verified copy is left|none of its . replicas")
    async with cluster.client("user") as client:
        for number in range(3):
            name = f"{urlsplit(place).path}/{number}"
            await put(client, name, DATA, 3)
            for held in list(await until_live(client, name, 3))[:rotten]:
                with cluster.replica_file(held).open("r+b") as file:
                    file.seek(2_000_000)
                    file.write(bytes([DATA[2_000_000] ^ 1]))
            for first, last in ((1_999_990, 2_000_010), (0, 2_999_999), (0, 1_000_000)):
                told = await asyncio.to_thread(_told, cluster, f"{place}/{number}", by, (first, last))
                assert told in (None, DATA[first : last + 1])
                assert told is not None or by == "node" or rotten == 3
                assert told is None or first + last < 2_000_000 or rotten == 1
            await client.del_file(name)


def _told(cluster: Cluster, url: str, by: str, span: tuple[int, int]) -> bytes | None:
    """Return the bytes of a span of an answer; None where it is refused or cut off."""
    asked = {"Range": f"bytes={span[0]}-{span[1]}", "User-Agent": "curl"}
    try:
        answer = cluster.request("GET", url if by == "node" else f"{url}?proxy", headers=asked)
        if answer.status == 307:
            answer = cluster.request("GET", answer.headers["location"], headers=asked)
    except (http.client.HTTPException, ConnectionError):
        return None
    assert answer.status in (206, 503), answer
    return answer.body if answer.status == 206 else None


UPWARDS = (
    "../", "%2e%2e/", ".%2E/", "..%2f", "%2e%2e%2f", "%252e%252e/", "%c0%ae%c0%ae/", "%c0%ae%c0%ae%c0%af", "\\../",
    "%5c../", "%5c..%5c../", "x/../../", "%00../", "..;/", "//../",
)  # fmt: skip
"""Ways to write `..` that some server or other has followed."""


@pytest.mark.parametrize("by", ["user", "token"])
def test_no_encoding_leads_out(cluster: Cluster, place: str, by: str) -> None:
    """The token is good for all that is in a collection, and the certificate for all: neither request is meant so."""
    path, inner = urlsplit(place).path, f"{place}/in"
    assert cluster.request("MKCOL", inner).status == 201
    for url in (f"{place}/secret", f"{inner}/own"):
        assert cluster.request("PUT", url, body=b"kept").status == 201
    kind = {"Content-Type": "application/macaroon-request"}
    token = json.loads(cluster.request("POST", f"{inner}/", headers=kind).body)["macaroon"]
    shown, who = (f"Authorization: Bearer {token}\r\n", "anonymous") if by == "token" else ("", "user")

    def refused(line: str, more: str = "") -> None:
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\n{shown}{more}Connection: close\r\n\r\n"
        answer = cluster.exchange(place, head.encode(), who)
        assert answer.status in (400, 403, 404, 409), (line, answer)
        assert answer.text.strip(), line

    for up in UPWARDS:
        for method in ("GET", "DELETE", "PROPFIND"):
            refused(f"{method} {path}/in/{up}secret")
        refused(f"MKCOL {path}/in/{up}new")
        refused(f"PUT {path}/in/{up}new", "Content-Length: 0\r\n")
        refused(f"PUT {path}/in/{up}secret", "Content-Length: 0\r\n")
        refused(f"COPY {path}/in/{up}secret", f"Destination: {path}/in/stolen\r\n")
        refused(f"MOVE {path}/in/own", f"Destination: {path}/in/{up}new\r\n")
    for name in ("%252e%252e%252fnew", "%5c..%5cnew"):  # names as any other, and nothing in them is a way up
        assert cluster.request("PUT", f"{inner}/{name}", body=b"in").status == 201
    for url, names in ((place, b"in/\nsecret\n"), (inner, b"%2e%2e%2fnew\n\\..\\new\nown\n")):
        assert cluster.request("GET", f"{url}/", headers={"Accept": "text/plain"}).body == names
    assert cluster.request("GET", f"{place}/secret").body == b"kept"


def test_an_upload_that_breaks_off_leaves_nothing(cluster: Cluster, place: str) -> None:
    path = urlsplit(place).path
    with cluster.connected(place) as connection:
        head = f"PUT {path}/broken HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n"
        connection.sendall(head.encode() + DATA[:500_000])
    assert cluster.request("GET", f"{place}/broken").status == 404
    assert cluster.request("GET", f"{place}/", headers={"Accept": "text/plain"}).body == b""
    assert cluster.request("PUT", f"{place}/broken", body=b"whole").status == 201


def test_two_that_create_one_name_at_once_and_one_wins(cluster: Cluster, place: str) -> None:
    async def race() -> list[int]:
        once = {"If-None-Match": "*"}
        tries = [
            asyncio.to_thread(cluster.request, "PUT", f"{place}/one", body=b"%d" % n, headers=once) for n in range(6)
        ]
        return sorted(answer.status for answer in await asyncio.gather(*tries))

    assert asyncio.run(race()) == [201, 412, 412, 412, 412, 412]


def test_a_copy_from_another_server_needs_its_network_allowed(own_cluster: Callable[..., Cluster]) -> None:
    """The other server is this door: it gets its own token, and no certificate."""
    cluster = own_cluster(shepherds=2)
    here, there = f"{cluster.files_url}/here", f"{cluster.files_url}/there"
    assert cluster.request("PUT", there, body=DATA).status == 201
    kind, asked = {"Content-Type": "application/macaroon-request"}, b'{"caveats": ["activity:DOWNLOAD"]}'
    token = json.loads(cluster.request("POST", there, body=asked, headers=kind).body)["macaroon"]

    def copied() -> str:
        shown = {"Source": there, "TransferHeaderAuthorization": f"Bearer {token}"}
        answer = cluster.request("COPY", here, headers=shown)
        assert answer.status == 202, answer
        return answer.text

    assert re.search("^failure: 409 .*transfer_networks", copied(), re.MULTILINE)
    assert cluster.request("HEAD", here).status == 404
    cluster.reconfigure("core", bartender={"tuning": {"transfer_networks": ["127.0.0.0/8", "::1/128"]}})
    poll(lambda: cluster.request("HEAD", there).status == 200, 60, tolerate=OSError, what="the door serves again")
    asyncio.run(cluster.until_alive())
    told = copied()
    assert told.startswith("Perf Marker\n")
    assert told.endswith(f"Stripe Bytes Transferred: {len(DATA)}\n    Total Stripe Count: 1\nEnd\nsuccess: Created\n")
    assert cluster.request("GET", f"{here}?proxy").body == DATA
    ends = re.findall(r"event=copied .* path='/here' .* (bytes=.*)", cluster.log_of("core"))
    assert ends[1:] == [f"bytes={len(DATA)} failure=''"]
    assert ends[0].startswith("bytes=0 failure=")
    assert "transfer_networks" in ends[0]


def test_a_storm_of_locks_is_answered_and_leaves_none(cluster: Cluster, place: str) -> None:
    info = b"<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/></locktype></lockinfo>"
    path, seen = urlsplit(place), list[tuple[str, int, str]]()
    assert cluster.request("PUT", f"{place}/one", body=b"read by others").status == 201

    def storm(number: int) -> None:
        with contextlib.closing(
            http.client.HTTPSConnection("localhost", path.port, context=cluster.context(), timeout=20 * patience())
        ) as connection:

            def ask(method: str, name: str, body: bytes = b"", **fields: str) -> dict[str, str]:
                for _ in range(20):
                    connection.request(
                        method, f"{path.path}/{name}", body, {k.replace("_", "-"): v for k, v in fields.items()}
                    )
                    answer = connection.getresponse()
                    text = answer.read().decode()
                    if not (answer.status == 409 and "try again" in text):  # of eight at once others were quicker
                        break
                seen.append((method, answer.status, text))
                return lowered(answer.headers)

            for name in (*[str(n) for n in range(number, 300, 8)], *["one"] * 30):
                if token := ask("LOCK", name, info).get("lock-token"):
                    ask("UNLOCK", name, Lock_Token=token)

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    longest_s = 0.0
    while any(each.is_alive() for each in threads):
        begun = time.monotonic()
        assert cluster.request("GET", f"{place}/one").body == b"read by others"
        longest_s = max(longest_s, time.monotonic() - begun)
    counts = Counter((method, status) for method, status, _ in seen)
    assert counts.keys() <= {("LOCK", 200), ("LOCK", 201), ("LOCK", 423), ("UNLOCK", 204)}, (counts, seen[-5:])
    assert counts["LOCK", 201] == 300
    assert counts["LOCK", 200] > 0 < counts["LOCK", 423]
    assert counts["UNLOCK", 204] == counts["LOCK", 200] + 300
    assert all("/CN=" in text for _, status, text in seen if status == 423), "whose lock it is"
    assert longest_s < 5 * patience(), counts
    assert cluster.request("LOCK", f"{place}/one", body=info).status == 200
    left = cluster.request("PROPFIND", f"{place}/", headers={"Depth": "1"}).text
    assert [len(re.findall(f"<[^/>]*{word}>", left)) for word in ("response", "activelock")] == [302, 1], (
        "this last one"
    )


def test_a_get_goes_on_when_its_shepherd_dies(cluster: Cluster, place: str) -> None:
    url = f"{place}/large"
    data = os.urandom(24_000_000)
    assert cluster.request("PUT", url, body=data).status == 201

    async def whole() -> None:
        async with cluster.client("user") as client:
            await until_live(client, urlsplit(url).path, bounds.REPLICAS_DEFAULT)

    asyncio.run(whole())
    parts = urlsplit(url)
    assert parts.port is not None
    longest_s = 30 * patience()
    connection = http.client.HTTPSConnection(
        "localhost", parts.port, context=cluster.context("user"), timeout=longest_s
    )
    connection.request("GET", f"{parts.path}?proxy")
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    answer = connection.getresponse()
    got = answer.read(1_000_000)
    olds = {name: cluster.kill(name) for name in cluster.shepherd_names[:2]}  # one of them was sending, mostly
    got += answer.read()
    connection.close()
    assert got == data
    for name, old in olds.items():
        cluster.wait_restarted(name, old)
    asyncio.run(cluster.until_serving(*olds))


async def test_a_file_of_several_blobs_is_appended_to_patched_and_healed(
    own_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = own_cluster(shepherds=4, restart=False)
    url, block = f"{cluster.files_url}/log", 4096
    data = bytearray(os.urandom(100 * block))

    async def laid(at: int, body: bytes) -> int:
        where = {"Content-Range": f"bytes {at}-{at + len(body) - 1}/*"}
        answer = await asyncio.to_thread(cluster.request, "PUT", url, body=body, headers=where)
        return answer.status

    for n in range(100):
        assert await laid(n * block, bytes(data[n * block : (n + 1) * block])) == (204 if n else 201)
    data[1000:1010] = b"in between"
    assert await laid(1000, b"in between") == 204
    assert (await asyncio.to_thread(cluster.request, "GET", url)).body == data
    async with cluster.client("user") as client:
        assert await fetch(client, "/log") == data
        wanted = int((await client.stat("/log"))["states"]["neededReplicas"])
        before = await until_live(client, "/log", wanted)  # of the blob with the fewest
        victim = next(name for name in cluster.shepherd_names if any(at.startswith(cluster.url(name)) for at in before))
        cluster.kill(victim)
        assert (await asyncio.to_thread(cluster.request, "GET", url)).body == data
        assert (await download(client, "/log", tmp_path / "log")).size == len(data)
        assert (tmp_path / "log").read_bytes() == data
        assert await laid(len(data), b"more") == 204

        async def healed() -> bool:
            places = await locations(client, "/log")
            gone = [at for at in places if at.startswith(cluster.url(victim) + " ")]
            return sum(state == "alive" for at, state in places.items() if at not in gone) == wanted

        await poll_async(healed, 90.0, tolerate=Away, what="every blob has all its copies elsewhere")
        assert (await asyncio.to_thread(cluster.request, "GET", url)).body == bytes(data) + b"more"
        assert cluster.request("DELETE", url).status == 204


def test_groups_of_voms_and_holders_of_an_issuers_tokens_are_let_in_by_policy(cluster: Cluster, place: str) -> None:
    """One start of the door for both: a vomsdir that names a VOMS server, and an issuer whose keys are in a file."""
    home, now, name = cluster.root / "organisation", now_ms(), urlsplit(place).path
    ca, signer_dn = CertificateAuthority.load(cluster.root / "certs"), "/DC=org/DC=chelonia/O=Dev/CN=voms.example"
    signer = ca.issue_host(signer_dn, ["voms.example"], now, key=make_key(KeyKind.P256))
    (home / "vomsdir" / "atlas").mkdir(parents=True)
    (home / "vomsdir" / "atlas" / "voms.example.lsc").write_text(f"{signer_dn}\n{subject_dn(ca.certificate)}\n")
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "1"}
    (home / "keys.json").write_text(json.dumps({"keys": [public]}))
    issuer = {"issuer": "https://tokens.example/", "audience": ["https://se"], "keys": str(home / "keys.json")}
    cluster.reconfigure(
        "core", tls={"voms_dir": str(home / "vomsdir")}, bartender={"issuers": [{**issuer, "base_path": name}]}
    )
    poll(
        lambda: cluster.request("PUT", f"{place}/f", body=b"bytes").status in (201, 204), 60,
        tolerate=OSError, what="the door serves again",
    )  # fmt: skip

    async def granted() -> None:
        async with cluster.client("user") as client:
            for path, whose in ((name, "/O=Token/OU=tokens.example/CN=joe"), (f"{name}/f", "VOMS:/atlas/prod")):
                await client.policy(path, whose, lambda _: "+read +addEntry")
            for path in (name, f"{name}/f"):
                await client.policy(path, "ALL", lambda _: "")

    asyncio.run(granted())
    other = cluster.files("user2")
    assert other.cert is not None
    assert other.key is not None
    user = Issued(tuple(x509.load_pem_x509_certificates(other.cert.read_bytes())), load_key(other.key))
    ac = Ac(user.certificate, signer, now, fqans=("/atlas", "/atlas/prod"))
    for proxy, status in ((ac, 200), (replace(ac, spoil=True), 403), (replace(ac, fqans=("/atlas",)), 403)):
        file = home / "proxy.pem"
        carrying(user, now, proxy.encode()).write_proxy(file)
        assert cluster.request("GET", f"{place}/f", Files(file, file)).status == status, proxy
    assert cluster.request("GET", f"{place}/f", "user2").status == 403

    said = {"iss": issuer["issuer"], "sub": "joe", "aud": "https://se", "wlcg.ver": "1.0", "exp": now // 1000 + 600}
    for claims, method, path, status in (
        ({"scope": "storage.create:/ storage.read:/"}, "PUT", "mine", 201),
        ({"scope": "storage.create:/ storage.read:/"}, "GET", "mine", 200),
        ({"scope": "storage.read:/mine"}, "GET", "mine", 200),
        ({"scope": "storage.read:/other"}, "GET", "mine", 403),
        ({"scope": "storage.read:/", "sub": "eve"}, "GET", "f", 403),
        ({"scope": "storage.read:/", "aud": "https://elsewhere"}, "GET", "mine", 401),
        ({"scope": "storage.read:/", "exp": now // 1000 - 600}, "GET", "mine", 401),
    ):
        token = jwt.encode({**said, **claims}, key, "ES256", headers={"kid": "1"})
        answer = cluster.request(
            method, f"{place}/{path}", "anonymous", body=b"by token" * (method == "PUT"),
            headers={"Authorization": f"Bearer {token}"},
        )  # fmt: skip
        assert answer.status == status, (claims, answer)
    asyncio.run(cluster.until_alive())  # of the core that was started again the next test wants them
