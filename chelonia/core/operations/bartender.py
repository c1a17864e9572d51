"""The operations of the port `Bartender`."""

from typing import Final

from chelonia.core.caller import Role
from chelonia.core.operations.rows import EVERYONE, Retry, row, table
from chelonia.core.ports.bartender import Bartender

_S = Role.SHEPHERD

BARTENDER: Final = table(
    "bartender",
    row(Bartender.stat, *EVERYONE, ends=True),
    row(Bartender.list, *EVERYONE, ends=True),
    row(Bartender.make_collection, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.unmake_collection, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.make_mountpoint, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.unmake_mountpoint, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.move, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.put_file, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.get_file, *EVERYONE),
    row(Bartender.add_replica, _S),
    row(Bartender.del_file, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.undelete, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.list_deleted, *EVERYONE, ends=True),
    row(Bartender.unlink, *EVERYONE, retry=Retry.KEYED),
    row(Bartender.modify, *EVERYONE, retry=Retry.KEYED),
)
