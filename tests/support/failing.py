"""Code that has to raise an error of ours."""

from contextlib import AbstractContextManager

import pytest

from chelonia.core.errors import CheloniaError, Kind


def fails(kind: Kind) -> AbstractContextManager[pytest.ExceptionInfo[CheloniaError]]:
    """Around what has to raise a `CheloniaError` of this kind."""
    return pytest.raises(CheloniaError, check=lambda error: error.kind is kind)
