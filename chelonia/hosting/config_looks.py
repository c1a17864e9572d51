"""Compares a configuration with this host and its files. `config` finds the problems that the text alone shows.

Problems keep the node from its start: missing files, a key of another certificate. Warnings may pass by themselves:
names without an address, an expired CRL. A DN in another spelling keeps its owner out, and nobody else.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.hosting.config import NodeConfig, bad, dns_of, read_secret, urls_of
from chelonia.hosting.net.credentials import explain_file
from chelonia.hosting.net.identity import canonical_dn, identity_of_chain, is_for, names_of
from chelonia.hosting.net.key_sets import read_keys
from chelonia.hosting.net.tls import UNLIMITED, TlsSettings, check_key_mode, load_own_chain, load_trust


def local_problems(config: NodeConfig, now_ms: Ms) -> Iterator[CheloniaError]:
    """Yield problems with which the node could not start, or reach its files, as far as this host can tell."""
    missing = list(_missing_files(config))
    yield from missing
    yield from _unwritable_paths(config)
    if not any(problem.subject in ("tls.cert", "tls.key") for problem in missing):
        yield from _wrong_key(config, now_ms)


def local_warnings(config: NodeConfig, now_ms: Ms) -> Iterator[CheloniaError]:
    """Yield problems that may pass by themselves, or are another host's: a node starts and goes on with them."""
    trust = load_trust(TlsSettings(ca_dir=Path(config.tls.ca_dir)))
    for reason in explain_file(Path(config.tls.cert), trust, now_ms):
        yield bad(
            "tls.ca_dir", f"other nodes do not take {config.tls.cert}, nor this one theirs, if theirs are so: {reason}"
        )
    yield from (bad("tls.ca_dir", f"CA {ca}: {UNLIMITED}") for ca in trust.unlimited)
    yield from _other_spellings(config)
    yield from _other_names(config)
    yield from _unresolved_names(config)


def _missing_files(config: NodeConfig) -> Iterator[CheloniaError]:
    secret = config.bartender.token_key_file if config.bartender else ""
    looks: tuple[tuple[str, str, Callable[[Path], object]], ...] = (
        ("tls.cert", config.tls.cert, Path.read_bytes),
        ("tls.key", config.tls.key, check_key_mode),
        ("tls.key", config.tls.key, Path.read_bytes),
        ("tls.ca_dir", config.tls.ca_dir, lambda path: load_trust(TlsSettings(ca_dir=path))),
        ("bartender.token_key_file", secret, read_secret),
        *(
            (f"bartender.issuers[{index}].{key}", name, look)
            for index, each in enumerate(config.bartender.issuers if config.bartender else ())
            for key, name, look in (
                ("keys", "" if each.keys.startswith("https://") else each.keys, read_keys),
                ("ca_file", each.ca_file, lambda path: ssl.create_default_context(cafile=path)),
            )
        ),
    )
    last_key = ""
    for key, name, look in looks:
        if not name or key == last_key:
            continue
        try:
            look(Path(name))
        except OSError as error:
            last_key = key
            cure = ": the account that runs the node has to own it" if isinstance(error, PermissionError) else ""
            yield bad(key, f"{name}: {error.strerror or error}{cure}")
        except CheloniaError as error:
            last_key = key
            yield bad(key, f"{name}: {error.cause}")


def _unwritable_paths(config: NodeConfig) -> Iterator[CheloniaError]:
    """Yield problems of data directories and log files that this account can neither write nor make."""
    places = [
        (f"{key}.data_dir", section.data_dir) for key in ("ahash", "shepherd") if (section := getattr(config, key))
    ]
    for key, name in (*places, ("log.audit_file", config.log.audit_file), ("log.access_file", config.log.access_file)):
        path = Path(name).absolute()
        makes = (path, *path.parents) if key.endswith("dir") else (path, path.parent)  # a log's directory is not made
        found = next((each for each in makes if os.path.exists(each)), None)
        if name and found is None:
            yield bad(key, f"{path.parent}: No such file or directory")
        elif name and found is not None and not os.access(found, os.W_OK if found.is_file() else os.W_OK | os.X_OK):
            cause = "the account that runs the node has to own it, and its unit to name it in ReadWritePaths="
            yield bad(key, f"{found} cannot be written: {cause}")


def _wrong_key(config: NodeConfig, now_ms: Ms) -> Iterator[CheloniaError]:
    """Yield a problem if the key is of another certificate, or that one is not valid now or not the replica's. Another
    problem is a CA that may not vouch for services."""
    own = TlsSettings(Path(config.tls.cert), Path(config.tls.key), ca_dir=Path(config.tls.ca_dir))
    try:
        identity = identity_of_chain(load_own_chain(own, now_ms))
    except CheloniaError as error:
        yield bad("tls.key" if error.kind is Kind.BAD_CONFIG else "tls.cert", f"{error.subject}: {error.cause}")
        return
    dn, issuers = identity.dn, config.trust.issuers
    if issuers and identity.issuer not in issuers:
        yield bad("trust.issuers", f"{config.tls.cert} is of {identity.issuer}, which other nodes refuse: name it too")
    replicas, own_id = (config.ahash.replicas, config.ahash.replica_id) if config.ahash else ((), 0)
    for entry in replicas:
        if entry.id == own_id and entry.dn != dn:
            cause = f"replica {entry.id} is to be {entry.dn}, {config.tls.cert} is of {dn}: renew with the same subject"
            yield bad("ahash.replicas", cause)


def _other_spellings(config: NodeConfig) -> Iterator[CheloniaError]:
    """Yield problems of DNs that are not spelled as those of certificates are, with which they are compared."""
    for key, dn in dns_of(config):
        try:
            spelled = canonical_dn(dn)
        except CheloniaError as error:
            yield bad(key, f"{dn!a} is nobody's: {error.cause}")
            continue
        if spelled != dn:
            yield bad(key, f"{dn!a} is nobody's: a certificate's subject is compared as {spelled}")


def _other_names(config: NodeConfig) -> Iterator[CheloniaError]:
    """Yield problems of hosts in this node's own URLs that its certificate does not name."""
    cert = x509.load_pem_x509_certificates(Path(config.tls.cert).read_bytes())[0]
    for key, url in urls_of(config):
        host = urlsplit(url).hostname or ""
        if not key.startswith("trust") and key.endswith((".id", ".data_url")) and not is_for(cert, host):
            cause = (
                f"{config.tls.cert} names {', '.join(names_of(cert)) or 'no host'}, not {host}: nobody connects there"
            )
            yield bad(key, cause)


def _unresolved_names(config: NodeConfig) -> Iterator[CheloniaError]:
    """Yield problems of hosts in the configuration's URLs that have no address."""
    checked: set[str] = set()
    for key, url in urls_of(config):
        host = urlsplit(url).hostname
        if not host or host in checked:
            continue
        checked.add(host)
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            cause = f"{url}: {host} has no address ({error.strerror or error}); is it spelled so in DNS or /etc/hosts?"
            yield bad(key, cause)
