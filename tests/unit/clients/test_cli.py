"""The command for users: lines to the letter, exit codes, JSON."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.errors import TABLE, CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.ports.bartender import GetFileRequest, NameRequest, StatOutcome, TransferOutcome
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.values import replace
from chelonia_clients import connect
from chelonia_clients.cli import _standard_output, main
from chelonia_clients.client import Client
from chelonia_clients.output import Output, describe, original_status
from chelonia_clients.settings import Settings, checked_url
from tests.support.bartender import FakeBartender, Fault
from tests.unit.clients.faking import Command, administrator_on, client_on


def test_collections_speak_as_in_the_original(chelonia: Command) -> None:
    assert chelonia("makeCollection", "/c").lines == ["Creating collection '/c': done"]
    again = chelonia("mkdir", "/c")
    assert (again.code, again.lines) == (5, ["Creating collection '/c': LN exists"])
    assert chelonia("list", "/c").lines == ["'/c': collection", "    empty."]
    assert chelonia("make", "/no/c").lines == ["Creating collection '/no/c': parent does not exist"]
    assert chelonia("unmake", "/c").lines == ["Removing collection '/c': removed"]
    gone = chelonia("rmdir", "/c")
    assert (gone.code, gone.lines) == (3, ["Removing collection '/c': no such LN"])


def test_mkdir_names_its_option_where_something_is_missing_and_not_in_the_way(
    chelonia: Command, fake: FakeBartender
) -> None:
    fake.add_file("/f", b"")
    missing, blocked = chelonia("mkdir", "/no/c"), chelonia("mkdir", "/f/c")
    assert (missing.code, "-p makes all that is missing" in missing.err) == (3, True)
    assert (blocked.code, "-p" in blocked.err) == (5, False)
    assert "(not-a-collection)" in chelonia("mkdir", "-p", "/f/c").err


def test_mkdir_with_parents_makes_what_is_missing_and_minds_nothing(chelonia: Command, fake: FakeBartender) -> None:
    for _ in range(2):
        assert chelonia("mkdir", "-p", "/a/b/c").code == 0
    assert fake.names() == ["/a", "/a/b", "/a/b/c"]


@pytest.mark.parametrize(("kind", "named"), [(Kind.UNTRUSTED, 1), (Kind.EXPIRED, 1), (Kind.DENIED, 0)])
def test_what_is_wrong_with_certificates_is_for_the_doctor(
    chelonia: Command, monkeypatch: pytest.MonkeyPatch, kind: Kind, named: int
) -> None:
    async def refused(*_: object) -> None:
        raise CheloniaError(kind, "connect", "https://h:1", "the peer's certificate is refused")

    monkeypatch.setattr(Client, "stat", refused)
    assert chelonia("stat", "/a", "/b").err.count("`chelonia doctor`") == named


def test_mount_points(chelonia: Command) -> None:
    assert chelonia("makemount", "/m", "gsiftp://x/y").lines == ["Creating mountpoint '/m': done"]
    assert chelonia("unmount", "/m").lines == ["Removing mountpoint '/m': removed"]


def test_stat_shows_sections_and_properties(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/f", b"abc")
    ran = chelonia("stat", "/f", "/none")
    assert ran.code == 3
    assert ran.lines[:3] == ["'/f': found", "  entry", f"    GUID: {fake.cluster.guid('/f')}"]
    assert "    size: 3" in ran.lines
    assert ran.lines[-1] == "'/none': not found"


def test_list_aligns_types(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/a")
    fake.add_file("/longer", b"", "1000")
    fake.add_file("/a/x", b"")
    assert chelonia("ls", "/").lines == ["'/': collection", "  a       <collection>", "  longer  <file>"]
    assert "  a/x     <file>" in chelonia("list", "-r", "/").lines
    assert chelonia("list", "/longer").lines == ["'/longer': is a file"]
    assert chelonia("ls", "-l", "/longer").lines == ["  0  3/3  1970-01-01 00:16:40Z  <file>  /longer"]
    fake.add_file("/some", b"12", "1000")
    fake.told["/some"] = {"locations": {}}
    assert chelonia("ls", "-l", "/some").lines == ["  2  0/3 LOST  1970-01-01 00:16:40Z  <file>  /some"]


def test_a_file_of_which_no_copies_are_told_is_not_called_lost(chelonia: Command, fake: FakeBartender) -> None:
    """A user without the right to read a file sees its name and size in its collection, and nothing of its copies."""
    fake.add_file("/closed", b"12", "1000")
    fake.deny("/closed")
    assert chelonia("ls", "-l", "/").lines[1:] == ["  2  -  1970-01-01 00:16:40Z  <file>  closed"]
    assert chelonia("ls", "--format", "{copies} {wanted} {path}", "/").lines == ["- - /closed"]


def test_ls_goes_through_all_pages(chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "PAGE_ENTRIES_MAX", 10)
    for number in range(23):
        fake.add_file(f"/f{number:04d}", b"")
    ran = chelonia("ls", "/")
    assert [line.split()[0] for line in ran.lines[1:]] == [f"f{number:04d}" for number in range(23)]
    assert [op for op, _ in fake.calls] == ["list"] * 3


def test_move_and_link(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/a", b"")
    fake.add_collection("/c")
    assert chelonia("move", "/a", "/b").lines == ["Moving '/a' to '/b': moved"]
    assert chelonia("move", "/b", "/b2", "preserve").lines == ["Moving '/b' to '/b2': moved"]
    assert chelonia("mv", "/b", "/c").lines == ["Moving '/b' to '/c/': moved"]
    assert chelonia("ln", "/c/b", "/b3").lines == ["Linking '/c/b' to '/b3': linked"]
    assert fake.names() == ["/b2", "/b3", "/c", "/c/b"]
    taken = chelonia("move", "/b2", "/b3")
    assert (taken.code, taken.lines) == (5, ["Moving '/b2' to '/b3': targetexists"])
    assert chelonia("move", "/b2", "/x", "presrve").code == 2


def test_rm_drops_a_name_and_delfile_all_of_them(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/a", b"")
    for name in ("/b", "/c"):
        chelonia("ln", "/a", name)
    assert chelonia("rm", "/a").lines == ["/a: deleted."]
    assert chelonia("unlink", "/b").lines == ["Unlinking '/b': unset"]
    chelonia("ln", "/c", "/d")
    ran = chelonia("delFile", "/c", "/none")
    assert (ran.code, ran.lines) == (3, ["/c: deleted.", "/d: deleted, it was the same file.", "/none: nosuchLN."])
    assert fake.names() == []
    assert chelonia("rm", "-f", "/none").code == 0


def test_rm_takes_collections_only_with_r_and_never_the_root(chelonia: Command, fake: FakeBartender) -> None:
    for ln in ("/c", "/c/d"):
        fake.add_collection(ln)
    for ln in ("/c/f", "/c/d/g"):
        fake.add_file(ln, b"")
    refused = chelonia("rm", "/c")
    assert refused.code == 5
    assert "-r removes it" in refused.err
    assert chelonia("rm", "-r", "/").code == 2
    assert chelonia("rm", "-r", "/c").lines == [f"{ln}: deleted." for ln in ("/c/d/g", "/c/f", "/c/d", "/c")]
    assert fake.names() == []


def test_put_and_get(chelonia: Command, fake: FakeBartender) -> None:
    Path("f").write_bytes(b"hello")
    assert chelonia("put", "f", "/f", "2").lines == ["'f' (5 bytes) uploaded to '/f'."]
    assert fake.found("/f")["states"]["neededReplicas"] == "2"
    assert chelonia("put", "f", "/").code == 5
    assert chelonia("put", "-f", "f", "/").lines == ["'f' (5 bytes) uploaded to '/f'."]
    assert chelonia("get", "/f", "g").lines == ["'/f' (5 bytes) downloaded as 'g'."]
    assert Path("g").read_bytes() == b"hello"
    Path("g").write_bytes(b"mine")
    refused = chelonia("get", "/f", "g")
    assert (refused.code, Path("g").read_bytes()) == (5, b"mine")
    assert chelonia("get", "-f", "/f", "g").code == 0
    assert Path("g").read_bytes() == b"hello"


def test_nothing_is_overwritten_unasked_and_the_option_that_does_is_named(
    chelonia: Command, fake: FakeBartender
) -> None:
    fake.add_file("/f", b"theirs")
    Path("f").write_bytes(b"mine")
    for words in (("put", "f", "/f"), ("get", "/f", "f"), ("cp", "f", "chelonia:/f"), ("cp", "chelonia:/f", "f")):
        refused = chelonia(*words)
        assert (refused.code, "-f overwrites it (exists)" in refused.err) == (5, True)


def test_into_an_existing_collection_or_directory(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/c")
    Path("d").mkdir()
    Path("f").write_bytes(b"x")
    assert chelonia("put", "f", "/c").lines == ["'f' (1 bytes) uploaded to '/c/f'."]
    assert chelonia("get", "/c/f", "d").lines == ["'/c/f' (1 bytes) downloaded as 'd/f'."]
    assert chelonia("get", "/c/f", "missing/").code == 3
    assert chelonia("put", "f", "/missing/").code == 3


def test_collections_are_downloaded_only_with_r(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/c")
    fake.add_file("/c/f", b"x")
    for ln in ("/", "/c"):
        refused = chelonia("get", ln)
        assert refused.code == 5
        assert "-r downloads it" in refused.err
        printed = chelonia("get", ln, "-")
        assert (printed.code, "`chelonia get -r` downloads one into a directory" in printed.err) == (5, True)
    assert chelonia("get", "-r", "/c").lines == ["'/c/f' (1 bytes) downloaded as 'c/f'."]
    assert chelonia("get", "-r", "/", "all").lines == ["'/c/f' (1 bytes) downloaded as 'all/c/f'."]


def test_a_server_may_call_a_collection_what_it_likes(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_collection("/c")
    answer = fake.get_file

    async def in_other_words(call: Call, requests: tuple[GetFileRequest, ...]) -> tuple[TransferOutcome, ...]:
        return tuple([replace(each, cause="no file") for each in await answer(call, requests)])

    monkeypatch.setattr(fake, "get_file", in_other_words)
    refused = chelonia("get", "/c")
    assert (refused.code, "-r downloads it" in refused.err) == (5, True)


def test_what_the_local_disk_refuses_is_not_said_of_the_cluster(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/f", b"x")
    Path("d", "f").mkdir(parents=True)
    refused = chelonia("get", "-f", "/f", "d")
    assert (refused.code, "d/f" in refused.err, "-r downloads" in refused.err) == (5, True, False)


def test_a_mount_point_is_neither_file_nor_collection(chelonia: Command) -> None:
    assert chelonia("makemount", "/m", "gsiftp://se.example.org/data").code == 0
    assert chelonia("ls", "/m").lines == ["  /m  <mountpoint>"]
    refused = chelonia("get", "/m", "m")
    assert (refused.code, "it is a mountpoint" in refused.err, "-r downloads" in refused.err) == (5, True, False)


@pytest.mark.parametrize(
    "words",
    [
        *(("ls", ""), ("rm", "-r", ""), ("policy", "", "clear", "ALL"), ("mkdir", ""), ("put", "f", "")),
        *(("rm", "-r", "chelonia:"), ("rm", "-r", "arc:"), ("rm", "-r", "arc://"), ("cp", "f", "chelonia:")),
        ("ls", "arc://?BartenderURL=https://far:60000/Bartender"),
        *(("put", "-r", "", "/"), ("cp", "-r", "", "chelonia:/"), ("get", "-r", "/", ""), ("cp", "chelonia:/f", "")),
        *(("sync", "", "chelonia:/"), ("sync", "--delete", "chelonia:/", ""), ("diff", "", "/")),
    ],
)
def test_an_empty_name_is_an_empty_variable_and_not_the_root_nor_here(
    chelonia: Command, words: tuple[str, ...]
) -> None:
    Path("f").write_bytes(b"x")
    refused = chelonia(*words)
    assert (refused.code, "it is empty" in refused.err) == (2, True)


@pytest.mark.parametrize("words", [("help",), ("--json", "version")])
def test_an_answer_that_cannot_be_written_is_a_failure_and_no_traceback(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-m", "chelonia_clients.cli", *words]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("chelonia: ")
    assert ended.stderr.endswith(": No space left on device (internal)\n")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("ls", "/"), ("--json", "ls", "/"), ("-v", "-v", "ls", "/"), ("cat", "/f0000")])
def test_a_long_answer_that_cannot_be_written_is_told_once(
    chelonia: Command,
    fake: FakeBartender,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    for number in range(1000):
        fake.add_file(f"/f{number:04d}", b"x" * 20_000 if not number else b"")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "No space" in line or "Traceback" in line]
    assert said == ["chelonia: write 'standard output': No space left on device (internal)"]


def test_an_unbuffered_python_notices_that_nobody_reads_to_the_end(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PYTHONUNBUFFERED standard output is a raw file, whose `write` may take only a part without an error."""
    for number in range(500):
        fake.add_file(f"/f{number}", b"")
    reading, writing = os.pipe()
    reader = threading.Thread(target=lambda: (os.read(reading, 10), os.close(reading)))
    with io.TextIOWrapper(os.fdopen(writing, "wb", 0), write_through=True) as bare:
        monkeypatch.setattr(sys, "stdout", bare)
        reader.start()
        assert main(("--json", "ls", "/")) == 141
        reader.join()


def test_a_line_of_the_answer_is_there_before_the_command_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Background mounts, and scripts behind `watch`, wait for it."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb", 0) as reader, os.fdopen(writing, "w") as piped:
        monkeypatch.setattr(sys, "stdout", piped)
        Output(_standard_output(), sys.stderr).write("mounted")
        assert reader.read() == b"mounted\n"


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        ("<&-", 0, ""), ("2>&-", 0, ""), ("<&- 2>&-", 0, ""),
        (">&-", 1, "chelonia: write 'standard output': Bad file descriptor (internal)\n"),
    ],
)  # fmt: skip
def test_what_the_shell_has_closed_is_no_place_for_other_files(
    tmp_path: Path, closed: str, code: int, said: str
) -> None:
    script = f'exec "$@" {closed}'
    words = ("-b", "https://localhost:1/Bartender", "--anonymous", "whoami")
    command = ["sh", "-c", script, "sh", sys.executable, "-P", "-m", "chelonia_clients.cli", *words]
    environ = {**os.environ, "HOME": str(tmp_path), "X509_CERT_DIR": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (ended.returncode, ended.stderr) == (code, said)


def test_a_locale_without_the_letters_of_a_name(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.add_file("/caf\u0113", b"")
    for words, code, answer, told in (
        (("ls", "-1", "/"), 0, b"caf\\u0113\n", ""), (("--json", "ls", "/"), 0, b'"caf\\u0113"', ""),
        (("ls", "-0", "/"), 2, b"", "this locale, has no letters for '\\u0113'; LC_ALL=C.UTF-8"),
    ):  # fmt: skip
        bare = io.TextIOWrapper(io.BytesIO(), encoding="iso8859-1")
        monkeypatch.setattr(sys, "stdout", bare)
        assert main(words) == code
        assert answer in bare.buffer.getvalue()  # type: ignore[attr-defined]
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "on"),
    [
        (("put", "-r", "a b", "/new"), "'a b' chelonia:/new"), (("get", "-r", "/tree", "here"), "chelonia:/tree here"),
        (("get", "-r", "/tree", "a b"), "chelonia:/tree 'a b/tree'"),
    ],
)  # fmt: skip
def test_who_interrupts_a_tree_is_told_how_to_go_on(
    chelonia: Command,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    on: str,
) -> None:
    async def interrupted(*_: object) -> AsyncIterator[None]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        yield None

    Path("a b").mkdir()
    chelonia("mkdir", "/tree")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background commands begin with none
    monkeypatch.setattr("chelonia_clients.verbs.transfer.put_tree", interrupted)
    monkeypatch.setattr("chelonia_clients.verbs.transfer.get_tree", interrupted)
    assert main(words) == 130
    said = capsys.readouterr().err.splitlines()
    assert said == [f"chelonia: what is whole stays; to go on: chelonia sync {on}", "chelonia: interrupted"]


@pytest.mark.parametrize("words", [("makemount", "/old"), ("modify", "/f", "set", "metadata", "source")])
def test_only_a_name_says_which_bartender_is_asked(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The place behind a mount point and values do not: these are mostly another cluster's."""
    asked: list[Settings] = []

    def open_client(settings: Settings, *_: object) -> Client:
        asked.append(settings)
        return client_on(fake, retry_ms=0)

    monkeypatch.setattr(connect, "open_client", open_client)
    fake.add_file("/f", b"")
    url = "arc:///x?BartenderURL=https://far:60000/Bartender"
    for line in ((*words, url), (words[0], url, *words[2:], "x:/y")):
        chelonia(*line)
    assert ["far" in str(each.bartenders) for each in asked] == [False, True]


@pytest.mark.parametrize("words", [("ls", "arc://[x"), ("ls", "chelonia://[x")])
def test_what_is_no_url_is_told_as_such(chelonia: Command, words: tuple[str, ...]) -> None:
    ran = chelonia(*words)
    assert (ran.code, "error of this program" in ran.err) == (2, False), ran
    with pytest.raises(CheloniaError, match="is no URL: one is like https"):
        checked_url("https://[x", "-b")


def test_a_name_that_is_no_text_is_not_another_one(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/a\ufffd", b"")
    assert chelonia("rm", "arc:///a%ff").code == 2
    assert fake.names() == ["/a\ufffd"]


SIGNALLED = """
import asyncio, os, signal, sys
from chelonia_clients import connect
from chelonia_clients.cli import main
from tests.support.bartender import FakeAnswer, FakeBartender
from tests.unit.clients.faking import client_on

async def chunks(answer):
    yield answer._data
    if len(answer._data) > 1:
        while not list(os.scandir("d"))[1:]:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), int(sys.argv[1]))
        await asyncio.sleep(60)

fake = FakeBartender()
fake.add_file("/a", b"x")
fake.add_file("/b", b"x" * 2_000_000)
FakeAnswer.chunks = chunks
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background commands begin with none
signal.signal(signal.SIGHUP, signal.SIG_DFL)
connect.open_client = lambda *_: client_on(fake)
sys.exit(main(("--json", "get", "/a", "/b", "d")))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_whatever_signal_ends_a_command_leaves_nothing_half_done_and_a_whole_document(
    tmp_path: Path, number: int, code: int
) -> None:
    (tmp_path / "d").mkdir()
    ran = subprocess.run(
        (sys.executable, "-c", SIGNALLED, str(int(number))),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        check=False,
    )
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["a"]
    assert ran.returncode == code, ran
    told = json.loads(ran.stdout)
    assert (told["ok"], told["exit_code"], told["error"]["kind"]) == (False, code, "cancelled")
    assert [each["target"] for each in told["results"]] == ["d/a"]


def test_twice_v_shows_where_the_local_disk_refused_and_keeps_the_document(tmp_path: Path) -> None:
    words = ("--json", "-v", "-v", "-b", "https://localhost:1/Bartender", "get", "/f", "x" * 300)
    command = [sys.executable, "-P", "-m", "chelonia_clients.cli", *words]
    environ = {**os.environ, "HOME": str(tmp_path), "X509_CERT_DIR": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert json.loads(ended.stdout)["error"]["kind"] == "bad-name"
    assert "Traceback" in ended.stderr
    assert "standard output" not in ended.stderr


def test_a_tree_for_which_no_directory_can_be_made_fails_once(chelonia: Command, fake: FakeBartender) -> None:
    Path("file").write_bytes(b"mine")
    chelonia("mkdir", "/c")
    for number in range(3):
        fake.add_file(f"/c/{number}", b"x")
    ran = chelonia("get", "-r", "/c", "file")
    assert (ran.code, ran.err) == (5, "chelonia: walk 'file': local file: File exists (exists)\n")


@pytest.mark.parametrize("verb", ["get", "get -f", "get -r", "put", "cp"])
def test_a_local_name_that_is_too_long_is_told_in_short(chelonia: Command, fake: FakeBartender, verb: str) -> None:
    fake.add_file("/f", b"x")
    long = "x" * 300
    sides = (long, "/f") if verb == "put" else ("chelonia:/f" if verb == "cp" else "/f", long)
    ran = chelonia(*verb.split(), *sides)
    assert ran.code == 2
    assert ran.err.endswith(f" '{long[:80]}'...: local file: File name too long (bad-name)\n")
    assert long[:81] not in ran.err


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("heal", "rate"), ["heal rate [<bytes/s>] [--copies N]"]),
        (("node", "maintenance", "https://s1/Shepherd"), ["node maintenance <id> [--for 2h] [--end]"]),
        (("service", "withdraw"), ["service approve|withdraw <id> [<DN>]"]),
        (
            ("drill", "nosuch"),
            ["drill silence [<id>] [--for 2m]", "drill corrupt [<id>]", "drill status", "drill stop"],
        ),
    ],
)
def test_usage_is_that_of_what_was_begun(chelonia: Command, words: tuple[str, ...], usage: list[str]) -> None:
    lines = chelonia("admin", *words).err.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("Usage: "))
    shown = [line.removeprefix("Usage: ").strip() for line in lines[begin:]]
    assert shown == [f"chelonia admin {way}" for way in usage]
    everything = chelonia("admin", "nosuch").err
    assert everything.count("chelonia admin ") == chelonia("help", "admin").out.split("Options:")[0].count("chelonia a")


def test_cp_goes_up_down_and_across(chelonia: Command, fake: FakeBartender) -> None:
    Path("f").write_bytes(b"x" * 5000)
    assert chelonia("cp", "f", "chelonia:/f").code == 0
    assert chelonia("cp", "arc:///f", "chelonia:/g").lines == ["'/f' (5000 bytes) copied to '/g'."]
    assert chelonia("cp", "chelonia:/g", "h").code == 0
    assert Path("h").read_bytes() == b"x" * 5000
    assert chelonia("cp", "f", "h").code == 2
    assert chelonia("cp", "arc://host/f", "h").code == 2


@pytest.mark.parametrize("verb", ["stat", "ls", "policy", "rm", "rmdir", "mkdir", "cat"])
def test_a_bartender_named_in_a_url_is_used_by_every_verb(
    verb: str, chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def open_client(settings: Settings, *_: object) -> Client:
        asked.append(settings.bartenders)
        return client_on(fake, retry_ms=0)

    monkeypatch.setattr(connect, "open_client", open_client)
    chelonia(verb, "arc:///x?BartenderURL=https://far:60000/Bartender")
    assert asked == [("https://far:60000/Bartender",)]


def test_every_operand_is_tried_and_the_first_failure_names_the_code(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/b", b"")
    fake.deny("/b")
    ran = chelonia("stat", "/none", "/b")
    assert ran.code == 3
    assert chelonia("stat", "/b", "/none").code == 4


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Kind.NOT_FOUND, 3), (Kind.DENIED, 4), (Kind.EXISTS, 5), (Kind.CONFLICT, 5), (Kind.QUOTA, 6),
        (Kind.NETWORK, 7), (Kind.UNAVAILABLE, 7), (Kind.CHECKSUM, 8), (Kind.BAD_NAME, 2), (Kind.INTERNAL, 1),
    ],
)  # fmt: skip
def test_exit_codes_by_kind(chelonia: Command, fake: FakeBartender, kind: Kind, code: int) -> None:
    for words in (("mkdir", "/x"), ("ls", "/"), ("stat", "/"), ("unlink", "/x"), ("get", "/x", "y"), ("cat", "/x")):
        fake.failures = [kind]
        ran = chelonia(*words)
        assert ran.code == code, words
        assert f"({kind.value})" in ran.err


def test_the_originals_words_exist_for_every_kind() -> None:
    from chelonia.core.errors import CheloniaError

    for kind in TABLE:
        for op in ("stat", "list", "delFile", "unlink", "makeCollection", "move", "modify"):
            assert original_status(op, CheloniaError(kind, op, "/x", "because"))


def test_wrong_bytes_everywhere_are_exit_8_and_leave_nothing(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/f", b"x" * 3000)
    fake.store.faults = [Fault(flip=True)] * 6
    assert chelonia("get", "/f", "g").code == 8
    assert list(Path().iterdir()) == []


def test_json_is_one_document_before_or_after_the_verb(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/f", b"abc", "12.5")
    first, second = chelonia("--json", "ls", "/", "/none"), chelonia("ls", "/", "/none", "--json")
    assert first.out == second.out
    said = json.loads(first.out)
    assert (said["verb"], said["ok"], said["exit_code"]) == ("ls", False, 3)
    [found, missing] = said["results"]
    [entry] = found["entries"]
    assert (entry["name"], entry["type"], entry["size"], entry["modified"]) == ("f", "file", 3, 12.5)
    assert missing["ok"] is False
    assert (missing["error"]["kind"], missing["error"]["errno"]) == ("not-found", "ENOENT")


@pytest.mark.parametrize("words", [("put", "f", "/f"), ("mkdir", "/c"), ("stat", "/"), ("policy", "/"), ("version",)])
def test_every_verb_has_json(chelonia: Command, words: tuple[str, ...]) -> None:
    Path("f").write_bytes(b"")
    ran = chelonia(*words, "--json")
    said = json.loads(ran.out)
    assert (ran.code, said["ok"]) == (0, True)
    assert len(said["results"]) == 1


def test_policy_merges_collects_blanks_and_checks(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/f", b"")
    head = "Setting action list of '/f' for user /CN=Jane Doe to "
    assert chelonia("policy", "/f", "set", "/CN=Jane", "Doe", "+read", "-delete").lines == [head + "+read -delete: set"]
    assert chelonia("pol", "/f", "change", "/CN=Jane Doe", "+delete", "+addEntry").lines == [
        head + "+read +delete +addEntry: set"
    ]
    assert "  /CN=Jane Doe: +read +delete +addEntry" in chelonia("policy", "/f").lines
    assert chelonia("policy", "/f", "clear", "/CN=Jane Doe").lines == [head + ": set"]
    for words in (("set", "ALL"), ("set", "+read"), ("grant", "ALL", "+read"), ("set", "Bob", "+read"),
                  ("set", "ALL", "+fly")):  # fmt: skip
        assert chelonia("policy", "/f", *words).code == 2


def test_rights_that_another_gives_meanwhile_are_not_lost(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_file("/f", b"")
    stat = fake.stat

    async def seen(call: Call, requests: tuple[NameRequest, ...]) -> tuple[StatOutcome, ...]:
        found = await stat(call, requests)
        fake.cluster.allow("/f", ALL="+delete")
        return found

    monkeypatch.setattr(fake, "stat", seen)
    assert chelonia("policy", "/f", "change", "ALL", "+read").code == 5
    assert fake.found("/f")["policy"] == {"ALL": "+delete"}


def test_recursive_policy_reaches_all_below(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/c")
    fake.add_file("/c/f", b"")
    assert len(chelonia("policy", "-r", "/c", "set", "ALL", "+read").lines) == 2
    assert fake.found("/c/f")["policy"] == {"ALL": "+read"}


def test_what_is_changed_may_be_called_as_on_any_command_line(chelonia: Command, fake: FakeBartender) -> None:
    """The name went to the Bartender with its `chelonia:`, which knows no such name."""
    fake.add_collection("/c")
    fake.add_file("/c/f", b"")
    assert chelonia("policy", "-r", "chelonia:/c", "set", "ALL", "+read").code == 0
    assert chelonia("modify", "arc:///c/f", "set", "metadata", "k", "v").code == 0
    assert fake.found("/c/f")["policy"] == fake.found("/c")["policy"] == {"ALL": "+read"}
    assert fake.found("/c/f")["metadata"] == {"k": "v"}


def test_modify_checks_before_it_asks(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_file("/f", b"")
    assert chelonia("modify", "/f", "set", "metadata", "k", "-v").lines == [
        "Modifying '/f', set in section 'metadata' property 'k' value '-v': set."
    ]
    fake.calls.clear()
    for words in (("set", "states", "neededReplicas", "0"), ("set", "states", "closed", "maybe"),
                  ("set", "states", "size", "1"), ("set", "metadata", "k"), ("change", "a", "b", "c")):  # fmt: skip
        assert chelonia("modify", "/f", *words).code == 2
    assert fake.calls == []


def test_usage(chelonia: Command) -> None:
    nothing = chelonia()
    assert (nothing.code, nothing.out) == (2, "")
    assert "Usage: chelonia" in nothing.err
    assert chelonia("stat").err == "Usage: chelonia stat <LN> [<LN> ...]\n"
    assert chelonia("nonsense").code == 2
    insecure = chelonia("-w", "ls", "/")
    assert insecure.code == 2
    assert "TLS is always checked" in insecure.err
    assert chelonia("--help").code == 0
    assert "chelonia put run1.root /data/" in chelonia("help", "put").out
    assert chelonia("help", "admin", "quota").out == chelonia("admin", "quota", "--help").out
    assert chelonia("ls", "relative").code == 2


def test_delegation_is_not_supported(chelonia: Command) -> None:
    for word, verb in (("cre", "credentialsDelegation"), ("removecredentials", "removeCredentials")):
        ran = chelonia(word)
        assert ran.code == 1
        assert ran.err.startswith(f"chelonia: {verb}: not supported by this command")
        assert json.loads(chelonia("--json", word).out)["error"]["op"] == verb


def test_no_bartender_names_all_the_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from chelonia_clients.cli import run

    for name in ("ARC_BARTENDER_URL", "CHELONIA_BARTENDER_URL", "CHELONIA_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    out = Output(io.StringIO(), io.StringIO())
    assert run(["ls", "/"], out) == 2
    assert isinstance(out.stderr, io.StringIO)
    for way in (
        "`chelonia setup NAME",
        "-b URL",
        "ARC_BARTENDER_URL",
        "client.conf",
        "client.toml",
        "CHELONIA_CLUSTER",
    ):
        assert way in out.stderr.getvalue()


def test_no_traceback_and_no_escape_sequence_reaches_a_terminal(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/c")
    fake.told["/c"] = {"metadata": {"k": "\x1b[31mred"}}
    assert "\x1b" not in chelonia("stat", "/c").out
    fake.told["/c"] = {"states": {"size": "\x00"}}
    assert chelonia("ls", "/").code == 0


def test_nobody_writes_a_line_of_his_own_before_an_administrator(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/c")
    fake.told["/c"] = {"metadata": {"k": "v\nhttps://good:1/Shepherd  alive"}}
    assert r"v\nhttps://good:1/Shepherd" in chelonia("stat", "/c").out


def test_errors_say_what_on_what_and_why() -> None:
    from chelonia.core.errors import CheloniaError

    error = CheloniaError(Kind.EXISTS, "put", "/f", "/f: it is there")
    assert describe(error) == "chelonia: put '/f': it is there (exists)"


@pytest.mark.parametrize("words", [("--version",), ("help",), ("help", "sync"), ("completion", "next", "--", "adm")])
def test_what_needs_no_connection_starts_without_its_libraries(words: tuple[str, ...]) -> None:
    """They take most of a command's start time."""
    ask = f"import sys; from chelonia_clients.cli import main; main({words!r}); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, text=True, check=True)
    heavy = {
        "aiohttp",
        "cryptography",
        "OpenSSL",
        "lxml",
        "rich",
        "chelonia.core.ports.librarian",
        "chelonia.wire.compact",
    }
    assert not heavy & set(ended.stdout.splitlines()[-1].split())


def test_what_asks_a_bartender_starts_without_other_ports_and_the_libraries_of_http_and_soap() -> None:
    """Each is a good part of the 0.15 s of CPU within which a command should start."""
    loads = (
        "cli, connect; from chelonia_clients.verbs import listing, namespace; import chelonia.core.operations.bartender"
    )
    ask = f"import sys; from chelonia_clients import {loads}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, text=True, check=True)
    libraries = {"aiohttp", "lxml", "rich", "OpenSSL", "yarl", "configparser", "tomllib", "difflib"}
    others = {f"chelonia.core.ports.{port}" for port in ("ahash", "files", "librarian", "shepherd")}
    ours = {"chelonia.wire.soap", "chelonia.wire.operations.librarian", "chelonia_clients.administrator"}
    assert not (libraries | others | ours) & set(ended.stdout.split())


def test_what_moves_files_starts_without_the_ports_of_services() -> None:
    ask = "import sys; from chelonia_clients import cli, connect; from chelonia_clients.verbs import transfer; "
    ended = subprocess.run(
        [sys.executable, "-P", "-c", ask + "print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    ports = {f"chelonia.core.ports.{port}" for port in ("ahash", "librarian", "shepherd")}
    assert not (ports | {"chelonia.hosting.transfer.front", "aiohttp", "lxml"}) & set(ended.stdout.split())


def test_how_a_verb_is_used_is_said_without_an_event_loop() -> None:
    ask = "import sys; from chelonia_clients.cli import main; main(('ls', '--help')); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, text=True, check=True)
    assert not {"asyncio", "logging", "msgspec", "ssl"} & set(ended.stdout.splitlines()[-1].split())


def test_an_option_that_is_mistyped_is_told_the_near_one_and_where_the_others_stand(chelonia: Command) -> None:
    told = chelonia("ls", "--lnog", "/")
    assert told.code == 2
    assert "did you mean --long?" in told.err
    assert told.err.endswith("Try `chelonia help ls`.\n")
    assert "-b goes before the verb; after it, write --bartender" in chelonia("ls", "-b", "https://b:1/B", "/").err


def test_a_withdrawal_tells_what_else_the_same_certificate_stands_for(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thief of a host has the key of all its services: one that stays approved still shows him all names."""
    lost, other = Dn("/CN=lost"), Dn("/CN=other")

    class Registry:
        def __init__(self) -> None:
            self.known = {
                ServiceId(each): ServiceRecord(Role.LIBRARIAN, dn, ServiceId(each), approved=True)
                for each, dn in (
                    ("https://h:1/Librarian", lost),
                    ("https://h:2/Bartender", lost),
                    ("https://i:1/L", other),
                )
            }

        async def services(self, _: Call) -> tuple[ServiceRecord, ...]:
            return tuple(self.known.values())

        async def approve(self, _: Call, record: ServiceRecord) -> None:
            self.known[record.service_id] = record

    registry = Registry()
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator_on(fake, registry))
    withdrawn = chelonia("admin", "service", "withdraw", "https://h:2/Bartender")
    assert (
        "the same certificate stands for https://h:1/Librarian: where its host is lost, withdraw these as well"
        in withdrawn.err
    )
    assert "stands for" not in chelonia("admin", "service", "approve", "https://h:2/Bartender").err
    chelonia("admin", "service", "withdraw", "https://h:2/Bartender")
    assert "stands for" not in chelonia("admin", "service", "withdraw", "https://h:1/Librarian").err
