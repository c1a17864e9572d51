"""The implementations under the contract suites of `Files`."""

from tests.support.files_worlds import grid, play

__all__ = ["grid", "play"]
