"""Code that has to raise a `CheloniaError`."""

from collections.abc import Awaitable
from contextlib import AbstractContextManager

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Failure


def fails(kind: Kind, match: str | None = None) -> AbstractContextManager[pytest.ExceptionInfo[CheloniaError]]:
    """Expect a `CheloniaError` of this kind, and with this in its line (a regular expression)."""
    return pytest.raises(CheloniaError, match=match, check=lambda error: error.kind is kind)


async def kind_of(work: Awaitable[object]) -> Kind:
    """The kind of the `CheloniaError` that `work` must raise."""
    with pytest.raises(CheloniaError) as caught:
        await work
    return caught.value.kind


def failure_kind(answer: object) -> Kind:
    """The kind of the `Failure` that an answer of a port must be."""
    assert isinstance(answer, Failure)
    return answer.kind
