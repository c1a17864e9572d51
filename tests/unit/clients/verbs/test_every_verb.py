"""Every verb: its examples are command lines, and with --json it ends with one document and the exit code in it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from chelonia_clients.arguments import parse, split_verb
from chelonia_clients.verbs.finding import find_verb
from chelonia_clients.verbs.table import VERBS, Verb
from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command

DONE = """
ls / | ls -lr / | list / | stat /c/f | tree / | find / --name f | du -s / | watch --for 1s / | diff local /c
makeCollection /new | unmakeCollection /empty | putFile local/f /c/g | putFile -r local /new | getFile /c/f got
getFile -r /c all | sync local chelonia:/c | sync -n --delete chelonia:/c local | cp chelonia:/c/f chelonia:/c/h
mv /c/f /c/i | move /c/f /c/k | ln /c/f /c/l | rm /c/f | rm -r /c | delFile /c/f | undelete --list | unlink /c/f
modify /c/f set states neededReplicas 2 | policy /c | policy /c set ALL +read | makeMountPoint /m gsiftp://h/p
unmakeMountPoint /mount | setup | s3 configure aws --endpoint https://h:1 | version | help ls | completion bash
"""
"""Command lines that go well."""
REFUSED = """
3 ls /none | 3 list /none | 3 stat /none | 3 tree /none | 3 find /none | 3 du /none | 3 watch --for 1s /none
3 diff local /none | 3 makeCollection /none/x | 5 makeCollection /c | 3 unmakeCollection /none | 5 unmakeCollection /c
3 putFile none /c/ | 5 putFile local/f /c/f | 3 getFile /none | 5 getFile /c | 3 sync none chelonia:/c | 3 mv /none /x
3 move /none /x | 3 ln /none /x | 3 rm /none | 5 rm /c | 2 rm -r / | 3 delFile /none | 3 undelete /none | 3 unlink /none
3 cp chelonia:/none chelonia:/c/x | 2 cp local/f other | 3 modify /none set metadata a b | 3 policy /none | 2 cat /c/f
2 modify /c/f set states neededReplicas none | 2 policy /c set | 3 unmakeMountPoint /none | 5 makeMountPoint /c x://y
2 completion fish | 2 help nosuch | 2 admin nosuch | 2 s3 nosuch | 2 share | 2 quota relative | 2 umount | 2 mount /c
1 doctor | 2 whoami x | 2 version x | 2 credentialsDelegation x | 2 removeCredentials x | 2 setup a b
"""
"""Exit codes of command lines that are refused."""


def lines(table: str) -> list[list[str]]:
    return [shlex.split(line) for line in table.replace("\n", " | ").split(" | ") if line.strip()]


@pytest.fixture
def cluster(chelonia: Command, fake: FakeBartender) -> Command:
    for name in ("/c", "/empty"):
        fake.add_collection(name)
    fake.add_file("/c/f", b"theirs")
    Path("local").mkdir()
    Path("local/f").write_bytes(b"theirs")
    chelonia("makemount", "/mount", "gsiftp://h/p")
    return chelonia


def document(cluster: Command, words: list[str]) -> tuple[int, dict[str, object]]:
    ran = cluster("--json", *words)
    said = json.loads(ran.out)
    verb = find_verb(words[0])
    assert verb is not None
    assert (said["verb"], said["exit_code"], said["ok"]) == (verb.name, ran.code, ran.code == 0), ran.err
    return ran.code, said


@pytest.mark.parametrize("words", lines(DONE), ids=" ".join)
def test_what_goes_well_is_one_document(cluster: Command, words: list[str]) -> None:
    code, said = document(cluster, words)
    assert code == (1 if words[0] == "diff" and said.get("results") else 0), said
    assert "error" not in said


@pytest.mark.parametrize("words", lines(REFUSED), ids=" ".join)
def test_what_is_refused_is_one_document_with_the_reason_and_its_exit_code(cluster: Command, words: list[str]) -> None:
    code, said = document(cluster, words[1:])
    assert code == int(words[0]), said
    assert words[1] == "doctor" or (isinstance(said["error"], dict) and said["error"]["cause"])


def test_s3_configure_says_how_the_file_of_cas_is_made(
    cluster: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = tmp_path / "chelonia" / "ca-h-1.pem"  # a whole path: the programs start in any directory
    lines = cluster("--ca-dir", "/grid/cas", "s3", "configure", "rclone", "--endpoint", "https://h:1").lines
    assert lines[0] == f"# first: mkdir -p {made.parent} && cat /grid/cas/*.0 > {made}"
    assert f"`rclone --ca-cert {made} ls chelonia:bucket`" in lines[2]
    assert "list_url_encode = true" in lines, "XML has no control characters: keys with them were never removed"
    lines = cluster("--ca-file", "/grid/all.pem", "s3", "configure", "aws", "--endpoint", "https://h:1").lines
    assert "ca_bundle = /grid/all.pem" in lines
    assert "first: mkdir" not in lines[0]


def test_s3_configure_knows_a_cluster_by_an_address_of_ipv6(
    cluster: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A shell takes brackets for a pattern of names."""
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    lines = cluster("--bartender", "https://[::1]:60000", "s3", "configure", "aws").lines
    assert any("https://[::1]:60007" in line for line in lines), lines
    assert "[" not in lines[0]


@pytest.mark.parametrize("given", ["h:60007", "http://h:60007", "https://[", "https://"])
def test_s3_configure_takes_no_endpoint_that_is_no_url_of_the_door(cluster: Command, given: str) -> None:
    """`host:port` gave programs a configuration without a host."""
    told = cluster("s3", "configure", "s3cmd", "--endpoint", given)
    assert (told.code, told.lines) == (2, []), told
    assert given in told.err


def test_the_cas_of_another_service_are_not_taken_for_the_clusters(
    cluster: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = ("--ca-file", "/grid/all.pem", "s3", "configure", "aws", "--endpoint", "https://h:1")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/ssl/proxy.pem")
    lines = cluster(*configure).lines
    assert "ca_bundle = /grid/all.pem" in lines
    assert lines[0].startswith("# unset AWS_CA_BUNDLE")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/grid/all.pem")
    assert "unset" not in "".join(cluster(*configure).lines)


def test_s3_configure_names_the_command_that_gives_it_a_key(cluster: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    configure = ("s3", "configure", "rclone", "--endpoint", "https://h:1")
    assert "`export $(chelonia s3 key create)`" in cluster(*configure).err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    configured = cluster(*configure)
    assert (configured.err, "secret_access_key = secret" in configured.lines) == ("", True)


def test_programs_are_told_to_presign_by_version_4(cluster: Command) -> None:
    aws = cluster("s3", "configure", "aws", "--endpoint", "https://h:1").lines
    assert "  signature_version = s3v4" in aws[aws.index("s3 =") :]
    boto = cluster("s3", "configure", "boto3", "--endpoint", "https://h:1").lines
    assert any('signature_version="s3v4"' in line for line in boto)


def test_what_a_script_takes_for_the_link_is_one(cluster: Command) -> None:
    ran = cluster("share", "/c/nosuch")
    assert (ran.code, ran.out) == (1, "")  # the fake gives no links
    assert "share" in ran.err


def test_no_verb_is_left_out() -> None:
    tried = {verb.name for words in (*lines(DONE), *(w[1:] for w in lines(REFUSED))) if (verb := find_verb(words[0]))}
    assert tried == {verb.name for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_example_is_a_command_line_that_can_be_read(verb: Verb) -> None:
    for example in verb.examples:
        first, _, second = example.partition(" | ")
        line = second.removeprefix("chelonia ") if first.startswith("tar ") else first.partition(" > ")[0]
        _, word, rest = split_verb(shlex.split(line))
        found = find_verb(word)
        assert found is not None
        given, _ = parse(rest, found.flags, literal=found.literal)
        least, most = found.operands
        assert least <= len(given.operands)
        assert most < 0 or len(given.operands) <= most
