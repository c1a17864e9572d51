"""Global state that a test must leave unchanged for the others of its process: logging, the environment, the directory.

`logging_kept` is for a test that calls `configure`, which sets up the logging of a whole process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from chelonia.hosting.logging_setup import ACCESS_LOGGER, AUDIT_LOGGER

UNTOUCHED = (logging.NOTSET, True, False)
"""An untouched logger: its level, and so on."""
FLAGS = ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile")


def process_state() -> dict[str, object]:
    """By name, all of this state that differs from the start of a process."""
    found: dict[str, object] = {f"environment {name}": value for name, value in os.environ.items()}
    found.pop("environment PYTEST_CURRENT_TEST", None)
    found |= {f"logging.{name}": getattr(logging, name) for name in FLAGS}
    found |= {"records of a log": logging.getLogRecordFactory(), "directory": os.getcwd()}
    found["level of the root logger"] = logging.root.level
    for name, logger in tuple(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.startswith("chelonia"):
            found[f"logger {name}"] = (logger.level, logger.propagate, logger.disabled)
    return {name: value for name, value in found.items() if value != UNTOUCHED}


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """The changes left behind, in words."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [f"{name}: {before.get(name)!r}, now {after.get(name)!r}" for name in names]


@contextmanager
def logging_kept() -> Iterator[None]:
    """Give the process's logging back as it was."""
    flags, factory = {name: getattr(logging, name) for name in FLAGS}, logging.getLogRecordFactory()
    loggers = [logging.getLogger(name) for name in (AUDIT_LOGGER, ACCESS_LOGGER)]
    before = [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    try:
        yield
    finally:
        for name, value in flags.items():
            setattr(logging, name, value)
        logging.setLogRecordFactory(factory)
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            for handler in set(logger.handlers) - set(handlers):
                handler.close()
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
