"""The page in a real Chromium: by share links, by a client certificate, and buckets for pages of other sites.

`make browser` runs it. By links, with and without JavaScript, it browses, uploads and is refused. By certificate it
downloads, restores, and opens the page of the cluster. It speaks WebDriver (W3C) to `chromedriver` by plain HTTP. A
message on the browser's console, such as a violation of the page's Content-Security-Policy, fails it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from chelonia.hosting.net.rpc_client import remote_files
from chelonia_clients.client import Client
from tests.cluster.harness import Cluster, Files
from tests.cluster.s3_faults import fronts_of
from tests.support.polling import poll

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
WAIT_S = 300
"""A browser on a busy machine takes a minute to start."""
DROP = """\
const dragged = new DataTransfer();
dragged.items.add(new File([new Uint8Array(3000000)], 'dropped'));
document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: dragged, bubbles: true, cancelable: true}));
return document.querySelector('#told progress').getAttribute('aria-label')"""
"""Drops a file on the page; returns the name that its progress bar has."""
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors"]


class Browser:
    """One window."""

    def __init__(self, driver: str, profile: Path, *, scripts: bool = True) -> None:
        prefs: dict[str, Any] = {
            "profile.managed_auto_select_certificate_for_urls": ['{"pattern": "*", "filter": {}}'],
            "download.default_directory": str(profile / "saved"),
        }
        if not scripts:
            prefs["profile.managed_default_content_settings.javascript"] = 2
        chrome: dict[str, Any] = {"args": [*OPTIONS, f"--user-data-dir={profile}"], "prefs": prefs}
        asked = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = driver + "/session"
        told = self._ask("", {"capabilities": {"alwaysMatch": asked}})
        self._session += f"/{told['sessionId']}"

    def _ask(self, what: str, body: dict[str, Any]) -> Any:
        answer = requests.post(self._session + what, json=body, timeout=WAIT_S).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url: str) -> None:
        self._ask("/url", {"url": url})

    def run(self, script: str) -> Any:
        return self._ask("/execute/sync", {"script": script, "args": []})

    def choose(self, selector: str, file: Path) -> None:
        """Give a file to an input of the page."""
        found = self._ask("/element", {"using": "css selector", "value": selector})
        self._ask(f"/element/{found[ELEMENT]}/value", {"text": str(file)})

    def texts(self, xpath: str) -> list[str]:
        """The texts of elements, read by the driver, which needs no script of the page's."""
        found = self._ask("/elements", {"using": "xpath", "value": xpath})
        return [str(self._get(f"/element/{each[ELEMENT]}/text")) for each in found]

    def press(self, xpath: str) -> None:
        """Follow a link, or press a button, as the keyboard does."""
        asked = {"using": "xpath", "value": xpath}
        (found,) = poll(lambda: self._ask("/elements", asked), WAIT_S, what=f"{xpath} is on the page")
        self._ask(f"/element/{found[ELEMENT]}/value", {"text": "\ue007"})

    def _get(self, what: str) -> Any:
        return requests.get(self._session + what, timeout=WAIT_S).json()["value"]

    def agrees(self) -> None:
        """Confirm the page's question."""
        asked = poll(self._question, WAIT_S, what="the page asks")
        assert "Replace it?" in asked, asked
        self._ask("/alert/accept", {})

    def _question(self) -> str:
        told = self._get("/alert/text")
        return "" if isinstance(told, dict) else str(told)

    def names(self) -> list[str]:
        """The entries that the page shows."""
        script = "return [...document.querySelectorAll('tbody a')].map(each => each.textContent)"
        return list(self.run(script))

    def complaints(self) -> list[str]:
        """The browser's console messages, but the one about a missing icon."""
        told = self._ask("/se/log", {"type": "browser"})
        return [line["message"] for line in told if "favicon" not in line["message"]]

    def close(self) -> None:
        requests.delete(self._session, timeout=WAIT_S)


@contextmanager
def browser(scratch: Path, *, scripts: bool = True) -> Iterator[Browser]:
    """A window of a browser whose home is `scratch`: it has no certificate but that of `with_certificate`."""
    home = {**os.environ, "HOME": str(scratch)}
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True, env=home) as process:
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if "successfully on port" in line)
            port = line.split("port ")[1].strip().rstrip(".")
            window = Browser(f"http://127.0.0.1:{port}", scratch / f"profile-{scripts}", scripts=scripts)
            try:
                yield window
            finally:
                window.close()
        finally:
            process.terminate()


async def link(cluster: Cluster, name: str, *, upload: bool) -> str:
    """A share link of the user's."""
    async with cluster.ports("user") as ports:
        files = remote_files(ports.link, [cluster.info["bartender"][0]["url"]])
        shared = await Client(ports.bartender, files, ports.link.client).share(name, 600_000, upload=upload)
        return shared.link


def made(cluster: Cluster, method: str, path: str, body: bytes = b"") -> None:
    """Make a file or collection at the door."""
    answer = cluster.request(method, f"{cluster.files_url}{path}", body=body)
    assert answer.status == 201, (method, path, answer)


def look(cluster: Cluster, scratch: Path) -> None:
    """Act as a colleague with a link."""
    file = scratch / "a name & <b>.txt"
    file.write_bytes(os.urandom(3_000_000))
    picture = b'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><script>alert(1)</script></svg>'
    made(cluster, "MKCOL", "/box")
    for name, body in (("seen", b"seen"), ("plot.svg", picture), ("log.txt", b"<script>alert(1)</script>")):
        made(cluster, "PUT", f"/box/{name}", body)
    with browser(scratch) as window:
        window.open(asyncio.run(link(cluster, "/box", upload=False)))
        assert window.names() == ["log.txt", "view", "plot.svg", "view", "seen"], window.names()
        assert window.run("return document.getElementById('drop') === null")
        text, seen = window.run("return [...document.querySelectorAll('a[aria-label]')].map(each => each.href)")
        window.open(text)
        assert window.run("return document.querySelector('pre').textContent") == "<script>alert(1)</script>"
        window.open(seen)
        wide = "return document.querySelector('img').naturalWidth"
        poll(lambda: window.run(wide) == 40, WAIT_S, what="the picture is shown")
        window.open(asyncio.run(link(cluster, "/box", upload=True)))
        assert window.run("return !document.getElementById('drop').hidden"), "the script runs"
        window.choose("#pick", file)
        poll(lambda: file.name in window.names(), WAIT_S, what="the upload is on the page")
        assert (
            cluster.request("GET", f"{cluster.files_url}/box/a%20name%20&%20%3Cb%3E.txt?proxy").body
            == file.read_bytes()
        )
        assert window.run(DROP) == "dropped", "a bar says how far it is"
        poll(lambda: "dropped" in window.names(), WAIT_S, what="the dropped file is on the page")
        assert cluster.request("GET", f"{cluster.files_url}/box/dropped?proxy").body == bytes(3_000_000)
        assert window.complaints() == []
        window.choose("#pick", file)
        window.agrees()
        told = "return document.getElementById('told').textContent"
        poll(
            lambda: "precondition" in window.run(told) or "denied" in window.run(told),
            WAIT_S,
            what="it is refused again",
        )
        refused = [line for line in window.complaints() if "412" not in line and "403" not in line]
        assert refused == [], refused


def look_without_scripts(cluster: Cluster, scratch: Path) -> None:
    """Act as a user whose browser runs no scripts, with the keyboard alone."""
    odd, added = "  two  blanks & <i>#?%.txt", scratch / "added & <b>.txt"
    added.write_bytes(os.urandom(3_000_000))
    made(cluster, "MKCOL", "/plain")
    made(cluster, "MKCOL", "/plain/in%20it")
    made(cluster, "PUT", f"/plain/in%20it/{quote(odd)}", b"here")
    shared = asyncio.run(link(cluster, "/plain", upload=True))
    with browser(scratch, scripts=False) as window:
        window.open(shared)
        assert window.texts("//td//bdi") == ["in it/"]
        window.press("//a[.='in it/']")
        assert window.texts("//td//bdi") == [odd]
        window.press("//a[starts-with(@aria-label, 'View')]")
        assert window.texts("//pre") == ["here"]
        window.press("//nav/a[.='plain']")
        assert window.texts("//td//bdi") == ["in it/"]
        assert window.texts("//nav/a[.='Chelonia']") == [], "no link leads where the token does not"
        window.choose("#pick", added)
        window.press("//form[@id='drop']//button")
        poll(lambda: window.texts("//td//bdi") == [added.name, "in it/"], WAIT_S, what="the file is on the page")
        answer = cluster.request("GET", f"{cluster.files_url}/plain/{quote(added.name)}?proxy")
        assert answer.body == added.read_bytes()
        for url, told in (
            (shared.replace("/plain/?", "/plain/none?"), "not-found"),
            (shared[:-4] + "AAAA", "Copy the link whole"),
        ):
            window.open(url)
            assert told in " ".join(window.texts("//main")), (url, window.texts("//body"))
        refused = [line for line in window.complaints() if not any(code in line for code in ("404", "401"))]
        assert refused == [], refused


def with_certificate(home: Path, who: Files) -> Path:
    """Make a home whose browser has a user's certificate."""
    (home / ".pki/nssdb").mkdir(parents=True)
    store, bundle = f"sql:{home}/.pki/nssdb", str(home / "own.p12")
    made = ["openssl", "pkcs12", "-export", "-in", str(who.cert), "-inkey", str(who.key), "-out", bundle]
    for argv in (
        [*made, "-passout", "pass:", "-name", "own"],
        ["certutil", "-d", store, "-N", "--empty-password"],
        ["pk12util", "-d", store, "-i", bundle, "-W", ""],
    ):
        subprocess.run(argv, check=True, capture_output=True, timeout=60)
    return home


def look_by_certificate(cluster: Cluster, scratch: Path) -> None:
    """Act as an owner and an administrator."""
    data, name = os.urandom(3_000_000), "large & \u00fc.html"
    made(cluster, "MKCOL", "/mine")
    made(cluster, "PUT", f"/mine/{quote(name)}", data)
    made(cluster, "PUT", "/mine/gone", b"gone")
    with browser(with_certificate(scratch / "owner", cluster.files("user"))) as window:
        window.open(f"{cluster.files_url}/mine/")
        assert "/CN=Jane Doe" in window.texts("//footer")[0]
        window.press(f"//td/a[.='{name}']")
        saved = scratch / "owner/profile-True/saved" / name
        poll(lambda: saved.exists() and saved.read_bytes() == data, WAIT_S, what="it is saved by its name")
        assert cluster.request("DELETE", f"{cluster.files_url}/mine/gone").status == 204  # kept for 10 s here
        window.press("//footer/a[.='deleted from here']")
        window.press("//button[@aria-label='Bring back gone']")
        poll(lambda: window.texts("//td//bdi") == ["gone", name], WAIT_S, what="it is back")
        window.press("//form[@id='share']//button")
        poll(lambda: "?authz=" in "".join(window.texts("//main//a")), WAIT_S, what="the link is shown")
        assert window.texts("//a[.='the cluster']") == []
        assert window.complaints() == []
    with browser(with_certificate(scratch / "administrator", cluster.files("admin"))) as window:
        window.open(f"{cluster.files_url}/")
        window.press("//footer/a[.='the cluster']")
        window.press("//footer/a[.='hold it still']")
        assert window.texts("//caption")[:2] == ["Healing", "Shepherds"]
        assert window.texts("//table[caption='Shepherds']//td[2]") == ["alive"] * 3
        assert window.complaints() == []


class _Blank(BaseHTTPRequestHandler):
    """A page of another site."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a viewer</title>")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def look_across(cluster: Cluster, scratch: Path) -> None:
    """Read and write a bucket from a page of another origin: allowed by its rule, refused without one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Blank) as site, browser(scratch / "across") as window:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{site.server_port}"
        front = fronts_of(cluster, scratch / "ca.pem")[0]
        for bucket in ("ruled", "silent"):
            front.create_bucket(Bucket=bucket, ACL="public-read")
            front.put_object(Bucket=bucket, Key="k", Body=b"read by a viewer", ACL="public-read")
        rule = {"AllowedOrigins": [page], "AllowedMethods": ["GET", "PUT"], "AllowedHeaders": ["*"]}
        rules = {"CORSRules": [rule | {"ExposeHeaders": ["ETag"]}]}
        front.put_bucket_cors(Bucket="ruled", CORSConfiguration=rules)
        window.open(page)

        def fetched(url: str, options: str) -> Any:
            told = "async r => [r.status, await r.text(), r.headers.get('ETag') !== null]"
            return window.run(f"return fetch({url!r}, {options}).then({told}).catch(e => e.message)")

        where, some = cluster.info["s3"][0], "{headers: {Range: 'bytes=0-3', 'X-Viewer': '1'}}"
        assert fetched(f"{where}/ruled/k", some) == [206, "read", True]
        assert fetched(f"{where}/silent/k", some) == "Failed to fetch"
        put = front.generate_presigned_url("put_object", {"Bucket": "ruled", "Key": "new"})
        assert fetched(put, "{method: 'PUT', body: 'by a page'}")[:2] == [200, ""]
        assert fetched(put.replace("/new?", "/other?"), "{method: 'PUT', body: 'x'}")[0] == 403, "the page is told why"
        assert front.get_object(Bucket="ruled", Key="new")["Body"].read() == b"by a page"
        assert fetched(front.generate_presigned_url("delete_object", {"Bucket": "ruled", "Key": "new"}),
                       "{method: 'DELETE'}") == "Failed to fetch"  # fmt: skip


def main() -> int:
    needed = ("chromium", "chromedriver", "certutil", "pk12util")
    missing = [name for name in needed if not shutil.which(name)]
    if missing:
        print(f"not installed: {', '.join(missing)} (apt-get install chromium chromium-driver libnss3-tools)")
        return 1
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        cluster = Cluster(scratch / "cluster", shepherds=3, replicas=1)
        cluster.start()
        try:
            look(cluster, scratch)
            look_without_scripts(cluster, scratch)
            look_by_certificate(cluster, scratch)
            look_across(cluster, scratch)
        finally:
            cluster.stop()
    print("the page works in Chromium, and buckets for pages of other sites")
    return 0


if __name__ == "__main__":
    sys.exit(main())
