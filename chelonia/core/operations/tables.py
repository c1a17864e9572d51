"""The tables of all ports."""

from collections.abc import Mapping
from typing import Final

from chelonia.core.operations.access_keys import ACCESS_KEYS
from chelonia.core.operations.ahash import AHASH
from chelonia.core.operations.bartender import BARTENDER
from chelonia.core.operations.files import FILES
from chelonia.core.operations.librarian import LIBRARIAN
from chelonia.core.operations.rows import PortTable
from chelonia.core.operations.shepherd import SHEPHERD

TABLES: Final[Mapping[str, PortTable]] = {
    port.name: port for port in (AHASH, LIBRARIAN, SHEPHERD, BARTENDER, FILES, ACCESS_KEYS)
}
