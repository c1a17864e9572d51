"""Listings of everything below an object: pages equal those of a plain sort, and summed up or left out entries are not
read."""

from __future__ import annotations

import random

from chelonia.ahash import below
from chelonia.ahash.engine import Overlay, transact
from chelonia.core import bounds
from chelonia.core.contents.below import Below, common_prefix
from chelonia.core.contents.summaries import SECTION
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import Needed
from chelonia.core.values import replace
from tests.support.ahash import put
from tests.support.memory_store import MemoryStore

TOP = ObjectId("0")
ENTRY = (Needed("entry"),)
NAMES = ["a", "a.", "a-b", "b", "ab", "é", "z", "\U0010ffff", "a\x7f"]


def summary(path: str) -> str:
    """The summary beside the name of a file, which has the path for a GUID: none, another file's, or a marked one."""
    kind = sum(path.encode()) % 5
    return "" if not kind else f"{path}{'x' if kind == 1 else ''} f{'u' if kind == 2 else ''} 1 2 3"


class Counted:
    """A store that counts the rows it hands out."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.rows = 0

    def get(self, key: bytes) -> bytes | None:
        return self.store.get(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found = self.store.scan(start, end, limit)
        self.rows += len(found)
        return found

    def fill(self, tree: dict[str, list[str]]) -> None:
        """Add names by collection (its path, "" for the top); an object has its path as its id."""
        for path, names in tree.items():
            overlay = Overlay(self.store)
            for start in range(0, len(names), 1000):
                some = names[start : start + 1000]
                assert transact(overlay, tuple(put(path or "0", "entries", n, path + n) for n in some)) is None
                told = [(name, summary(path + name)) for name in some if not name.endswith("/")]
                beside = tuple(put(path or "0", SECTION, name, text) for name, text in told if text)
                assert transact(overlay, beside) is None
            if not names:
                assert transact(overlay, (put(path, "entry", "type", "collection"),)) is None
            self.store.commit({k: v for k, v in overlay.pending.items() if v is not None}, ())


def grown(rng: random.Random, path: str = "", depth: int = 4) -> dict[str, list[str]]:
    names = [name + rng.choice(["", "/"]) for name in rng.sample(NAMES, rng.randrange(len(NAMES)))]
    tree = {path: names}
    for name in names:
        if name.endswith("/"):
            tree |= grown(rng, path + name, depth - 1) if depth else {path + name: []}
    return tree


def expected(tree: dict[str, list[str]], ask: Below) -> list[str]:
    """The answers in one page, by sorting all paths."""
    out: dict[str, None] = {}
    paths = [path + name for path, names in tree.items() for name in names if ask.deep or not path]
    for path in sorted(paths, key=str.encode):
        answer = common_prefix(path, ask.prefix, ask.delimiter) or path
        later = not ask.past or not path.startswith(ask.after)
        if path.startswith(ask.prefix) and later and answer.encode() > ask.after.encode():
            out[answer] = None
    return list(out)


def told(reader: Counted, ask: Below) -> list[str]:
    found: list[str] = []
    while True:
        page = below.read_below(reader, ask)
        assert len(page.leaves) <= ask.limit
        met = {leaf.path for leaf in (*page.crossed, *page.leaves)}
        for leaf in page.leaves:
            above = leaf.path[: leaf.path.rfind("/", 0, -1) + 1]
            assert not above or above in met, "a reader knows every collection on the way to an answer"
            assert leaf.object is None or leaf.object.id == leaf.path
            beside = summary(leaf.path)
            says_all = ask.summaries and beside.startswith(f"{leaf.path} f") and not (ask.marks and " fu " in beside)
            assert not leaf.summary or leaf.summary == beside
            assert leaf.sums_up or leaf.path.endswith("/") or bool(leaf.summary) == says_all, ask
        found += [leaf.path for leaf in page.leaves]
        if not page.after:
            return found
        ask = replace(ask, after=page.after, past=False)


def test_pages_are_those_of_a_plain_sort() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        tree = grown(rng)
        reader = Counted()
        reader.fill(tree)
        paths = [path + name for path, names in tree.items() for name in names] or ["x"]
        for _ in range(40):
            ask = Below(
                TOP,
                after=rng.choice(["", rng.choice(paths), rng.choice(paths) + rng.choice(["a", "/", "~", "/\u0101"])]),
                prefix=rng.choice(["", "", rng.choice(paths)[: rng.randrange(1, 9)]]),
                delimiter=rng.choice(["", "", "/", "a", "a/", "/a", "é", "b/a"]),
                deep=rng.random() < 0.8,
                limit=rng.choice([1, 2, 5, 1000]),
                summaries=rng.random() < 0.7,
                marks=rng.choice(["", "u"]),
            )
            past = ask.after and not ask.delimiter and rng.random() < 0.3
            assert told(reader, replace(ask, past=bool(past))) == expected(tree, replace(ask, past=bool(past))), ask


def test_what_is_summed_up_or_left_out_is_not_read() -> None:
    reader = Counted()
    many = [f"{n:05}" for n in range(3000)]
    reader.fill({"": ["a/", "b-1", *(f"c-{name}" for name in many), "d/"], "a/": many, "d/": many})
    summed = below.read_below(reader, Below(TOP, delimiter="-", prefix="", after="a/", past=True))
    assert [leaf.path for leaf in summed.leaves][:3] == ["b-", "c-", "d/"]
    reader.rows = 0
    assert [leaf.path for leaf in below.read_below(reader, Below(TOP, delimiter="/", prefix="d")).leaves] == ["d/"]
    assert [leaf.path for leaf in below.read_below(reader, Below(TOP, prefix="d/02999", needed=ENTRY)).leaves] == [
        "d/02999"
    ]
    page = below.read_below(reader, Below(TOP, after="c-", past=True, limit=2, needed=ENTRY))
    assert [leaf.path for leaf in page.leaves] == ["d/", "d/00000"]
    assert reader.rows < 100


def test_a_page_of_large_objects_ends_early() -> None:
    reader = Counted()
    reader.fill({"": ["a", "b", "c"]})
    overlay = Overlay(reader.store)
    large = "x" * bounds.VALUE_BYTES_MAX
    for name in "abc":
        assert transact(overlay, tuple(put(name, "metadata", f"{n}", large) for n in range(60))) is None
    reader.store.commit({k: v for k, v in overlay.pending.items() if v is not None}, ())
    page = below.read_below(reader, Below(TOP, needed=(Needed("metadata"),)))
    assert ([leaf.path for leaf in page.leaves], page.after) == (["a", "b"], "b")
