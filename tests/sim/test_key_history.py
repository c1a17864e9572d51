"""The simulator's rules for answers about a key, and about an upload: allowed ones and forbidden ones."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from chelonia.wire.s3.versions import ENABLED, NULL, SUSPENDED
from tests.sim.key_history import (
    ABSENT,
    DONE,
    ERASE,
    FOREVER,
    NOTHING,
    REFUSED,
    REMOVE,
    WRITE,
    Content,
    Deed,
    KeyHistory,
    Shown,
    Switches,
)
from tests.sim.model import Violation
from tests.sim.upload_history import Attempt, UploadHistory

ONE, TWO = (Content(data, hashlib.md5(data).hexdigest()) for data in (b"one", b"two"))


class Teller:
    """A key whose bucket keeps versions unless stated otherwise; each act ends before the next begins."""

    def __init__(self, state: str = ENABLED) -> None:
        switches = Switches()
        switches.deeds = [(Deed(0, WRITE, -2, ended=-1, told=DONE), state)]
        self.now = itertools.count(1).__next__
        self.key = KeyHistory("k", switches, self.now)

    def done(self, deed: Deed, version: str = "", etag: str = "") -> Deed:
        deed.ended = self.now()
        self.key.done(deed, version, etag)
        return deed

    def put(self, content: Content, version: str = "", unless: str = "") -> Deed:
        return self.done(self.key.begin(0, WRITE, [content], unless=unless), version, content.etag)

    def remove(self, marker: str) -> Deed:
        return self.done(self.key.begin(0, REMOVE), marker)

    def erase(self, version: str) -> None:
        deed = self.key.begin(0, ERASE, version=version)
        deed.ended, deed.told = self.now(), DONE

    def reads(self, content: Content | None, version: str = "") -> None:
        what = (WRITE, content.etag) if content else (NOTHING, "")
        self.key.read(*what, (self.now(), self.now()), version)

    def lists(self, *shown: Shown) -> None:
        self.key.listed(shown, (self.now(), self.now()))


def shown(version: str, content: Content | None, *, latest: bool = False) -> Shown:
    return Shown(version, WRITE if content else REMOVE, content.etag if content else "", latest)


def test_what_was_acknowledged_is_there_until_it_is_hidden_or_erased() -> None:
    tell = Teller()
    tell.put(ONE, "v1")
    tell.put(TWO, "v2")
    tell.reads(TWO)
    tell.lists(shown("v2", TWO, latest=True), shown("v1", ONE))
    tell.remove("m")
    tell.reads(None)
    tell.erase("m")
    tell.erase("v2")
    tell.reads(ONE)
    tell.lists(shown("v1", ONE, latest=True))


@pytest.mark.parametrize(
    "listed",
    [
        (),
        (shown("v2", TWO, latest=True),),
        (shown("v1", ONE, latest=True), shown("v2", TWO)),
        (shown("v2", ONE, latest=True), shown("v1", ONE)),
        (shown("v2", TWO, latest=True), shown("v3", TWO), shown("v1", ONE)),
        (shown("v2", TWO, latest=True), shown("v1", ONE), shown("v1", ONE)),
        (shown("m", None, latest=True), shown("v2", TWO), shown("v1", ONE)),
        (shown("v2", TWO), shown("v1", ONE)),
    ],
    ids=["all gone", "one gone", "wrong order", "other bytes", "nobody's", "twice", "a marker", "no latest"],
)
def test_a_listing_that_cannot_be_is_a_violation(listed: tuple[Shown, ...]) -> None:
    tell = Teller()
    tell.put(ONE, "v1")
    tell.put(TWO, "v2")
    with pytest.raises(Violation):
        tell.lists(*listed)


@pytest.mark.parametrize(("content", "version"), [(ONE, ""), (None, ""), (None, "v1"), (TWO, "v1")])
def test_a_read_that_cannot_be_is_a_violation(content: Content | None, version: str) -> None:
    tell = Teller()
    tell.put(ONE, "v1")
    tell.put(TWO, "v2")
    with pytest.raises(Violation):
        tell.reads(content, version)


def test_of_what_is_erased_and_of_what_was_refused_nothing_is_read() -> None:
    tell = Teller()
    tell.put(ONE, "v1")
    tell.erase("v1")
    tell.reads(None)
    with pytest.raises(Violation):
        tell.reads(ONE, "v1")
    refused = tell.key.begin(7, WRITE, [TWO])
    refused.ended, refused.told = tell.now(), REFUSED
    with pytest.raises(Violation):
        tell.reads(TWO)
    with pytest.raises(Violation):
        tell.key.met(7, "v2", (tell.now(), tell.now()))


def test_a_version_that_waits_for_its_key_is_seen_until_it_is_refused() -> None:
    tell = Teller()
    tell.put(ONE, "v1")
    waiting = tell.key.begin(7, WRITE, [TWO], unless=ABSENT)
    began = tell.now()
    waiting.ended, waiting.told = tell.now(), REFUSED
    both = shown("v1", ONE, latest=True), shown("v2", TWO)
    tell.key.listed(both, (began, tell.now()))
    tell.key.met(7, "v2", (began, tell.now()))
    with pytest.raises(Violation):
        tell.lists(*both)


def test_what_is_unknown_may_be_or_not_and_stays_once_it_was_met() -> None:
    tell = Teller()
    tell.put(ONE, "v1")
    unknown = tell.key.begin(7, WRITE, [TWO])
    tell.reads(ONE)
    tell.reads(TWO)
    tell.lists(shown("v1", ONE, latest=True))
    unknown.ended = tell.now()
    tell.key.met(7, "v2", (tell.now(), tell.now()))
    tell.reads(TWO, "v2")
    with pytest.raises(Violation):
        tell.lists(shown("v1", ONE, latest=True))


def test_the_null_version_is_the_last_one_and_replaces_no_other() -> None:
    tell = Teller(SUSPENDED)
    tell.put(ONE)
    tell.put(TWO)
    tell.reads(TWO, NULL)
    with pytest.raises(Violation):
        tell.reads(ONE, NULL)
    tell.remove(NULL)
    tell.lists(shown(NULL, None, latest=True))
    tell.erase(NULL)
    tell.lists()
    with pytest.raises(Violation):
        tell.reads(TWO)


@pytest.mark.parametrize(("state", "version"), [(ENABLED, ""), (SUSPENDED, "v1"), ("", "v1")])
def test_a_version_is_as_its_bucket_is(state: str, version: str) -> None:
    with pytest.raises(Violation):
        Teller(state).put(ONE, version)


def test_a_condition_is_held_and_one_alone_can_hold_it() -> None:
    tell = Teller()
    tell.put(ONE, "v1", unless=ABSENT)
    tell.put(TWO, "v2", unless=ONE.etag)
    with pytest.raises(Violation):
        tell.put(TWO, "v3", unless=ABSENT)
    tell = Teller()
    tell.put(ONE, "v1")
    one, other = (tell.key.begin(0, WRITE, [TWO], unless=ONE.etag) for _ in range(2))
    tell.done(one, "v2", TWO.etag)
    tell.done(other, "v3", TWO.etag)
    with pytest.raises(Violation):
        tell.key.rested()
    refused = tell.key.begin(0, WRITE, [ONE], unless=TWO.etag)
    refused.ended = tell.now()
    with pytest.raises(Violation):
        tell.key.not_so(refused)


class Uploading(Teller):
    """The same, with an upload of one part that has arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.upload = UploadHistory(self.key, 7, "u", self.now)
        self.upload.put(1, b"part").told = DONE
        self.upload.parts[1] = b"part"
        self.etag = self.upload.content(self.upload.order).etag

    def complete(self, version: str = "v1") -> Attempt:
        attempt = self.upload.complete(self.upload.order)
        self.upload.over(attempt)
        self.upload.completed(attempt, version, self.etag)
        return attempt

    def again(self) -> Attempt:
        attempt = self.upload.complete(self.upload.order)
        self.upload.over(attempt)
        return attempt


def test_an_upload_is_one_object_however_often_it_is_completed() -> None:
    tell = Uploading()
    tell.complete()
    tell.complete()
    tell.reads(tell.upload.content(tell.upload.order), "v1")
    with pytest.raises(Violation):
        tell.complete("v2")


@pytest.mark.parametrize("wrong", ["etag", "no such upload", "given up", "listed as open", "not listed"])
def test_what_an_upload_cannot_be_told_is_a_violation(wrong: str) -> None:
    tell = Uploading()
    if wrong == "not listed":
        with pytest.raises(Violation):
            tell.upload.rested(is_open=False)
        return
    tell.complete()
    told = {
        "etag": lambda: tell.upload.completed(tell.again(), "v1", ONE.etag),
        "no such upload": lambda: tell.upload.none_such(tell.again()),
        "given up": lambda: tell.upload.aborted(tell.upload.abort()),
        "listed as open": lambda: tell.upload.rested(is_open=True),
    }
    with pytest.raises(Violation):
        told[wrong]()


def test_there_is_no_such_upload_once_it_may_be_given_up_or_what_it_became_is_gone() -> None:
    tell = Uploading()
    tell.complete()
    tell.erase("v1")
    tell.upload.none_such(tell.again())
    tell = Uploading()
    completing = tell.again()
    tell.erase(NULL)
    tell.upload.over(completing)
    tell.upload.none_such(completing)
    tell.upload.rested(is_open=False)
    tell = Uploading()
    aborting = tell.upload.abort()
    tell.upload.none_such(tell.again())
    assert aborting.ended == FOREVER
    tell.upload.rested(is_open=True)
