"""The verb `setup`: writes down, under a name, where a cluster is and with which credential it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import write_file
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.connect import home
from chelonia_clients.session import Session
from chelonia_clients.settings import TOML_KEYS, checked_url, is_name, parse_replicas, read_toml, toml_path


async def setup(session: Session, arguments: Arguments) -> None:
    """Print the known clusters, or write one down from the options of this command (`setup`)."""
    path = toml_path(session.environ, home())
    if path is None:
        raise CheloniaError(Kind.BAD_CONFIG, "setup", cause="this user has no home directory to keep client.toml in")
    document = read_toml(path)
    if not arguments.operands:
        _show(session, path, document)
        return
    [name] = arguments.operands
    if not is_name(name):
        raise UsageError(f"a cluster is called by letters, digits, - and _, not {name!r}")
    clusters = document.setdefault("clusters", {})
    given = _given(session, arguments)
    if not given and name not in clusters:
        raise UsageError("a new cluster needs at least the URL of a Bartender: chelonia setup NAME --bartender URL")
    clusters[name] = {**clusters.get(name, {}), **given}
    if arguments.has("--default") or len(clusters) == 1:
        document["default"] = name
    file = path.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, _toml(document).encode(), file.stat().st_mode & 0o777 if file.exists() else 0o644)
    session.out.write(f"{name}: written to {path}" + (" (the default)" if document.get("default") == name else ""))
    session.out.write(f"use it by --cluster {name}, or CHELONIA_CLUSTER={name}; `chelonia doctor` checks it")
    session.out.result(cluster=name, file=str(path), settings=clusters[name], default=document.get("default") == name)


def _given(session: Session, arguments: Arguments) -> dict[str, Any]:
    options = session.options
    given: dict[str, Any] = {
        key: [checked_url(url, f"--{key}") for url in " ".join(options.flags[f"--{key}"]).split()]
        for key in ("bartender", "librarian", "ahash")
        if options.has(f"--{key}")
    }
    for key in ("proxy", "cert", "key", "ca_dir", "ca_file"):
        if options.has(flag := "--" + key.replace("_", "-")):
            given[key] = str(Path(options.value(flag)).expanduser().resolve())
    if arguments.has("--replicas"):
        given["replicas"] = parse_replicas(arguments.value("--replicas"), "--replicas")
    return given


def _show(session: Session, path: Path, document: dict[str, Any]) -> None:
    clusters = document.get("clusters", {})
    if not clusters:
        session.out.write(f"{path} names no cluster; `chelonia setup NAME --bartender URL` adds one")
    for name, settings in sorted(clusters.items()):
        mark = "*" if document.get("default") == name else " "
        where = settings.get("bartender", document.get("bartender", ""))
        session.out.write(f"{mark} {name}  {' '.join(where) if isinstance(where, list) else where}")
        session.out.result(cluster=name, settings=settings, default=mark == "*")


def _toml(document: dict[str, Any]) -> str:
    lines = [f"{key} = {_value(document[key])}" for key in ("default", *sorted(TOML_KEYS)) if key in document]
    for name, settings in sorted(document.get("clusters", {}).items()):
        lines += [
            "",
            f"[clusters.{name}]",
            *(f"{key} = {_value(value)}" for key, value in sorted(settings.items())),
        ]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """Return a value as TOML has it: strings, numbers and lists of strings as JSON, but no escapes of half a letter."""
    return json.dumps(value, ensure_ascii=False)
