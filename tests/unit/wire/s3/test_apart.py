"""Keys that are kept apart: lawful names, the order of the keys, and nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.names import parse_ln
from chelonia.wire.s3 import apart

ODD = st.text(st.sampled_from("./%&~}|=+ a\x00\x1f\x7f\x80\x9f\xa0\xa1é※\U0010ffff"), min_size=1, max_size=90)
KEYS = st.one_of(ODD, st.text(st.characters(codec="utf-8"), min_size=1, max_size=150))


def below(key: str) -> str:
    return "/".join(apart.path_of(key)[1:])


@given(KEYS)
def test_a_key_comes_back_from_lawful_names(key: str) -> None:
    assert apart.key_of(below(key)) == key
    path = apart.path_of(key)
    assert parse_ln("/" + "/".join(path)).parts == path


@given(KEYS, KEYS)
def test_paths_have_the_order_of_keys(one: str, other: str) -> None:
    assert (below(one).encode() < below(other).encode()) == (one.encode() < other.encode())


@given(ODD, ODD)
def test_paths_begin_as_keys_do(beginning: str, rest: str) -> None:
    assert below(beginning + rest).startswith(apart.prefix_of(beginning))
    assert below(beginning + rest).encode() < apart.prefix_of(beginning + apart.AFTER * 91).encode()


def test_keys_stay_readable() -> None:
    assert apart.path_of("dir.d//file.txt") == ("※keys", "=dir.d.~.~file.txt")
    assert apart.path_of("a b/") == ("※keys", "=a%20b.~")
    assert apart.path_of("x" * 64) == ("※keys", "=" + "x" * 63 + "+", "=x")
    assert [len(apart.path_of(char * 1024)) < 256 for char in "\x00/."] == [True] * 3


@pytest.mark.parametrize("path", ["a", "", "=", "=a/b", "=a+/=b", "=%2", "=%41", "x=a", "=a/=b"])
def test_what_is_there_otherwise_is_no_key(path: str) -> None:
    assert apart.key_of(path) is None


def test_keys_that_are_names() -> None:
    assert all(apart.is_name(key, 1) for key in ("a", "a/b.c", "dir/", "ü x"))
    odd = ("a//b", "/a", "a/./b", "..", "a\x01", "x" * 256, "/", "//", "※x", "a/" * 300 + "b")
    assert not any(apart.is_name(key, 1) for key in odd)
