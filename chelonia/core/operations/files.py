"""The operations of the port `Files`."""

from typing import Final

from chelonia.core.operations.rows import EVERYONE, Retry, row, table
from chelonia.core.ports.files import Files

FILES: Final = table(
    "files",
    row(Files.look, *EVERYONE, ends=True),
    row(Files.list, *EVERYONE, ends=True),
    row(Files.place, *EVERYONE),
    row(Files.apply, *EVERYONE, retry=Retry.KEYED),
    row(Files.share, *EVERYONE),
    row(Files.uploads, *EVERYONE, ends=True),
    row(Files.parts, *EVERYONE, ends=True),
    row(Files.space, *EVERYONE),
)
