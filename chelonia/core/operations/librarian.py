"""The operations of the port `Librarian`."""

from typing import Final

from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.operations.rows import EVERYONE, Retry, row, table
from chelonia.core.ports.librarian import Librarian

_L, _B, _S, _A = Role.LIBRARIAN, Role.BARTENDER, Role.SHEPHERD, Role.ADMINISTRATOR

SEALING_MS: Final = 2 * 60 * 1000
"""Wait for the answer to the sealing of ten thousand parts: a dozen transacts."""

LIBRARIAN: Final = table(
    "librarian",
    row(Librarian.new, _B, retry=Retry.KEYED),
    row(Librarian.get, _B, _A, ends=True),
    row(Librarian.traverse, _B, _A, name="traverseLN", ends=True),
    row(Librarian.modify_metadata, _B, retry=Retry.KEYED),
    row(Librarian.remove, _B, retry=Retry.KEYED),
    row(Librarian.report, _S),
    row(Librarian.make_entry, _B, retry=Retry.KEYED),
    row(Librarian.begin_put, _B, retry=Retry.KEYED),
    row(Librarian.commit_put, _S, retry=Retry.KEYED, many=bounds.RECEIPTS_MAX),
    row(Librarian.commit_file, _B, retry=Retry.KEYED),
    row(Librarian.splice, _B, retry=Retry.KEYED),
    row(Librarian.extents, _B, _A),
    row(Librarian.open_upload, _B, retry=Retry.KEYED),
    row(Librarian.put_part, _B, retry=Retry.KEYED),
    row(Librarian.seal_upload, _B, retry=Retry.KEYED, answer_ms=SEALING_MS),
    row(Librarian.copy_file, _B, retry=Retry.KEYED, answer_ms=SEALING_MS),
    row(Librarian.drop_upload, _B, retry=Retry.KEYED),
    row(Librarian.uploads, _B, _A, ends=True),
    row(Librarian.parts, _B, _A, ends=True),
    row(Librarian.unlink, _B, retry=Retry.KEYED),
    row(Librarian.unlink_all, _B, retry=Retry.KEYED, many=bounds.REMOVED_TOGETHER_MAX),
    row(Librarian.delete, _B, retry=Retry.KEYED),
    row(Librarian.unmake, _B, retry=Retry.KEYED),
    row(Librarian.move, _B, retry=Retry.KEYED),
    row(Librarian.undelete, _B, retry=Retry.KEYED),
    row(Librarian.trash, _B, _A, ends=True),
    row(Librarian.set_wanted, _B, retry=Retry.KEYED),
    row(Librarian.change_entry, _B, retry=Retry.KEYED),
    row(Librarian.below, _B, _A, ends=True),
    row(Librarian.access_key, _B),
    row(Librarian.access_keys, _B),
    row(Librarian.keep_access_key, _B, retry=Retry.KEYED),
    row(Librarian.drop_access_key, _B, retry=Retry.KEYED),
    row(Librarian.quotas, _B, _A),
    row(Librarian.set_quota, _A),
    row(Librarian.recount_quotas, _A),
    row(Librarian.recall, _B),
    row(Librarian.heartbeat, *EVERYONE),  # an unknown identity is recorded as waiting for approval
    row(Librarian.hearing, _L, _A),
    row(Librarian.consider, _L, _A),
    row(Librarian.inventory, _S, _A),
    row(Librarian.nodes, _B, _L, _A),
    row(Librarian.services, _B, _L, _S, _A),
    row(Librarian.approve, _A),
    row(Librarian.maintenance, _A),
    row(Librarian.drain, _A),
    row(Librarian.forget, _A),
    row(Librarian.heal_status, _B, _L, _A),
    row(Librarian.heal_order, _A),
    row(Librarian.drill, _L, _A, retry=Retry.KEYED),
    row(Librarian.drill_status, _B, _L, _A),
    row(Librarian.health, _B, _L, _A),
    row(Librarian.rebuild, _A),
    row(Librarian.fsck, _A),
    row(Librarian.mend, _A, many=bounds.XML_ELEMENTS_MAX),
)
