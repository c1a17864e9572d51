"""The candidates of completion, for every form of every verb, word by word."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from chelonia_clients.arguments import GLOBAL
from chelonia_clients.completing import Next, next_word
from chelonia_clients.verbs.about import script
from chelonia_clients.verbs.table import ADMIN, VERBS, Verb
from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command


@pytest.mark.parametrize("form", ADMIN.synopsis.split(" | "))
def test_every_word_of_admin_is_offered_where_it_stands(form: str) -> None:
    typed = ["admin"]
    for token in re.sub(r" \[.*", "", form).split():
        choices = token.split("|")
        if "<" not in token and token != "...":
            assert set(choices) <= set(next_word([*typed, ""]).words)
            assert choices[0] in next_word([*typed, choices[0][:2]]).words
        typed.append(choices[0])


@pytest.mark.parametrize("verb", VERBS, ids=[verb.name for verb in VERBS])
def test_a_verb_and_every_option_of_it_are_offered(verb: Verb) -> None:
    assert verb.name in next_word([verb.name[:4]]).words
    offered = next_word([verb.name, "--"]).words
    assert {flag.name for flag in (*verb.flags, *GLOBAL)} == set(offered)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("--as us", Next(("user", "user2"))),
        ("df", Next(("df",))),
        ("--cluster clu", Next(files=True)),
        ("--bartender ", Next()),
        ("-z conf", Next(files=True)),
        ("ls /da", Next(names=True)),
        ("ls -l /data /da", Next(names=True)),
        ("put ", Next(files=True)),
        ("put a b /da", Next(names=True, files=True)),
        ("get /data/a ", Next(names=True, files=True)),
        ("get /data/a /data/b ", Next(names=True, files=True)),
        ("cp a chel", Next(names=True, files=True)),
        ("cat ", Next(names=True)),
        ("policy /data c", Next(("change", "clear"))),
        ("modify /data s", Next(("set",))),
        ("completion ", Next(("bash", "zsh"))),
        ("admin node drain ", Next()),
        ("admin quota set ", Next(("default",), names=True)),
        ("admin quota set /x ", Next()),
        ("admin quarantine discard id ", Next(("all",))),
        ("find --type c", Next(("collection",))),
        ("s3 key create --only ", Next(("read", "upload", "write"))),
        ("mount /lab ", Next(files=True)),
        ("umount ", Next(files=True)),
        ("diff ", Next(files=True)),
        ("sync results chelonia:/d", Next(names=True, files=True)),
        ("admin scrub --path /d", Next(names=True)),
        ("admin nothing ", Next()),
        ("nothing ", Next()),
    ],
)
def test_what_may_come_next(typed: str, found: Next) -> None:
    assert next_word(typed.split(" ")) == found


def test_names_are_asked_of_the_cluster(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/data")
    fake.add_collection("/dare")
    fake.add_file("/other", b"")
    assert chelonia("completion", "next", "--", "ls", "/da").lines == ["/dare/", "/data/"]
    assert chelonia("completion", "next", "--", "ls", "").lines == ["/dare/", "/data/", "/other"]
    assert chelonia("completion", "next", "--", "cp", "x", "chelonia:").lines[:1] == ["chelonia:/dare/"]
    assert chelonia("completion", "next", "--", "ls", "/none/x").lines == []
    assert chelonia("completion", "next", "--", "ls", "da").lines == []
    assert chelonia("completion", "next", "--", "put", "x", "/da").lines == ["/dare/", "/data/", ":files"]


def test_bash_completes_words_files_and_names_once_quoted_by_readline(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    stub = """chelonia() {
    local IFS=' '
    [ "$*" = "completion next -- ls /d/w" ] && printf '%s\\n' '/d/with space' '/d/w*' "/d/w'q"
    [ "$*" = "completion next -- put a" ] && printf '%s\\n' :files
    [ "$*" = "completion next -- sync r chelonia:/d" ] && printf '%s\\n' chelonia:/data/
    [ "$*" = "completion next -- sync r chelonia:" ] && printf '%s\\n' chelonia:/data/
}; compopt() { :; }
"""
    tries = """COMP_CWORD=2
for word in /d/w '/d/\\w'; do
    COMP_WORDS=(chelonia ls "$word"); _chelonia; printf '%s\\n' "${COMPREPLY[@]}"
done
COMP_WORDS=(chelonia put a); _chelonia; printf '%s\\n' "${COMPREPLY[@]}"
COMP_WORDS=(chelonia sync r chelonia : /d) COMP_CWORD=5; _chelonia; printf '%s\\n' "${COMPREPLY[@]}"
COMP_WORDS=(chelonia sync r chelonia :) COMP_CWORD=4; _chelonia; printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash"], input=script("chelonia.bash") + stub + tries, text=True, capture_output=True, cwd=tmp_path
    )
    names = ["/d/with space", "/d/w*", "/d/w'q"]
    assert done.stdout.splitlines() == [*names, *names, "a file", "/data/", "/data/"]
    assert done.stderr == ""


def test_zsh_is_given_its_script() -> None:
    assert "completion next" in script("_chelonia")
