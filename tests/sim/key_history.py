"""The answers about one key of an S3 bucket, checked against Amazon's documents.

This is no model of the door: it has rules about answers and their times. A deed takes effect at one moment between its
beginning and its end; one of unknown outcome may do so later, or never. Instants are numbers that only rise. Only
certainties count: `x` came after `y` for certain when it began after `y` had ended. The rules:
- An acknowledged version is there, or a later or simultaneous deed replaced, hid or erased it.
- A key has one null version at most.
- Versions stand in the order of their writes; bytes and etags are those that were put.
- A condition that was met held at some moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from chelonia.wire.s3.versions import ENABLED, NULL, SUSPENDED
from tests.sim.model import Violation

WRITE, REMOVE, ERASE, NOTHING = "write", "remove", "erase", "nothing"
"""Acts on a key: a write of bytes, a removal without a version, the erasure of one version. NOTHING: there is none."""
MAYBE, DONE, REFUSED = "?", "done", "refused"
ABSENT = "*"
FOREVER = 1 << 60
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes and their etag."""

    data: bytes = field(repr=False)
    etag: str


@dataclass(eq=False, slots=True)
class Deed:
    """One request about a key, whose number is `id`.

    `contents`: what it may write.
    `version`: the version it made or is to erase, "" where no answer gave it.
    `unless`: its condition, ABSENT or an etag.
    `source`: the version that it copies.
    `seen`: the time since which its effect is certain although no answer came.
    """

    id: int
    kind: str
    began: int
    contents: tuple[Content, ...] = ()
    version: str = ""
    unless: str = ""
    source: str = ""
    ended: int = FOREVER
    told: str = MAYBE
    seen: int = FOREVER

    def __str__(self) -> str:
        etags = ",".join(content.etag[:6] for content in self.contents)
        end = "" if self.ended == FOREVER else self.ended
        return f"#{self.id} {self.kind} {etags}{self.unless and f' if {self.unless[:6]}'} {self.version} " + (
            f"{self.began}..{end} {self.told}"
        )

    @property
    def span(self) -> Span:
        """From its beginning to its end."""
        return self.began, self.ended

    @property
    def since(self) -> int:
        """The time since which its effect is certain."""
        return min(self.ended if self.told == DONE else FOREVER, self.seen)

    @property
    def takes_null(self) -> bool:
        """Whether the null version of before is gone when this takes effect; with an unknown version it may be."""
        return self.version in (NULL, "")

    def surely(self, after: int, before: int) -> bool:
        """Whether it took effect between two instants for certain."""
        return self.told == DONE and self.began > after and self.ended < before

    def perhaps(self, after: int, before: int) -> bool:
        """Whether it may have taken effect between two instants."""
        return self.told != REFUSED and self.began < before and self.ended > after

    def may_be_seen(self, span: Span) -> bool:
        """Whether its version may have been seen: a refused one waited for its key until the answer."""
        return self.began < span[1] and (self.told != REFUSED or self.ended > span[0])


@dataclass(frozen=True, slots=True)
class Shown:
    """A version, or (`kind` REMOVE) a delete marker, as a listing shows it."""

    version: str
    kind: str
    etag: str = ""
    latest: bool = False


class Switches:
    """Whether a bucket keeps versions: the users' settings and their times; `fixed`: it never does."""

    def __init__(self) -> None:
        self.fixed = False
        self.deeds = [(Deed(0, WRITE, -2, ended=-1, told=DONE), "")]

    def possible(self, span: Span) -> set[str]:
        """The states that the bucket may have had at some moment."""
        return {
            state
            for deed, state in self.deeds
            if deed.perhaps(-FOREVER, span[1]) and not any(x.surely(deed.ended, span[0]) for x, _ in self.deeds)
        }


class KeyHistory:
    """All requests and answers of one key."""

    def __init__(self, name: str, switches: Switches, now: Callable[[], int]) -> None:
        self.name, self._switches, self._now = name, switches, now
        self.deeds: list[Deed] = []

    def begin(self, op: int, kind: str, contents: Sequence[Content] = (), version: str = "", unless: str = "") -> Deed:
        deed = Deed(op, kind, self._now(), tuple(contents), version, unless)
        self.deeds.append(deed)
        self.offer(deed.contents)
        return deed

    def copy(self, op: int, source: str) -> Deed:
        """Note that a copy of a version onto the key begins."""
        deed = self.begin(op, WRITE, self.held(source))
        deed.source = source
        return deed

    def offer(self, contents: Sequence[Content]) -> None:
        """Note contents that may become the null version during a copy of it."""
        for deed in self.deeds:
            if deed.source == NULL and deed.ended == FOREVER:
                deed.contents = tuple(dict.fromkeys((*deed.contents, *contents)))

    def made(self) -> Iterator[Deed]:
        """The deeds that have made a version or marker known from an answer."""
        return (each for each in self.deeds if each.kind != ERASE and each.version and each.since < FOREVER)

    def held(self, version: str) -> tuple[Content, ...]:
        """All contents that a version may have."""
        found = [each for each in self.deeds if each.kind == WRITE and each.told != REFUSED]
        fits = [each for each in found if each.version == version or (version == NULL and each.takes_null)]
        return tuple(dict.fromkeys(content for each in fits for content in each.contents))

    # --- what can be ------------------------------------------------------------------------------------------------

    def may_show(self, kind: str, etag: str, span: Span) -> bool:
        """Whether the key may have led to bytes of this etag (WRITE), or to nothing, at some moment of a span."""
        if kind == NOTHING:
            kept = (each for each in self.deeds if each.kind == WRITE and each.since < span[0])
            return all(self._taken(each, span[1]) for each in kept)
        return any(not self._hidden(each, span) for each in self._writing(etag, span))

    def may_show_other(self, etag: str, span: Span) -> bool:
        """Whether the key may have led to bytes of another etag."""
        made = (each for each in self.deeds if each.kind == WRITE and each.perhaps(-FOREVER, span[1]))
        other = (each for each in made if any(content.etag != etag for content in each.contents))
        return any(not self._hidden(each, span) for each in other if each.span != span)

    def may_have(self, version: str, kind: str, etag: str, span: Span) -> bool:
        """Whether a version may have been bytes of this etag, a marker (REMOVE), or NOTHING, at some moment."""
        if kind == NOTHING:
            kept = (each for each in self.deeds if each.kind != ERASE and each.version == version)
            return all(self._may_be_gone(each, span[1]) for each in kept if each.since < span[0])
        return bool(self._makers(Shown(version, kind, etag), span))

    def _writing(self, etag: str, span: Span) -> Iterator[Deed]:
        found = (each for each in self.deeds if each.kind == WRITE and each.perhaps(-FOREVER, span[1]))
        return (each for each in found if any(content.etag == etag for content in each.contents))

    def _makers(self, shown: Shown, span: Span) -> list[Deed]:
        """The deeds that may have made a version, and whose version may still be there."""
        found = (each for each in self.deeds if each.kind == shown.kind and each.may_be_seen(span))
        named = [each for each in found if each.version == shown.version or (not each.version and each.told != DONE)]
        fits = [each for each in named if shown.kind == REMOVE or shown.etag in (c.etag for c in each.contents)]
        known = [each for each in fits if each.version and each.version != NULL]
        return [each for each in known or fits if not self._gone(each, shown.version, span[0])]

    def _gone(self, deed: Deed, version: str, before: int) -> bool:
        """Whether a version is certainly gone for good."""
        later = (each for each in self.deeds if each.surely(deed.ended, before))
        return any(_ends(each, version) for each in later)

    def may_lack(self, deed: Deed, before: int) -> bool:
        """Whether the version that a deed has made, or may have, is possibly gone."""
        others = [each for each in self.deeds if each is not deed and each.perhaps(deed.began, before)]
        return any(_ends(each, version) for each in others for version in {deed.version or NULL, deed.version})

    def _may_be_gone(self, deed: Deed, before: int) -> bool:
        others = (each for each in self.deeds if each is not deed and each.perhaps(deed.began, before))
        return any(_ends(each, deed.version) for each in others)

    def _hidden(self, deed: Deed, span: Span) -> bool:
        """Whether a newer version certainly had the key for all of a span, or the deed's version is gone."""
        if deed.version and self._gone(deed, deed.version, span[0]):
            return True
        newer = (each for each in self.deeds if each.kind != ERASE and each.surely(deed.ended, span[0]))
        return any(not self._erased(each, span[1]) for each in newer)

    def _erased(self, deed: Deed, before: int) -> bool:
        erasing = (each for each in self.deeds if each.kind == ERASE and each.version == deed.version)
        return any(each.perhaps(deed.began, before) for each in erasing)

    def _taken(self, deed: Deed, before: int) -> bool:
        """Whether a removal or an erasure may have taken the key from it."""
        removed = (each for each in self.deeds if each.kind == REMOVE and each.perhaps(deed.began, before))
        return any(removed) or self._erased(deed, before)

    # --- the answers --------------------------------------------------------------------------------------------------

    def done(self, deed: Deed, version: str, etag: str = "") -> None:
        """Note that a deed was acknowledged. Raises: Violation."""
        deed.told = DONE
        states = self._switches.possible(deed.span)
        if deed.kind == WRITE:
            deed.contents = tuple(each for each in deed.contents if each.etag == etag)
            deed.version = version or NULL
            self._require(bool(deed.contents), f"{deed} is told the etag {etag}")
            fits = {ENABLED} if deed.version != NULL else {SUSPENDED, ""}
        else:
            deed.version = version
            fits = {"" if not version else SUSPENDED if version == NULL else ENABLED}
        self._require(bool(states & fits), f"{deed}, the bucket is {states}")
        if deed.unless:
            kept = (NOTHING, "") if deed.unless == ABSENT else (WRITE, deed.unless)
            self._require(self.may_show(*kept, deed.span), f"{deed}, though its condition did not hold")

    def not_so(self, deed: Deed) -> None:
        """Note that a deed was refused for its condition. Raises: Violation."""
        deed.told = REFUSED
        other = "" if deed.unless == ABSENT else deed.unless
        broken = self.may_show_other(other, deed.span) or (
            deed.unless != ABSENT and self.may_show(NOTHING, "", deed.span)
        )
        self._require(bool(deed.unless) and broken, f"{deed}, though its condition held")

    def read(self, kind: str, etag: str, span: Span, version: str = "") -> None:
        """Note a read of the key, or of a version of it. Raises: Violation."""
        fits = self.may_have(version, kind, etag, span) if version else self.may_show(kind, etag, span)
        self._require(fits, f"{version or 'the key'} was {kind} {etag} in {span}")

    def met(self, op: int, version: str, span: Span) -> None:
        """Note that a request's content was found under a version, in a read of this span. Raises: Violation."""
        deed = next((each for each in self.deeds if each.id == op and each.kind == WRITE), None)
        self._require(deed is not None and deed.may_be_seen(span), f"{version} is of #{op}, which was refused")
        assert deed is not None
        self._require(deed.version in ("", version), f"{version} is of {deed}")
        if version != NULL and deed.told != REFUSED:
            deed.version, deed.seen = version, min(deed.seen, span[1])

    def listed(self, shown: Sequence[Shown], span: Span) -> None:
        """Note a listing of its versions. Raises: Violation."""
        versions = [each.version for each in shown]
        what = f"listed in {span}: {list(map(_short, shown))}"
        self._require(len(set(versions)) == len(versions), f"a version twice, {what}")
        for each in shown:
            self._require(self.may_have(each.version, each.kind, each.etag, span), f"{_short(each)} cannot be, {what}")
        for version in {each.version for each in self.made()} - set(versions):
            self._require(self.may_have(version, NOTHING, "", span), f"{version} is not there, {what}")
        self._require([each.latest for each in shown] == [True, *[False] * len(shown)][: len(shown)], what)
        first = shown[0] if shown and shown[0].kind == WRITE else Shown("", NOTHING)
        self._require(self.may_show(first.kind, first.etag, span), f"{_short(first)} cannot have the key, {what}")
        for newer, older in combinations(shown, 2):
            self._require(not self._surely_before(newer, older, span), f"{_short(newer)} is older, {what}")

    def _surely_before(self, one: Shown, other: Shown, span: Span) -> bool:
        """Whether acknowledged deeds prove this order. Only deeds before the listing began count, as others may not
        have taken or given up the key yet."""
        if any(self.may_have(each.version, NOTHING, "", span) for each in (one, other)):
            return False
        pairs = [(a, b) for a in self._makers(one, span) for b in self._makers(other, span)]
        return all(a.told == DONE and b.surely(a.ended, span[0]) for a, b in pairs)

    def rested(self) -> None:
        """Check that of two deeds with the same required state only one found it. Raises: Violation."""
        kept = [each for each in self.deeds if each.unless and each.told == DONE]
        for one, other in combinations(kept, 2):
            if one.unless == other.unless:
                span = min(one.began, other.began), max(one.ended, other.ended)
                between = [x for x in self.deeds if x not in (one, other) and x.perhaps(*span)]
                self._require(any(_again(x, one.unless) for x in between), f"{one} and {other} cannot both be done")

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"{self.name}: {what}\n  " + "\n  ".join(map(str, self.deeds)))


def _ends(deed: Deed, version: str) -> bool:
    """Whether this ends a version when it takes effect; with an unknown version it may."""
    if deed.kind == ERASE:
        return deed.version == version
    return version == NULL and deed.takes_null


def _again(deed: Deed, unless: str) -> bool:
    """Whether this may have brought a state back."""
    if unless == ABSENT:
        return deed.kind != WRITE
    return deed.kind == ERASE or any(content.etag == unless for content in deed.contents)


def _short(shown: Shown) -> str:
    return f"{shown.version} {shown.kind} {shown.etag[:6]}"
