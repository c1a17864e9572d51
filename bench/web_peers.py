"""nginx and Apache as Debian has them, both with WebDAV, over TLS with a cluster's certificate, on their own files.

Each serves one directory below `scratch` on a port of its own: one process that serves, as a Bartender is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import free_port, until_listening

MODULES = Path("/usr/lib/nginx/modules/ngx_http_dav_ext_module.so"), Path("/usr/lib/apache2/modules")

NGINX = """\
load_module {dav};
daemon off; worker_processes 1; pid {place}/nginx.pid; error_log {place}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 75; default_type application/octet-stream;
  sendfile on; client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi; client_max_body_size 0;
  server {{
    listen 127.0.0.1:{port} ssl backlog=4096; ssl_certificate {cert}; ssl_certificate_key {key}; root {root};
    location / {{ dav_methods PUT DELETE MKCOL COPY MOVE; dav_ext_methods PROPFIND OPTIONS; }}
  }}
}}
"""
APACHE = """\
ServerRoot {place}
PidFile {place}/apache.pid
ErrorLog {place}/apache.log
ServerName localhost
Listen 127.0.0.1:{port}
{modules}
StartServers 1
ServerLimit 1
ThreadsPerChild 64
AsyncRequestWorkerFactor 20
MaxRequestWorkers 64
MaxConnectionsPerChild 0
MaxKeepAliveRequests 0
KeepAliveTimeout 75
DavLockDB {place}/locks
DocumentRoot {root}
SSLEngine on
SSLCertificateFile {cert}
SSLCertificateKeyFile {key}
<Directory {root}>
  Dav On
  Require all granted
</Directory>
"""
LOADED = ("mpm_event", "authn_core", "authz_core", "dav", "dav_fs", "ssl")


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's server: `root` on `port`, from the process `first` and its children."""

    port: int
    root: Path
    first: int

    def pids(self) -> tuple[int, ...]:
        told = Path(f"/proc/{self.first}/task/{self.first}/children").read_text()
        return (self.first, *map(int, told.split()))


def missing() -> str:
    """The programs and modules that are not installed here, "" when all are."""
    there = {"nginx": shutil.which("nginx"), "apache2": shutil.which("apache2")}
    absent = [name for name, path in there.items() if not path] + [str(path) for path in MODULES if not path.exists()]
    return ", ".join(absent)


@contextmanager
def peers(scratch: Path, cert: Path, key: Path) -> Iterator[dict[str, Peer]]:
    """Both, until the end. Raises: NoPeer."""
    scratch.chmod(0o755)  # Apache's worker has to get there
    with ExitStack() as stack:
        yield {name: stack.enter_context(_peer(name, scratch / name, cert, key)) for name in ("nginx", "apache")}


@contextmanager
def _peer(name: str, place: Path, cert: Path, key: Path) -> Iterator[Peer]:
    root, config, port = place / "root", place / "config", free_port()
    root.mkdir(parents=True)
    modules = "\n".join(f"LoadModule {each}_module {MODULES[1]}/mod_{each}.so" for each in LOADED)
    told = {"place": place, "root": root, "port": port, "cert": cert, "key": key, "dav": MODULES[0], "modules": modules}
    if name == "nginx":
        config.write_text(("user root;\n" if os.geteuid() == 0 else "") + NGINX.format(**told))
        command = ["nginx", "-c", str(config), "-p", str(place), "-e", str(place / "nginx.log")]
    else:
        if as_root := os.geteuid() == 0:  # its worker never is
            for each in (place, root):
                shutil.chown(each, "www-data", "www-data")
        config.write_text(("User www-data\nGroup www-data\n" if as_root else "") + APACHE.format(**told))
        command = ["apache2", "-D", "FOREGROUND", "-f", str(config)]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until_listening(process, port, place / "log")
        yield Peer(port, root, process.pid)
    finally:
        process.terminate()
        process.wait(20)
