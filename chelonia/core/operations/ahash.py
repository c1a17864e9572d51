"""The operations of the port `AHash`."""

from typing import Final

from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.operations.rows import Retry, row, table
from chelonia.core.ports.ahash import AHash

_L, _A = Role.LIBRARIAN, Role.ADMINISTRATOR

AHASH: Final = table(
    "ahash",
    row(AHash.get, _L, _A, brief=True),
    row(AHash.change, _L, retry=Retry.ONCE),
    row(AHash.transact, _L, retry=Retry.KEY_ARGUMENT, many=bounds.TRANSACT_ELEMENTS_MAX),
    row(AHash.recall, _L),
    row(AHash.walk, _L, _A, brief=True),
    row(AHash.scan, _L, _A, brief=True),
    row(AHash.below, _L, _A, brief=True),
    row(AHash.objects, _L, _A, brief=True),
    row(AHash.backup, _A, retry=Retry.ONCE),
    row(AHash.regroup, _A, retry=Retry.ONCE),
    row(AHash.status, _L, _A),
)
