"""Log lines: one per event in either format, without tickets; the audit log in its own file."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia.hosting.logging_setup import AUDIT_LOGGER, JsonLines, LogSettings, TextLines, configure, redact
from tests.support.process_state import logging_kept

GONE = "SSL connection is closed"
"""Source: uvloop 0.23, `sslproto.pyx`, `_write_appdata`; asyncio's is the same."""


@pytest.fixture
def audit() -> Iterator[logging.Logger]:
    """The audit logger, given back as it was."""
    with logging_kept():
        yield logging.getLogger(AUDIT_LOGGER)


def record(message: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("chelonia.x", logging.INFO, __file__, 1, message, args, None)
    made.created, made.msecs = 0.25, 250
    return made


def test_text_is_one_line_per_event() -> None:
    line = TextLines("n1").format(record("a=%s", "b\nforged=1"))
    assert line == "time=1970-01-01T00:00:00.250Z level=INFO node=n1 at=chelonia.x a=b\\nforged=1"


def test_what_strangers_say_neither_begins_a_line_nor_drives_a_terminal() -> None:
    line = TextLines("n1").format(record("path=%s", "/a\r\x1b[2Jx\x9b\u2028time=now\udcff"))
    assert line.endswith("path=/a\\r\\x1b[2Jx\\x9b\\u2028time=now\\udcff")


def test_json_is_one_object_per_event() -> None:
    line = JsonLines("n1").format(record('say "hi"'))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "INFO",
        "node": "n1",
        "at": "chelonia.x",
        "message": 'say "hi"',
    }


def test_what_strangers_say_drives_no_terminal_in_json_either() -> None:
    text = "/a\r\x1b[2Jx\x7f\x9b2J\u2028\udcffü"
    line = JsonLines("n1").format(record("path=%s", text))
    assert json.loads(line)["message"] == f"path={text}"
    assert line.replace("ü", "").isascii()
    assert line.isprintable()


@pytest.mark.parametrize("lines", [TextLines("n"), JsonLines("n")])
def test_tickets_are_never_written(lines: logging.Formatter) -> None:
    line = lines.format(record("GET https://h/turl/r?ticket=s3cret&x=1 TICKET=other"))
    assert "s3cret" not in line
    assert "other" not in line
    assert "x=1" in line


def test_redaction_leaves_the_rest_alone() -> None:
    assert redact("no secret here") == "no secret here"


@pytest.mark.usefixtures("audit")
def test_that_a_peer_has_gone_is_no_line_of_the_event_loop() -> None:
    """After a client was killed while bytes for it waited, each further answer logged such a line."""
    loop = logging.getLogger("asyncio")
    configure(LogSettings(), "n1", logging.Logger("a root of its own"))  # noqa: LOG001 - kept from the log guard
    told = [logging.LogRecord(loop.name, logging.WARNING, "", 0, said, (), None) for said in (GONE, "Executing took")]
    assert [bool(loop.filter(each)) for each in told] == [False, True]


def test_the_audit_log_has_its_own_file(
    tmp_path: Path, audit: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    path, root = tmp_path / "audit.log", logging.Logger("a root of its own")  # noqa: LOG001 - kept from the log guard
    configure(LogSettings(level="WARNING", audit_file=str(path)), "n1", root)
    audit.info("who=jane")
    root.info("hidden")
    root.warning("shown")
    assert "who=jane" in path.read_text()
    shown = capsys.readouterr().err
    assert "who=jane" not in shown
    assert "hidden" not in shown
    assert "node=n1 at=a root of its own shown" in shown


async def test_lines_of_one_turn_are_written_together_and_follow_the_file(
    tmp_path: Path, audit: logging.Logger
) -> None:
    path = tmp_path / "audit.log"
    configure(LogSettings(audit_file=str(path)), "n1", logging.Logger("a root of its own"))  # noqa: LOG001
    audit.info("who=jane")
    audit.info("who=joe")
    await asyncio.sleep(0)
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["who=jane", "who=joe"]
    path.rename(tmp_path / "audit.log.1")
    audit.info("who=jim")
    audit.handlers[0].close()  # as at the end of the process
    assert path.read_text().endswith("who=jim\n")


async def test_a_line_that_cannot_be_written_as_it_is_takes_no_other_with_it(
    tmp_path: Path, audit: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    root = logging.Logger("a root of its own")  # noqa: LOG001
    configure(LogSettings(format="json", audit_file=str(path)), "n1", root)
    audit.info("who=jane")
    audit.info("who=%s", "no text \udcff")
    audit.info("who=%d", "no number")
    await asyncio.sleep(0)
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["who=jane", "who=no text \udcff"]
    assert "no number" in capsys.readouterr().err
