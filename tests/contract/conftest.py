"""What the contract suites of `Files` run on."""

from tests.support.files_worlds import grid, play

__all__ = ["grid", "play"]
