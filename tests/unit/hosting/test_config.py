"""The configuration: clear refusals, and a conf/ that is true about every key."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.values import replace
from chelonia.hosting import config as configuration
from chelonia.hosting.ahash_replica import configured
from chelonia.hosting.config import (
    AHashSection,
    BartenderSection,
    LibrarianSection,
    ListenSection,
    NodeConfig,
    ShepherdSection,
    default_of,
    load_config,
    parse_config,
    read_secret,
    render_config,
    settings_keys,
    trusted,
)
from tests.support.failing import fails

CONF = Path(__file__).parents[3] / "conf"
SECTIONS: dict[str, type[Any]] = {
    "ahash": AHashSection,
    "librarian": LibrarianSection,
    "bartender": BartenderSection,
    "shepherd": ShepherdSection,
}
SMALL = """
[node]
name = "a"
[[listen]]
port = 1
serves = ["ahash"]
[ahash]
id = "https://a/AHash"
data_dir = "/tmp/a"
"""


def refusal(text: str) -> CheloniaError:
    with fails(Kind.BAD_CONFIG) as caught:
        parse_config(tomllib.loads(text))
    return caught.value


@pytest.mark.parametrize("role", list(SECTIONS))
def test_the_manual_loads_and_names_every_key_with_its_default(role: str) -> None:
    table = tomllib.loads((CONF / f"{role}.toml").read_text())
    load_config(CONF / f"{role}.toml")
    tuning = table[role].pop("tuning")
    assert list(tuning) == list(settings_keys(SECTIONS[role]))
    for name, item in settings_keys(SECTIONS[role]).items():
        default = default_of(item)
        assert tuning[name] == (list(default) if isinstance(default, tuple) else default), f"{role}.tuning.{name}"
    for item in dataclasses.fields(NodeConfig):
        if item.name in SECTIONS and item.name != role:
            assert item.name not in table
        elif item.name == "listen":
            assert all(set(listener) == keys(ListenSection) for listener in table["listen"])
        else:
            kind = SECTIONS.get(item.name) or type(default_of(item))
            kind = configuration.NodeSection if item.name == "node" else kind
            assert set(table[item.name]) == keys(kind), item.name
            check_defaults(kind, table[item.name], item.name)


def keys(kind: type[Any]) -> set[str]:
    return {item.name for item in dataclasses.fields(kind) if item.name != "tuning"}


def check_defaults(kind: type[Any], table: dict[str, Any], path: str) -> None:
    examples = ("trust", "ahash", "librarian", "bartender", "shepherd")
    for item in dataclasses.fields(kind):
        default = default_of(item)
        if path not in examples and default is not dataclasses.MISSING:
            assert table[item.name] == default, f"{path}.{item.name}"


@pytest.mark.parametrize("role", list(SECTIONS))
def test_every_key_of_the_manual_is_explained(role: str) -> None:
    seen: set[str] = set()
    before = ""
    for line in (CONF / f"{role}.toml").read_text().splitlines():
        name, equals, _ = line.partition(" = ")
        if equals and not line.startswith((" ", "#", "[")):
            assert before.startswith("#") or name in seen, name
            seen.add(name)
        before = line


@pytest.mark.parametrize("role", list(SECTIONS))
def test_what_is_printed_is_read_back_the_same(role: str) -> None:
    config = load_config(CONF / f"{role}.toml")
    again = parse_config(tomllib.loads(render_config(config)))
    assert replace(again, **{role: None}) == replace(config, **{role: None})
    assert render_config(again) == render_config(config)


def test_a_small_configuration_is_enough() -> None:
    config = parse_config(tomllib.loads(SMALL))
    assert config.ahash is not None
    assert config.ahash.tuning == {}
    assert config.limits.connections_max == 2000


LIBRARIAN = '[librarian]\nid = "x"\nahash = []\n'
SHEPHERD = '[shepherd]\nid = "x"\ndata_url = "https://x"\ndata_dir = "d"\nlibrarians = ["https://l/Librarian"]\n'
SLOWEST = "shepherd.tuning.copy_bytes_per_s_max"
SCRUB = "shepherd.tuning.scrub_bytes_per_s_max"
BARTENDER = '[bartender]\nid = "x"\ntoken_key_file = "k"\nlibrarians = ["https://l/Librarian"]\n'
COPIES = "librarian.tuning.copies_per_node_max"
DURABLE = "bartender.tuning.durable_copies"


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        (("name =", "nmae ="), "node.nmae", "did you mean 'name'?"),
        (("[ahash]", "[ahash]\ntuning.upkeep_interval = 1"), "ahash.tuning.upkeep_interval", "upkeep_interval_ms"),
        (("[ahash]", "[ahahs]"), "ahahs", "did you mean 'ahash'?"),
        (("port = 1", 'port = "1"'), "listen[0].port", "a whole number is wanted"),
        (("port = 1", "port = true"), "listen[0].port", "a whole number is wanted"),
        (("port = 1", "port = -1"), "listen[0].port", "at least 0"),
        (("port = 1", "port = 70000"), "listen[0].port", "up to 65535"),
        (('["ahash"]', '"ahash"'), "listen[0].serves", "a list"),
        (('["ahash"]', '["shepherd"]'), "listen[0].serves", "not hosted here"),
        (('["ahash"]', '["ahsah"]'), "listen[0].serves", "none of"),
        (("port = 1", 'port = 1\nclient_certificate = "optional"'), "listen[0].client_certificate", "required"),
        (("port = 1", "port = 1\nshared = true"), "listen[0].shared", "bartender, files, s3 alone"),
        (('id = "https://a/AHash"', ""), "ahash.id", "must be given"),
        (("[node]", f"{LIBRARIAN}[node]"), "", ""),
        (("[node]", '[bartender]\nid = "x"\ntoken_key_file = "k"\n[node]'), "bartender.librarians", "no Librarian"),
        (("[node]", '[log]\nformat = "xml"\n[node]'), "log.format", "text"),
        (("[ahash]", "[ahash]\ntuning.cache_bytes = 256"), "ahash.tuning.cache_bytes", "from 16777216 (16 MiB)"),
        (("[ahash]", f"[ahash]\ntuning.cache_bytes = {1 << 41}"), "ahash.tuning.cache_bytes", "(1024 GiB)"),
        (("[ahash]", "[ahash]\ntuning.round_trip_ms = 99"), "ahash.tuning.round_trip_ms", "from 100 to 1000 ms"),
        (("[ahash]", "[ahash]\ntuning.round_trip_ms = 1001"), "ahash.tuning.round_trip_ms", "the same on every"),
        (("[ahash]", '[ahash]\ntuning.cache_bytes = "1 GB"'), "ahash.tuning.cache_bytes", "a whole number"),
        (("[node]", f"{LIBRARIAN}tuning.copies_per_node_max = 17\n[node]"), COPIES, "1 to 16 repair copies at once"),
        (("[node]", f"{SHEPHERD}tuning.copy_bytes_per_s_max = 50\n[node]"), SLOWEST, "at least 320000 bytes/s"),
        (("[node]", f"{SHEPHERD}tuning.copy_bytes_per_s_max = -1\n[node]"), SLOWEST, "at least 0"),
        (("[node]", f"{SHEPHERD}tuning.scrub_bytes_per_s_max = 0\n[node]"), SCRUB, "at least 1"),
        (("[node]", f"{SHEPHERD}tuning.copy_tries = 0\n[node]"), "shepherd.tuning.copy_tries", "at least 1"),
        (
            ("[node]", f"{SHEPHERD}tuning.unknown_retry_ms = 0\n[node]"),
            "shepherd.tuning.unknown_retry_ms",
            "at least 1",
        ),
        (
            ("[node]", f"{LIBRARIAN}tuning.flap_returns_max = 0\n[node]"),
            "librarian.tuning.flap_returns_max",
            "at least 1",
        ),
        (("[node]", f"{LIBRARIAN}tuning.lease_ms = 0\n[node]"), "librarian.tuning.lease_ms", "at least 1"),
        (("[ahash]", "[ahash]\ntuning.batch_max = 0"), "ahash.tuning.batch_max", "at least 1"),
        (("[node]", f"{LIBRARIAN}tuning.copies_max = 0\n[node]"), "librarian.tuning.copies_max", "at least 1"),
        (("[node]", f"{BARTENDER}tuning.durable_copies = 0\n[node]"), DURABLE, "at least 1"),
        (("[node]", f"{SHEPHERD}tuning.heartbeat_ms = 0\n[node]"), "shepherd.tuning.heartbeat_ms", "at least 1"),
        (("[node]", "[limits]\nconnections_max = 0\n[node]"), "limits.connections_max", "at least 1"),
        (("[node]", "[tls]\nreload_check_ms = 0\n[node]"), "tls.reload_check_ms", "at least 1"),
        (("[node]", "[registry]\nrefresh_ms = 0\n[node]"), "registry.refresh_ms", "at least 1"),
        (("[node]", "[node]\nworker_threads = 0"), "node.worker_threads", "at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_key(change: tuple[str, str], key: str, says: str) -> None:
    text = SMALL.replace(*change)
    assert text != SMALL
    if not key:
        assert parse_config(tomllib.loads(text)).librarian is not None
        return
    error = refusal(text)
    assert error.subject == key
    assert says in error.cause


def test_a_node_that_hosts_nothing_is_refused() -> None:
    assert "hosts nothing" in refusal('listen = []\n[node]\nname = "a"').cause


def test_a_file_that_is_no_toml_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("a = ")
    with fails(Kind.BAD_CONFIG) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789abcdef")
    path.chmod(0o644)
    with pytest.raises(CheloniaError, match="chmod"):
        read_secret(path)
    path.chmod(0o400)
    assert read_secret(path) == b"0123456789abcdef"


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    with pytest.raises(CheloniaError):
        read_secret(path)


def test_the_configured_identities_are_approved() -> None:
    records = trusted(load_config(CONF / "shepherd.toml"))
    assert all(record.approved for record in records)
    assert [record.role for record in records] == [
        Role.AHASH,
        Role.LIBRARIAN,
        Role.BARTENDER,
        Role.ADMINISTRATOR,
    ]


# --- a group of A-Hash replicas --------------------------------------------------------------------------------------

GROUP = (
    SMALL
    + """replica_id = 2
replicas = [
  { id = 1, host = "a", port = 7, dn = "/CN=a" },
  { id = 2, host = "b", port = 7, dn = "/CN=b" },
  { id = 3, host = "c", port = 7, dn = "/CN=c" },
]
[ahash.tuning]
cluster = "c1"
"""
)


def test_a_group_is_read_as_it_is_meant() -> None:
    section = parse_config(tomllib.loads(GROUP)).ahash
    assert section is not None
    assert [(entry.id, entry.host) for entry in section.replicas] == [(1, "a"), (2, "b"), (3, "c")]
    membership = configured(section)
    assert (membership.voters, membership.replicas, membership.next_replica) == ((1,), (1, 2, 3), 4)
    again = parse_config(tomllib.loads(render_config(parse_config(tomllib.loads(GROUP)))))
    assert again.ahash == replace(section, tuning=again.ahash.tuning if again.ahash else {})


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        (("replica_id = 2", "replica_id = 0"), "ahash.replica_id", "which of them"),
        (("replica_id = 2", "replica_id = 9"), "ahash.replica_id", "no entry with the id 9"),
        (('id = 3, host = "c"', 'id = 1, host = "c"'), "ahash.replicas", "the same id"),
        (('host = "c"', 'host = "a"'), "ahash.replicas", "the same host and port"),
        (('dn = "/CN=c"', 'dn = "/CN=a"'), "ahash.replicas", "the same dn"),
        (('dn = "/CN=c"', 'dn = "CN=c"'), "ahash.replicas[2].dn", "starts with /"),
        (('"b", port = 7', '"b", port = 1'), "ahash.replicas", "that of a listener"),
        (('"c", port = 7', '"c", port = 70000'), "ahash.replicas[2].port", "65535"),
        (("id = 3,", "id = 0,"), "ahash.replicas[2].id", "from 1"),
        (('cluster = "c1"', ""), "ahash.tuning.cluster", "the id of its cluster"),
    ],
)
def test_a_group_that_cannot_be_meant_is_refused(change: tuple[str, str], key: str, says: str) -> None:
    error = refusal(GROUP.replace(*change))
    assert error.subject == key
    assert says in error.cause


def test_a_daemon_loads_only_the_services_that_it_serves() -> None:
    """A Shepherd's process loads nothing of the A-Hash, of host setup, or of libraries without use."""
    run = "from chelonia.hosting.cheloniad import main; main(('run', '--config', '/nowhere'))"
    program = f"{run}; import sys, chelonia.hosting.services.shepherd; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "chelonia.hosting.node" in loaded
    unused = ("chelonia.hosting.setup", "chelonia.hosting.net.voms", "asn1crypto", "aiohttp.web_app")
    assert not [name for name in loaded if name.startswith(unused)]
    services = [
        name for name in loaded if name.startswith(("chelonia.ahash", "chelonia.bartender", "chelonia.librarian"))
    ]
    assert all(name.count(".") == 1 or name.endswith(".settings") for name in services), services


def test_all_services_are_loaded_before_one_begins() -> None:
    """A replica of the A-Hash that follows a master has to be on time; an import holds the event loop up."""
    program = """
import asyncio, sys
from types import SimpleNamespace
from chelonia.hosting import node
from chelonia.hosting.services import ahash

async def host(hosting, section):
    print(*sys.modules)
    hosting.stop.set()

async def start():
    names = ("ahash", "librarian", "bartender", "shepherd")
    started, config = node.Node.__new__(node.Node), dict.fromkeys(names, True)
    started._node = SimpleNamespace(config=SimpleNamespace(listen=(), **config), stop=asyncio.Event())
    await started._host()

ahash.host = host
asyncio.run(start())
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {f"chelonia.hosting.services.{name}" for name in SECTIONS} <= {*loaded}
