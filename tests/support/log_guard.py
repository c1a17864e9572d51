"""Fails a test whose log shows a WARNING or worse that the test did not declare.

A guard listens on the root logger from the first fixture of a test to the last. A test declares the lines that it
provokes by the marker `@pytest.mark.expect_log(pattern)` or by the fixture `expect_log(pattern)`. A declared line that
never comes fails the test as well, so that declarations do not outlive their cause.
"""

import logging
import re
from dataclasses import dataclass, field


@dataclass(slots=True)
class Expectation:
    """One declaration: the pattern, whether it may stay away, and how often it was seen."""

    pattern: re.Pattern[str]
    optional: bool
    seen: int = 0


class Listener(logging.Handler):
    """Keeps every record of WARNING or worse as one line, in the form that expectations match."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name} {record.getMessage()}")


@dataclass(slots=True)
class LogGuard:
    """Listens during one test and compares the log with the declarations."""

    listener: Listener = field(default_factory=Listener)
    expectations: list[Expectation] = field(default_factory=list)
    judged: int = 0

    def expect(self, pattern: str, *, optional: bool = False) -> None:
        """Declare lines `LEVEL logger message` that match the regular expression anywhere.

        Args:
            pattern: Regular expression.
            optional: True for what a race may or may not provoke; otherwise it must come at least once.
        """
        self.expectations.append(Expectation(re.compile(pattern), optional))

    def start(self) -> None:
        logging.getLogger().addHandler(self.listener)

    def stop(self) -> None:
        logging.getLogger().removeHandler(self.listener)

    def undeclared(self) -> list[str]:
        """Return the undeclared lines since the last call, in order."""
        fresh = self.listener.lines[self.judged :]
        self.judged = len(self.listener.lines)
        return [line for line in fresh if not self._is_declared(line)]

    def not_seen(self) -> list[str]:
        """Return the declared patterns that must come and have not."""
        return [wanted.pattern.pattern for wanted in self.expectations if not (wanted.seen or wanted.optional)]

    def is_listening(self) -> bool:
        """Return whether the guard is still on the root logger."""
        return self.listener in logging.getLogger().handlers

    def _is_declared(self, line: str) -> bool:
        matching = [wanted for wanted in self.expectations if wanted.pattern.search(line)]
        for wanted in matching:
            wanted.seen += 1
        return bool(matching)
