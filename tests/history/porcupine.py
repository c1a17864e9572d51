"""Builds and runs the checker of `checker/`, a small Go program around the module porcupine.

Only the checker needs Go, so a machine may lack it. The go command fetches its module as configured. `Missing` is
another error than a program that does not compile.
"""

from __future__ import annotations

import enum
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("checker")
CURE: Final = "install Go 1.19 or newer (Debian: golang-go), and let it fetch modules"


class Missing(Exception):
    """Go or the checker's module cannot be had on this machine."""


class Judgement(enum.IntEnum):
    """The checker's exit codes."""

    LINEARIZABLE = 0
    NOT_LINEARIZABLE = 1
    UNUSABLE = 2
    UNDECIDED = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checker's result, as a code and in words."""

    judgement: Judgement
    words: str


def build(directory: Path) -> Path:
    """Build the checker into `directory`; returns the program. Raises: Missing, CalledProcessError."""
    if shutil.which("go") is None:
        raise Missing(f"no program go on the path: {CURE}")
    fetched = _go("mod", "download")
    if fetched.returncode != 0:
        raise Missing(f"{fetched.stderr.strip()}: {CURE}")
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "checker"
    built = _go("build", "-trimpath", "-o", str(program.resolve()), ".")
    if built.returncode != 0:
        raise subprocess.CalledProcessError(built.returncode, built.args, built.stdout, built.stderr)
    return program


def check(program: Path, history: Path, drawing: Path | None = None) -> Verdict:
    """Check a history; `drawing`: where to draw one that is not linearizable."""
    options = ["-html", str(drawing)] if drawing is not None else []
    done = subprocess.run([str(program), *options, str(history)], capture_output=True, text=True, check=False)
    words = (done.stdout + done.stderr).strip()
    try:
        return Verdict(Judgement(done.returncode), words)
    except ValueError:
        raise AssertionError(f"the checker ended with {done.returncode}: {words}") from None


def _go(*arguments: str) -> subprocess.CompletedProcess[str]:
    own = {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    return subprocess.run(
        ["go", *arguments], cwd=SOURCE, capture_output=True, text=True, check=False, env={**os.environ, **own}
    )
