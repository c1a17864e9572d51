"""A process that opens a replica's store, as a node does; started with its directory."""

import asyncio
import sys
from pathlib import Path

from chelonia.hosting import ahash_replica
from tests.support.ahash import SMALL
from tests.unit.ahash.store.bdb.test_replicated import identity


async def opened(directory: Path) -> None:
    executor, engine = await ahash_replica.open_watched(directory, SMALL, identity(3, "/CN=3"), others=True)
    print("trusted" if engine.trusted() else "to be filled")
    engine.close()
    await executor.close()


if __name__ == "__main__":
    ahash_replica.REPLICATION_ROUND_S = 0.5  # type: ignore[misc]
    asyncio.run(opened(Path(sys.argv[1])))
