"""Run by test_store_bdb_crash: four writers on one A-Hash until the process is killed.

Prints `<writer> <turn>` after each acknowledged transact. A transact writes the turn into three objects at once.
"""

import asyncio
import sys
from pathlib import Path

from chelonia.ahash.service import AHashService
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.core.ids import RequestKey
from tests.support.ahash import LIBRARIAN, HandClock, put

TINY = BdbSettings(8 << 20, log_file_bytes=1 << 20, log_buffer_bytes=256 << 10, checkpoint_log_bytes=200_000)


async def main(directory: Path, first: int) -> None:
    store = BdbStore(directory, TINY, sys.exit)
    service = AHashService(store, ThreadExecutor(), HandClock(), AHashSettings(cluster="test"))
    await service.start()

    async def writer(me: int) -> None:
        turn = first
        while True:
            parts = [put(f"o{me}.{part}", "s", "turn", str(turn)) for part in range(2)]
            parts.append(put("list", "entries", f"{me}.{turn:07}", "x" * 200))
            await service.transact(LIBRARIAN, RequestKey(f"{me}/{turn}"), tuple(parts))
            sys.stdout.write(f"{me} {turn}\n")
            sys.stdout.flush()
            turn += 1

    await asyncio.gather(*(writer(me) for me in range(4)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
