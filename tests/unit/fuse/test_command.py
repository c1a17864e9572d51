"""The commands beside a mount: what the one in the background says of its end."""

import sys
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError
from chelonia_fuse import command


def test_a_mount_in_the_background_that_ends_tells_what_the_system_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\necho 'fusermount3: user has no write access to mountpoint' >&2\n"
        "echo 'chelonia: mount: it failed (bad-config)' >&2\nexit 2\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    said = r"it did not mount: fusermount3: user has no write access to mountpoint; mount: it failed$"
    with pytest.raises(CheloniaError, match=said):
        command.in_background(["mount", "/", "/mnt"], str(tmp_path / "log"))
