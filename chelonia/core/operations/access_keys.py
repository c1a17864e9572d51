"""The operations of the port `AccessKeys`."""

from typing import Final

from chelonia.core.operations.rows import EVERYONE, Retry, row, table
from chelonia.core.ports.access_keys import AccessKeys

ACCESS_KEYS: Final = table(
    "keys",
    row(AccessKeys.create, *EVERYONE, retry=Retry.ONCE),  # a repeated call would make another secret
    row(AccessKeys.list, *EVERYONE),
    row(AccessKeys.revoke, *EVERYONE, retry=Retry.ONCE),
)
