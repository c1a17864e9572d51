"""Share tokens: a signed one is read, each other is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import Scope
from chelonia.wire.shares import ShareToken, issue, kept_of, password_of, verify, verify_password
from tests.support.failing import fails

KEY = bytes(range(32))
TOKEN = ShareToken(
    "0a1b2c3d4e5f", Dn("/CN=joe"), "5f /CN=CA", Scope((Action.READ,), ("lab", "run1")), Ms(1_000), Ms(2_000)
)


def test_what_was_signed_is_read_until_its_end() -> None:
    text = issue(KEY, TOKEN)
    assert verify(KEY, text, 1_999) == TOKEN
    with fails(Kind.EXPIRED):
        verify(KEY, text, 2_000)


def test_the_layout_is_the_documents(document: str) -> None:
    assert f"`{issue(KEY, TOKEN)}`" in document


def test_a_password_stands_for_what_is_kept_of_a_token(document: str) -> None:
    text = issue(KEY, TOKEN)
    password, kept = password_of(text), kept_of(text)
    assert f"`{password}`" in document
    assert verify_password(KEY, password, kept, 1_999) == TOKEN
    with fails(Kind.EXPIRED):
        verify_password(KEY, password, kept, 2_000)
    other = issue(KEY, structs.replace(TOKEN, dn=Dn("/CN=eve")))
    for shown, of in ((password, kept_of(other)), (password_of(other), kept), (password, ""), (kept, kept), ("", kept)):
        with fails(Kind.BAD_TICKET):
            verify_password(KEY, shown, of, 1_000)
    with fails(Kind.BAD_TICKET):
        verify(KEY, kept, 1_000)


@pytest.fixture
def document() -> str:
    from pathlib import Path

    return (Path(__file__).parents[3] / "docs" / "formats" / "share-token.md").read_text()


@given(st.integers(min_value=0), st.characters(codec="ascii"))
def test_a_changed_letter_is_refused(at: int, letter: str) -> None:
    text = issue(KEY, TOKEN)
    at %= len(text)
    if text[at] == letter:
        return
    with fails(Kind.BAD_TICKET):
        verify(KEY, text[:at] + letter + text[at + 1 :], 1_000)


@pytest.mark.parametrize("text", ["", "x", "A" * 40, "A" * 9000, "ö" * 60])
def test_what_is_no_token_is_refused(text: str) -> None:
    with fails(Kind.BAD_TICKET):
        verify(KEY, text, 0)


def test_another_clusters_key_counts_for_nothing() -> None:
    with pytest.raises(CheloniaError, match="not from this cluster"):
        verify(bytes(32), issue(KEY, TOKEN), 1_000)
