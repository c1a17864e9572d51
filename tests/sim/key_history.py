"""What users were told of one key of an S3 bucket, held against what Amazon's documents allow.

No model of the door: rules about what was told, and when. A deed takes effect at one moment between its beginning and
its end; one whose outcome is unknown may do so, or never. Instants are numbers that only rise. Only what is certain is
held against anybody: `x` came after `y` for certain when it began after `y` had ended.

What holds: what was acknowledged is there, or was replaced, hidden or erased by something later or at the same time;
of a key there is one null version at most; versions stand in the order of their writes; bytes and etags are those that
were put; a condition that was kept held at some moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from chelonia.wire.s3.versions import ENABLED, NULL, SUSPENDED
from tests.sim.model import Violation

WRITE, REMOVE, ERASE, NOTHING = "write", "remove", "erase", "nothing"
"""What is done to a key: bytes, a removal without a version, the end of one version. NOTHING: there is none."""
MAYBE, DONE, REFUSED = "?", "done", "refused"
ABSENT = "*"
FOREVER = 1 << 60
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes, and the etag that they have."""

    data: bytes = field(repr=False)
    etag: str


@dataclass(eq=False, slots=True)
class Deed:
    """One thing asked of a key. `id`: of the request; `contents`: what it may write; `version`: what it made, or is to
    erase, "" where nobody was told; `unless`: its condition, ABSENT or an etag; `source`: the version that it copies;
    `seen`: since when it is known to have taken effect though nobody was told."""

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
        """One line."""
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
        """Since when it has certainly taken effect."""
        return min(self.ended if self.told == DONE else FOREVER, self.seen)

    @property
    def takes_null(self) -> bool:
        """Whether the null version that was there is gone when this takes effect; perhaps, where nobody knows."""
        return self.version in (NULL, "")

    def surely(self, after: int, before: int) -> bool:
        """Whether it took effect between two instants for certain."""
        return self.told == DONE and self.began > after and self.ended < before

    def perhaps(self, after: int, before: int) -> bool:
        """Whether it may have taken effect between two instants."""
        return self.told != REFUSED and self.began < before and self.ended > after


@dataclass(frozen=True, slots=True)
class Shown:
    """A version, or (`kind` REMOVE) a delete marker, as a listing shows it."""

    version: str
    kind: str
    etag: str = ""
    latest: bool = False


class Switches:
    """Whether a bucket keeps versions: what users have set, and when; `fixed`: it never does."""

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
    """All that was asked and told of one key."""

    def __init__(self, name: str, switches: Switches, now: Callable[[], int]) -> None:
        self.name, self._switches, self._now = name, switches, now
        self.deeds: list[Deed] = []

    def begin(self, op: int, kind: str, contents: Sequence[Content] = (), version: str = "", unless: str = "") -> Deed:
        """Somebody asks for something."""
        deed = Deed(op, kind, self._now(), tuple(contents), version, unless)
        self.deeds.append(deed)
        self.offer(deed.contents)
        return deed

    def copy(self, op: int, source: str) -> Deed:
        """Somebody copies a version onto the key."""
        deed = self.begin(op, WRITE, self.held(source))
        deed.source = source
        return deed

    def offer(self, contents: Sequence[Content]) -> None:
        """Something may come to be the null version while that is copied."""
        for deed in self.deeds:
            if deed.source == NULL and deed.ended == FOREVER:
                deed.contents = tuple(dict.fromkeys((*deed.contents, *contents)))

    def made(self) -> Iterator[Deed]:
        """What has made a version, or a marker, that somebody knows."""
        return (each for each in self.deeds if each.kind != ERASE and each.version and each.since < FOREVER)

    def held(self, version: str) -> tuple[Content, ...]:
        """What a version may have, as far as anybody can know."""
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
        """What may have made a version, and not be gone."""
        found = (each for each in self.deeds if each.kind == shown.kind and each.perhaps(-FOREVER, span[1]))
        named = [each for each in found if each.version == shown.version or (not each.version and each.told == MAYBE)]
        fits = [each for each in named if shown.kind == REMOVE or shown.etag in (c.etag for c in each.contents)]
        known = [each for each in fits if each.version and each.version != NULL]
        return [each for each in known or fits if not self._gone(each, shown.version, span[0])]

    def _gone(self, deed: Deed, version: str, before: int) -> bool:
        """Whether a version is gone for certain, for ever."""
        later = (each for each in self.deeds if each.surely(deed.ended, before))
        return any(_ends(each, version) for each in later)

    def may_lack(self, deed: Deed, before: int) -> bool:
        """Whether the version that a deed has made, or may have, is perhaps not there any more."""
        others = [each for each in self.deeds if each is not deed and each.perhaps(deed.began, before)]
        return any(_ends(each, version) for each in others for version in {deed.version or NULL, deed.version})

    def _may_be_gone(self, deed: Deed, before: int) -> bool:
        others = (each for each in self.deeds if each is not deed and each.perhaps(deed.began, before))
        return any(_ends(each, deed.version) for each in others)

    def _hidden(self, deed: Deed, span: Span) -> bool:
        """Whether something newer certainly had the key for all of a span, or what was made is gone."""
        if deed.version and self._gone(deed, deed.version, span[0]):
            return True
        newer = (each for each in self.deeds if each.kind != ERASE and each.surely(deed.ended, span[0]))
        return any(not self._erased(each, span[1]) for each in newer)

    def _erased(self, deed: Deed, before: int) -> bool:
        erasing = (each for each in self.deeds if each.kind == ERASE and each.version == deed.version)
        return any(each.perhaps(deed.began, before) for each in erasing)

    def _taken(self, deed: Deed, before: int) -> bool:
        """Whether a removal or an erasure may have taken the key away from it."""
        removed = (each for each in self.deeds if each.kind == REMOVE and each.perhaps(deed.began, before))
        return any(removed) or self._erased(deed, before)

    # --- what was told ----------------------------------------------------------------------------------------------

    def done(self, deed: Deed, version: str, etag: str = "") -> None:
        """A deed was acknowledged. Raises: Violation."""
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
        """A deed was refused for its condition. Raises: Violation."""
        deed.told = REFUSED
        other = "" if deed.unless == ABSENT else deed.unless
        broken = self.may_show_other(other, deed.span) or (
            deed.unless != ABSENT and self.may_show(NOTHING, "", deed.span)
        )
        self._require(bool(deed.unless) and broken, f"{deed}, though its condition held")

    def read(self, kind: str, etag: str, span: Span, version: str = "") -> None:
        """The key, or a version of it, was read. Raises: Violation."""
        fits = self.may_have(version, kind, etag, span) if version else self.may_show(kind, etag, span)
        self._require(fits, f"{version or 'the key'} was {kind} {etag} in {span}")

    def met(self, op: int, version: str, now: int) -> None:
        """What a request has made was met under a version. Raises: Violation."""
        deed = next((each for each in self.deeds if each.id == op and each.kind == WRITE), None)
        self._require(deed is not None and deed.told != REFUSED, f"{version} is of #{op}, which was refused")
        assert deed is not None
        self._require(deed.version in ("", version), f"{version} is of {deed}")
        if version != NULL:
            deed.version, deed.seen = version, min(deed.seen, now)

    def listed(self, shown: Sequence[Shown], span: Span) -> None:
        """Its versions were listed. Raises: Violation."""
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
        """Of what was acknowledged before the listing began: what is stored may wait for its key, and what is to go has
        given it up before."""
        if any(self.may_have(each.version, NOTHING, "", span) for each in (one, other)):
            return False
        pairs = [(a, b) for a in self._makers(one, span) for b in self._makers(other, span)]
        return all(a.told == DONE and b.surely(a.ended, span[0]) for a, b in pairs)

    def rested(self) -> None:
        """Of two that each asked for the same state before it, one alone can have found it. Raises: Violation."""
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
    """Whether this ends a version when it takes effect; perhaps, where nobody knows what it makes."""
    if deed.kind == ERASE:
        return deed.version == version
    return version == NULL and deed.takes_null


def _again(deed: Deed, unless: str) -> bool:
    """Whether this may have brought a state about again."""
    if unless == ABSENT:
        return deed.kind != WRITE
    return deed.kind == ERASE or any(content.etag == unless for content in deed.contents)


def _short(shown: Shown) -> str:
    return f"{shown.version} {shown.kind} {shown.etag[:6]}"
