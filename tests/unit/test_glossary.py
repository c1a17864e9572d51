"""One meaning for one name: class names are unique, glossary terms are in order, private words stay away.

Docstrings and documents are short sentences that begin with their noun.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("chelonia", "clients", "fuse")
DESCRIBED = (*SHIPPED, "tests", "bench", "demo")

PRIVATE_WORDS = {
    "footing": "context",
    "doubts": "failure evidence",
    "stillness": "freeze",
    "standing": "candidacy, or an open connection",
    "beats": "heartbeats",
    "telling": "answers, or notifications",
    "steering": "operator controls",
    "strain": "lateness, or loop lag",
    "keeping": "internal blobs, or membership steps",
    "rechecking": "receipt audit",
    "recounts": "listing of records",
}
"""Words that stood for an idea which has a name in the field: the word, and that name."""

WORDS_MAX, SEMICOLONS_MAX = 25, 1
"""In one sentence, or one item of a list."""
PRONOUNS = re.compile(r"(What|Who|Whom|Whose|Whoever|Whatever)\b[^?]*$")
"""A sentence begins with a noun and its verb, not so. A question may."""

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/**/*.md")
LONG_STILL = {
    "ARCHITECTURE.md": 2,
    "docs/design/005-tickets-and-receipts.md": 2,
    "docs/design/008-simulation.md": 11,
    "docs/design/013-rebuild.md": 11,
    "docs/design/019-files.md": 5,
    "docs/design/020-contents.md": 5,
    "docs/operate/all-metadata-lost.md": 6,
    "docs/operate/certificate-authority-lost.md": 1,
    "docs/performance.md": 34,
}
"""Sentences that are still too long, of each document. The numbers only fall: a new sentence is short."""
LONG_SLACK = 10
"""Sentences that may be mended before the numbers have to follow."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Facts of a module. Its tree is not kept: all trees take 700 MB, and the time of the garbage collector."""

    classes: tuple[str, ...]
    names: tuple[str, ...]
    described: tuple[str, ...]
    waits: bool


@cache
def _parsed(path: Path) -> Parsed:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    classes = tuple(node.name.lstrip("_") for node in nodes if isinstance(node, ast.ClassDef))
    waits = any(isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith) for node in nodes)
    return Parsed(classes, tuple(_names(nodes)), tuple(_described(nodes)), waits)


def _modules(tops: tuple[str, ...] = SHIPPED) -> dict[Path, Parsed]:
    """Every module of these folders."""
    return {path: _parsed(path) for top in tops for path in sorted((ROOT / top).rglob("*.py"))}


def test_a_class_name_stands_for_one_class() -> None:
    where = defaultdict(list)
    for path, module in _modules().items():
        for name in module.classes:
            where[name].append(str(path.relative_to(ROOT)))
    assert len(where) > 500
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def _names(nodes: list[ast.AST]) -> Iterator[str]:
    """The names that a module defines, imports under another name, and assigns."""
    for node in nodes:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.alias(asname=str(name)) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def test_a_class_of_replicas_is_of_copies_of_blobs() -> None:
    """The A-Hash's group has peers; a replicated store says so by its adjective (`ReplicatedStore`)."""
    bad = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, module in _modules().items()
        if "ahash" in path.name or "ahash" in path.parts
        for name in module.classes
        if "Replica" in name and not name.startswith(("Replicated", "Replication"))
    ]
    assert bad == []


def test_no_name_is_a_private_word() -> None:
    bad = []
    for path, module in _modules().items():
        for name in (path.stem, *module.names):
            parts = re.findall(r"[A-Z]?[a-z]+", name)
            bad += [f"{path.relative_to(ROOT)}: {name}" for part in parts if part.lower() in PRIVATE_WORDS]
    assert bad == []


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## Glossary", 1)[1]
    words = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    bare = [re.sub(r"[^a-z-]", "", word.lower()) for word in words]
    assert len(words) > 40
    assert bare == sorted(bare)
    assert len(set(bare)) == len(bare)


def _described(nodes: list[ast.AST]) -> Iterator[str]:
    """Return the docstrings of a module, and the strings that describe its constants and fields."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. |\| ))", text):
        yield from re.split(r"(?<=[.!?])[*_)\"]*\s+", paragraph.strip())


def _prose(document: str) -> str:
    """A document without code, tables, headings and pictures; a name or command in a sentence counts as one word."""
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", document, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n)+", "", text)
    lines = ["" if line.lstrip().startswith(("|", "#")) else line for line in text.splitlines()]
    return re.sub(r"`[^`]+`", "code", "\n".join(lines))


def _is_long(sentence: str) -> bool:
    """Whether a sentence is too long, or does not begin with its noun."""
    too_long = len(sentence.split()) > WORDS_MAX or sentence.count(";") > SEMICOLONS_MAX
    return too_long or PRONOUNS.match(sentence) is not None


def test_sentences_are_short_and_begin_with_their_noun() -> None:
    described = {path: module.described for path, module in _modules(DESCRIBED).items()}
    assert sum(map(len, described.values())) > 5000
    bad = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path, texts in described.items()
        for text in texts
        for sentence in _sentences(text)
        if _is_long(sentence)
    ]
    assert bad == []


def test_sentences_of_documents_are_short_too() -> None:
    pages = [page for pattern in DOCUMENTS for page in sorted(ROOT.glob(pattern))]
    found = {str(page.relative_to(ROOT)): [*filter(_is_long, _sentences(_prose(page.read_text())))] for page in pages}
    assert sum(len([*_sentences(_prose(page.read_text()))]) for page in pages) > 4000
    assert {page: long for page, long in found.items() if len(long) > LONG_STILL.get(page, 0)} == {}
    assert sum(LONG_STILL.values()) - sum(map(len, found.values())) <= LONG_SLACK, "lower the numbers"


def test_prose_is_what_a_reader_reads_as_sentences() -> None:
    document = "# A head\n\nOne `a b c`. **Two.** Three!\n\n| a | row |\n\n```\na; b; c\n```\n- four\n- five ![x](y)\n"
    assert [*filter(None, _sentences(_prose(document)))] == ["One code.", "**Two.", "Three!", "- four", "- five"]
    assert _is_long("word " * 26)
    assert _is_long("a; b; c")
    assert _is_long("Who calls, waits.")
    assert not _is_long("Who calls?")


def test_what_is_called_decide_waits_for_nothing() -> None:
    decides = {path: module for path, module in _modules().items() if path.stem == "decide"}
    assert len(decides) > 10
    assert [str(path) for path, module in decides.items() if module.waits] == []
