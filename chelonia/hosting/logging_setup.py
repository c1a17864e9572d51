"""Logs: one line per event, `key=value` or JSON, to stderr; the audit log and the access log to files of their own.

As a last line of defence, no line has the value of a `ticket=` parameter, whatever a message says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chelonia.core.timing.clock import iso_second

log = logging.getLogger("chelonia.log")

AUDIT_LOGGER = "chelonia.audit"
ACCESS_LOGGER = "chelonia.http.access"
_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that could begin a line of their own, drive a terminal, or not be written at all."""
_OF_THE_GONE: Final = ("SSL connection is closed", "socket.send() raised exception.")
"""Messages of event loops about each write beyond the fifth to a peer that has gone. uvloop reports such a peer to
nobody while bytes for it wait. It is no fault of this node, and peers could fill the log so."""
_TICKET = re.compile(r"(ticket=)[^&\s\"'>]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of logs.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
        format: `text` (key=value) or `json`.
        audit_file: for decisions about users; empty: with the rest.
        access_file: for a line of each HTTP request; empty: with the rest, if `level` is DEBUG.
    """

    level: str = "INFO"
    format: str = "text"
    audit_file: str = ""
    access_file: str = ""


def configure(settings: LogSettings, node: str, root: logging.Logger | None = None) -> None:
    """Send this process's logs where `settings` say. `root`: a logger in place of the root logger (tests)."""
    formatter: logging.Formatter = JsonLines(node) if settings.format == "json" else TextLines(node)
    root = root or logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(formatter)
    root.addHandler(stream)
    root.setLevel(settings.level)
    # No line has them, and finding them costs as much as writing it (Python's logging documentation, Optimization).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.setLogRecordFactory(LineRecord)
    logging.getLogger("asyncio").addFilter(lambda record: record.msg not in _OF_THE_GONE)
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)
    wanted = settings.access_file or settings.level == "DEBUG"
    logging.getLogger(ACCESS_LOGGER).setLevel(logging.INFO if wanted else logging.WARNING)
    for name, path in ((AUDIT_LOGGER, settings.audit_file), (ACCESS_LOGGER, settings.access_file)):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
        logger.propagate = not path
        if path:
            # WatchedFileHandler looks before each line and reopens a file that others rotated away.
            file = LinesTogether(Path(path), encoding="utf-8")
            file.setFormatter(formatter)
            logger.addHandler(file)


_NOWHERE: Final = {
    **dict.fromkeys(("pathname", "filename", "module", "funcName", "threadName", "processName"), ""),
    **dict.fromkeys(("lineno", "thread", "process", "relativeCreated"), 0),
    **dict.fromkeys(("exc_text", "stack_info", "taskName")),
}


class LineRecord(logging.LogRecord):
    """The parts of an event that lines show. Its place in the code would take as long to find as all else."""

    def __init__(
        self,
        name: str,
        level: int,
        pathname: str,
        lineno: int,
        msg: object,
        args: Any,
        exc_info: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        self.__dict__.update(_NOWHERE)
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        self.msg, self.exc_info = msg, exc_info
        self.args = args[0] if args and len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
        self.created = time.time()
        self.msecs = self.created % 1 * 1000


class LinesTogether(logging.handlers.WatchedFileHandler):
    """Writes the lines of one turn of the event loop together, at its end; without a loop, each at once."""

    def __init__(self, path: Path, encoding: str) -> None:
        super().__init__(path, encoding=encoding, errors="backslashreplace")
        self._waiting: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line now, or at the end of the event loop's turn."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            super().emit(record)
            return
        try:
            self._waiting.append(self.format(record))
        except Exception:
            self.handleError(record)  # as any handler does: the caller that logs gets no error
            return
        if len(self._waiting) == 1:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        self.acquire()
        waiting, self._waiting = self._waiting, []
        try:
            if waiting:
                self.reopenIfNeeded()
                self.stream = self.stream or self._open()
                self.stream.write("".join([line + self.terminator for line in waiting]))
            super().flush()
        except OSError as error:
            log.error("lines are lost file=%s count=%d error=%s", self.baseFilename, len(waiting), error)
        finally:
            self.release()


class TextLines(logging.Formatter):
    """`time=... level=... node=... at=<logger> <message>` on one line."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Render one record; a stack trace follows on lines of its own, indented."""
        head = f"time={_instant(record)} level={record.levelname} node={self._node} at={record.name} "
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        body = one_line(redact(record.getMessage()))
        return head + body + "".join("\n  | " + one_line(redact(line)) for line in trace.splitlines())


class JsonLines(TextLines):
    """The same as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _instant(record),
            "level": record.levelname,
            "node": self._node,
            "at": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info and record.exc_info[0]:
            line["trace"] = redact(self.formatException(record.exc_info))
        return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False))


def redact(text: str) -> str:
    """Return `text` without the values of ticket parameters."""
    return _TICKET.sub(r"\1...", text) if "icket=" in text or "ICKET=" in text else text


def one_line(text: str) -> str:
    """Return `text` with control characters and line ends as escapes, so that strangers forge no line."""
    return text if text.isprintable() else _UNPRINTED.sub(lambda found: ascii(found[0])[1:-1], text)


def _instant(record: logging.LogRecord) -> str:
    return f"{iso_second(int(record.created))}.{int(record.msecs):03d}Z"
