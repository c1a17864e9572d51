"""Foreign servers on loopback, for third-party copies. Each has one file, `f`, and accepts more.

XRootD is open to the user's certificate alone, and its files have checksums. nginx and Apache are open to all: both
refuse proxies. nginx answers a token's absence with 401 below `/closed`, and redirects from `/far` to itself over TLS
1.2 under another port. From apt: apache2-bin nginx-core xrootd-server; those that are not installed are left out.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography import x509

from chelonia.hosting.net.identity import subject_dn
from tests.cluster.harness import Cluster
from tests.support.polling import poll

XROOTD, NGINX, APACHE = 10943, 10946, 10948
XROOTD_CONF = """\
all.export /
oss.localroot {root}/store
all.adminpath {root}/admin
all.pidpath {root}/admin
xrd.protocol http:{port} libXrdHttp.so
xrd.port {next}
xrd.tls {root}/cert.pem {root}/key.pem
xrd.tlsca certdir {ca_dir}
http.exthandler xrdtpc libXrdHttpTPC.so
http.gridmap {root}/gridmap
ofs.authorize 1
acc.authdb {root}/authdb
xrootd.chksum adler32
"""
NGINX_CONF = """\
user daemon daemon; daemon off; pid {root}/admin/pid; error_log {root}/admin/log;
events {{ }}
http {{
    access_log off; client_body_temp_path {root}/admin/body; client_max_body_size 0;
    ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem;
    gzip on; gzip_types *; root {root}/store;
    server {{
        listen 127.0.0.1:{port} ssl;
        location / {{ dav_methods PUT DELETE MKCOL; create_full_put_path on; }}
        location /closed/ {{ alias {root}/store/; if ($http_authorization != "Bearer known") {{ return 401; }} }}
        location /far/ {{ rewrite ^/far/(.*)$ https://localhost:{next}/$1 redirect; }}
    }}
    server {{ listen 127.0.0.1:{next} ssl; ssl_protocols TLSv1.2; }}
}}
"""
APACHE_CONF = """\
ServerName localhost
User daemon
Group daemon
Listen 127.0.0.1:{port}
PidFile {root}/admin/pid
ErrorLog {root}/admin/log
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule mime_module {modules}/mod_mime.so
LoadModule ssl_module {modules}/mod_ssl.so
LoadModule dav_module {modules}/mod_dav.so
LoadModule dav_fs_module {modules}/mod_dav_fs.so
TypesConfig /dev/null
DocumentRoot {root}/store
DAVLockDB {root}/admin/locks
SSLEngine on
SSLCertificateFile {root}/cert.pem
SSLCertificateKeyFile {root}/key.pem
<Directory {root}/store>
    Dav on
    Require all granted
</Directory>
"""
MODULES = "/usr/lib/apache2/modules"


@contextmanager
def far_ends(scratch: Path, cluster: Cluster, data: bytes) -> Iterator[dict[str, tuple[str, Path]]]:
    """The installed ones: URL and directory of files of each, by its program."""
    kinds: dict[str, tuple[int, str, Callable[[Path], list[str]]]] = {
        "xrootd": (
            XROOTD,
            XROOTD_CONF,
            lambda conf: ["-c", str(conf), "-l", f"{conf.parent}/log", "-R", "daemon", "-n", "conform"],
        ),
        "nginx": (NGINX, NGINX_CONF, lambda conf: ["-c", str(conf), "-e", f"{conf.parent}/admin/log"]),
        "apache2": (APACHE, APACHE_CONF, lambda conf: ["-f", str(conf), "-D", "FOREGROUND"]),
    }
    with ExitStack() as stack:
        found = {}
        for name, (port, text, options) in kinds.items():
            if program := shutil.which(name):
                root = scratch / name
                _lay_out(root, cluster, data)
                conf = root / "conf"
                conf.write_text(
                    text.format(root=root, port=port, next=port + 1, ca_dir=cluster.ca_dir, modules=MODULES)
                )
                stack.enter_context(_running([program, *options(conf)], root, port))
                found[name] = f"https://localhost:{port}", root / "store"
        yield found


def _lay_out(root: Path, cluster: Cluster, data: bytes) -> None:
    """Write the files that any of them needs, readable for their user."""
    certs = cluster.root / "certs"
    for name in ("store", "admin"):
        (root / name).mkdir(parents=True)
    (root / "store" / "f").write_bytes(data)
    shutil.copy(certs / "core-cert.pem", root / "cert.pem")
    shutil.copy(certs / "core-key.pem", root / "key.pem")
    user = x509.load_pem_x509_certificate(cluster.files("user").cert.read_bytes())  # type: ignore[union-attr]
    (root / "gridmap").write_text(f'"{subject_dn(user)}" user\n')
    (root / "authdb").write_text("u user / a\n")
    for path in (root, *root.rglob("*")):
        shutil.chown(path, "daemon", "daemon")


@contextmanager
def _running(argv: list[str], root: Path, port: int) -> Iterator[None]:
    process = subprocess.Popen(argv, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        poll(lambda: _answers(port), 60.0, what=f"{argv[0]} answers")
        yield
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), 1.0).close()
    except OSError:
        return False
    return True
