"""A process that searches a store of one for a key whose page is all zero; started with the directory and the key."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from chelonia.ahash.store import store_threads
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.hosting.ahash_replica import RESTORE, end
from tests.support.ahash import SMALL, no_panic
from tests.unit.ahash.store.bdb.test_store import empty_a_page


def empty_pages(directory: Path, key: bytes) -> None:
    """Empty all pages with a key: an old copy stays in a page until something else is written there."""
    with suppress(StopIteration):
        while True:
            empty_a_page(directory, key)


async def search(directory: Path, key: bytes) -> None:
    store = BdbStore(directory, SMALL, no_panic)
    empty_pages(directory, key)  # it does not open where one is empty before
    executor = ThreadExecutor(goes_round=end(RESTORE))
    await executor.run_read(lambda: store.get(key))
    print("found")


if __name__ == "__main__":
    store_threads.ROUND_S = 0.5  # type: ignore[misc]
    asyncio.run(search(Path(sys.argv[1]), sys.argv[2].encode()))
