"""Files of a credential and of CAs that a user names."""

from __future__ import annotations

from pathlib import Path

import msgspec


class CredentialFiles(msgspec.Struct, frozen=True):
    """Credential and CA files; None where not named. A named file wins over any that is found."""

    proxy: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    ca_dir: Path | None = None
    ca_file: Path | None = None
