"""Keeps the documents honest: their links, names and commands must exist.

Reads every tracked Markdown file; a path may be relative to the repository or to the document. Commands are compared
with the Makefile and with the parsers of the two commands themselves, configurations with the daemon's own reader.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core.errors import Kind
from chelonia.hosting.cheloniad import parser_of as cheloniad_parser
from chelonia.hosting.config import parse_config
from chelonia.hosting.doors.large_bodies import OTHERS, PER_OWNER
from chelonia.shepherd.rules.open_uploads import Crowd
from chelonia_clients.arguments import GLOBAL
from chelonia_clients.verbs.finding import find_verb
from chelonia_clients.verbs.table import ADMIN, VERBS, Verb

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE_LINES_MAX = 300
CHANGELOG_WORDS_MAX = 800
CONNECTION_SHARES = "chelonia/hosting/doors/connection_shares.py"

# First parts of what counts as a path into the repository, when a document writes it as code.
FOLDERS = ("chelonia", "clients", "fuse", "tests", "docs", "conf", "scripts", "systemd", "demo", "bench", ".ci")

# A folder only one machine has, a package registry or its switch. None stands spelled out here.
PRIVATE = re.compile(
    r"(?<![\w.$}/-])/(?:work|root)/[\w.]|(?:py"
    r"pi|python"
    r"hosted|npm"
    r"js)\.org|go"
    r"lang\.org"
    r"|--(?:extra-)?index-url[ =]"
)

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEST_NAME = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def tracked(*patterns: str) -> list[Path]:
    """List tracked files that are still there, in order."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def documents() -> list[Path]:
    return tracked("*.md")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_document = pytest.mark.parametrize("document", documents(), ids=name_of)


# ------------------------------------------------------------------------------------------------------ links and paths


def exists(target: str, document: Path) -> bool:
    """Whether a path, or a pattern like `operations_*.py`, names something here."""
    bases = (document.parent, ROOT)
    if "*" in target:
        return any(any(base.glob(target)) for base in bases if not target.startswith("../"))
    return any((base / target).exists() for base in bases)


def paths_named(text: str) -> Iterator[str]:
    """Yield the code in a document that means a path into the repository."""
    for code in CODE.findall(FENCE.sub("", text)):
        word = code.partition("::")[0].rstrip("/")
        first = word.removeprefix("../").partition("/")[0]
        is_path = re.fullmatch(r"[\w.*/-]+", word) and "/" in word
        if is_path and (first in FOLDERS or word.endswith(".py") or (word.startswith("../") and "." in word[3:])):
            yield word
    for _language, block in FENCE.findall(text):
        yield from re.findall(r"(?<![\w./-])(?:conf|systemd|scripts|demo)/[\w@.-]+\w", block)


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        target, _, anchor = link.partition("#")
        page = document.parent / target if target else document
        assert "://" in link or page.exists(), link
        assert "://" in link or not anchor or anchor in anchors(page.read_text()), link


def anchors(text: str) -> set[str]:
    """Return the link targets of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_a_heading_is_linked_to_by_its_words() -> None:
    text = "# `make` it, *now*\n```\n# no heading\n```\n## 6. Let people in\n"
    assert anchors(text) == {"make-it-now", "6-let-people-in"}


@each_document
def test_every_path_named_exists(document: Path) -> None:
    assert [path for path in paths_named(document.read_text()) if not exists(path, document)] == []


@each_document
def test_every_test_named_exists(document: Path) -> None:
    named = TEST_NAME.findall(document.read_text())
    assert [f"{file}::{test}" for file, test in named if test not in functions_of(ROOT / file)] == []


def functions_of(file: Path) -> set[str]:
    """Return the names of a file's functions."""
    if not file.exists():
        return set()
    nodes = ast.parse(file.read_text()).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@each_document
def test_every_module_named_without_its_folder_exists(document: Path) -> None:
    modules = {path.name for path in tracked("*.py")}
    assert set(re.findall(r"`(\w+\.py)`", document.read_text())) - modules == set()


def test_a_path_that_is_gone_is_noticed() -> None:
    text = "see `chelonia/core/gone.py`, `chelonia/core/*.py`, `and/or`\n```\ncp conf/gone.toml .\n```\n"
    assert list(paths_named(text)) == ["chelonia/core/gone.py", "chelonia/core/*.py", "conf/gone.toml"]
    assert not exists("chelonia/core/gone.py", ROOT / "README.md")
    assert exists("chelonia/core/*.py", ROOT / "README.md")


def test_every_document_is_in_an_index() -> None:
    """Nobody reads a page that no index names."""
    indexes = [ROOT / name for name in ("README.md", "docs/README.md", "docs/formats/README.md")]
    linked = {(index.parent / link).resolve() for index in indexes for link in LINK.findall(index.read_text())}
    pages = [page for page in tracked("docs/*.md") if page.name != "README.md"]  # git's `*` goes down into folders
    assert [name_of(page) for page in pages if page.resolve() not in linked] == []


# --------------------------------------------------------------------------------------------------------- architecture


def invariant_rows() -> list[list[str]]:
    """Return the rows of ARCHITECTURE's table of invariants as cells."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.partition("## Invariants")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= ARCHITECTURE_LINES_MAX


def test_the_changelog_is_a_page_before_the_first_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "unreleased" in text
    assert len(text.split()) <= CHANGELOG_WORDS_MAX


def test_every_invariant_has_a_guard() -> None:
    rows = invariant_rows()
    assert len(rows) > 10
    for row in rows:
        guards = [code for code in CODE.findall(row[-1]) if code.startswith("tests/") or code == "pyproject.toml"]
        assert guards, f"nothing guards: {row[0]}"
        assert [guard for guard in guards if not (ROOT / guard).is_file()] == []


# ------------------------------------------------------------------------------------------------------------- commands


def commands(text: str, command: str) -> set[str]:
    """Return the first words after `command`, wherever a document writes it as code."""
    blocks = [block for language, block in FENCE.findall(text) if language != "toml"]
    lines = [line for block in blocks for line in block.splitlines()] + CODE.findall(FENCE.sub("", text))
    pattern = re.compile(rf"(?:^|[ /])(?:\S*/)?{command} ((?:[a-z]\S*|--\w+)(?: [a-z]+(?=\s|$))*)")
    return {match.group(1) for line in lines if (match := pattern.match(line) or pattern.match(" " + line))}


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return a parser's subcommands by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


@each_document
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {words.split()[0] for words in commands(document.read_text(), "make")}
    assert {name for name in named if re.fullmatch(r"[a-z-]+", name)} <= targets


@each_document
def test_cheloniad_commands_exist(document: Path) -> None:
    for words in commands(document.read_text(), "cheloniad"):
        first, *rest = words.split()
        if first == "--version":
            continue
        parser = subcommands(cheloniad_parser()).get(first)
        assert parser is not None, f"cheloniad {first}"
        if subcommands(parser) and rest:
            assert rest[0] in subcommands(parser), f"cheloniad {words}"


@each_document
def test_chelonia_commands_exist(document: Path) -> None:
    """Verbs are looked up as the command line does it; words after `admin` must be as in its synopsis."""
    if document.parent.name == "formats":
        return  # there `chelonia receipt 1` and the like are bytes
    for words in commands(document.read_text(), "chelonia"):
        first, *rest = words.split()
        verb = find_verb(first)
        assert verb is not None, f"chelonia {first}"
        if verb.name == "admin":
            assert set(rest) <= set(re.findall(r"[a-z]+", verb.synopsis)), f"chelonia {words}"


def calls(text: str, command: str) -> Iterator[list[str]]:
    """Yield the words after each call of `command` in a document; not where it is an option's value (an account)."""
    blocks = [block for language, block in FENCE.findall(text) if language != "toml"]
    pattern = re.compile(rf"(?<!-[a-z])(?:^|[ /(]){command} ([^#|;&>]*)")
    for line in [line for block in blocks for line in block.splitlines()] + CODE.findall(FENCE.sub("", text)):
        if found := pattern.search(line):
            yield found[1].split()


def options_in(words: list[str]) -> set[str]:
    """Return the options among the words of a call, or of a synopsis."""
    return {word.strip("[]").partition("=")[0] for word in words if re.match(r"\[?--?[a-z]", word)}


@each_document
def test_options_of_chelonia_exist(document: Path) -> None:
    """The options are the verb's own or general ones; after policy and modify one `-` begins a denied right."""
    for words in calls(document.read_text(), "chelonia"):
        verb = next((found for word in words if word[0].isalpha() and (found := find_verb(word))), None)
        known = {name for flag in (*GLOBAL, *(verb.flags if verb else ())) for name in (flag.name, flag.short)}
        given = {name for name in options_in(words) if name.startswith("--") or not (verb and verb.literal)}
        assert given <= known, f"chelonia {' '.join(words)}"


@each_document
def test_options_of_cheloniad_exist(document: Path) -> None:
    for words in calls(document.read_text(), "cheloniad"):
        parser = cheloniad_parser()
        for word in words:
            parser = subcommands(parser).get(word, parser)
        assert options_in(words) <= set(parser._option_string_actions), f"cheloniad {' '.join(words)}"


def test_options_that_are_gone_are_noticed() -> None:
    text = "```\n$ chelonia get --gone /a   # --not-this\nsudo -u chelonia x --not-this\n```\n"
    text += "and `chelonia --json ls`, `cheloniad run --conf X`"
    assert [options_in(words) for words in calls(text, "chelonia")] == [{"--gone"}, {"--json"}]
    assert [options_in(words) for words in calls(text, "cheloniad")] == [{"--conf"}]


def section_of(verb: Verb) -> str:
    """Return the section of docs/cli.md about a verb."""
    return (ROOT / "docs/cli.md").read_text().partition(f"\n## {verb.name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb is not ADMIN], ids=lambda verb: verb.name)
def test_a_verb_is_told_as_it_is_called(verb: Verb) -> None:
    assert section_of(verb)
    assert not verb.synopsis or f"`{verb.name} {verb.synopsis}`" in section_of(verb)
    for flag in verb.flags:
        assert any(f"[{name}" in verb.synopsis for name in (flag.short, flag.name) if name), flag.name


@pytest.mark.parametrize("form", ADMIN.synopsis.split(" | "))
def test_every_form_of_admin_is_told(form: str) -> None:
    cells = [row.partition(" | ")[0] for row in section_of(ADMIN).splitlines() if row.startswith("| `admin ")]
    words = re.findall(r"[a-z]+", re.split(r"[<\[]", form)[0])
    told = [set(re.findall(r"[a-z]+", cell)) for cell in cells if cell.startswith(f"| `admin {words[0]}")]
    assert any(set(words) <= each for each in told)


@pytest.mark.parametrize("page", ["docs/operate/first-cluster-by-hand.md"])
def test_configurations_shown_are_accepted(page: str) -> None:
    blocks = [block for language, block in FENCE.findall((ROOT / page).read_text()) if language == "toml"]
    assert len(blocks) == 2
    for block in blocks:
        parse_config(tomllib.loads(block))


def test_every_limit_that_can_be_met_is_told_in_troubleshooting() -> None:
    text = "".join(path.read_text("utf-8") for path in tracked("chelonia/*.py"))
    met = {*re.findall(r"\.met(?:\(|,)\s*\"([^\"]+)\"", text), *(crowd.value for crowd in Crowd), PER_OWNER, OTHERS}
    met |= set(re.findall(r"\"(connections(?: of one \w+)?)\"", (ROOT / CONNECTION_SHARES).read_text("utf-8")))
    told = (ROOT / "docs/operate/troubleshooting.md").read_text("utf-8").split("## Limits", 1)[1].split("##", 1)[0]
    assert len(met) > 20
    assert met == set(CODE.findall(told)) - {
        "connections_per_address_max",
        "connections_per_dn_max",
        "[limits]",
        "busy",
        "chelonia admin node list",
    }


def test_error_kinds_named_in_troubleshooting_exist() -> None:
    text = (ROOT / "docs/operate/troubleshooting.md").read_text()
    table = text.partition("## What users see")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {kind for cell in cells for kind in CODE.findall(cell)}
    assert len(named) > 10
    assert named <= {kind.value for kind in Kind}


def test_the_restore_of_the_runbook_begins_a_new_generation(tmp_path: Path) -> None:
    """A cold copy with the file `restored` in it opens as an older state."""
    assert "touch /backup/ahash-$(date +%F)/restored" in (ROOT / "docs/operate/backup-and-restore.md").read_text()
    settings = BdbSettings(cache_bytes=4 << 20)
    for name in ("ahash", "copy"):
        store = BdbStore(tmp_path / name, settings, pytest.fail)
        meta.prepare(store, "c")
        assert (meta.read_number(store, layout.META_GENERATION) > 1) is (name == "copy")
        store.close()
        if name == "ahash":
            shutil.copytree(tmp_path / "ahash", tmp_path / "copy")
            (tmp_path / "copy" / "restored").touch()


# ------------------------------------------------------------------------------------------------- nothing of a machine


def test_no_file_tells_of_one_machine_or_registry() -> None:
    told = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        told += [f"{name_of(path)}: {match.group()}" for match in PRIVATE.finditer(text)]
        told += [f"{name_of(path)}: {host}" for host in registry_hosts() if host in text]
    assert told == []


def registry_hosts() -> set[str]:
    """Return the package registries that this environment names."""
    text = " ".join(os.environ.get(name, "") for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL"))
    return set(re.findall(r"https?://(?:[^@/\s]*@)?([^/:\s]+)", text)) - {"localhost", "127.0.0.1"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cd " + "/wo" + "rk/main", True),
        ("see " + "/ro" + "ot/.ssh", True),
        ("from py" + "pi.org", True),
        ("pip install --index-" + "url https://x", True),
        ("https://example.org" + "/wo" + "rk/x", False),
        ("DIR/work", False),
    ],
)
def test_what_counts_as_private(text: str, found: bool) -> None:
    assert bool(PRIVATE.search(text)) is found
