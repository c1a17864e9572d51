"""`cheloniad` with a mistake, named by CARELESS: for tests whether checks on real replicas would notice it.

`early`: a replica answers before the group has the change. `behind`: one answers reads from its copy, whatever position
its caller has seen.
"""

import os
import sys
from typing import Any

from chelonia.ahash.group.mastership import TermDurability
from chelonia.ahash.group.service import ReplicatedAHash
from chelonia.core.cluster.position import Position
from chelonia.hosting import cheloniad


async def answer_early(durability: TermDurability, position: Position) -> None:
    """Note the position and return at once, in the place of waiting until the watermark has passed `position`."""
    durability._horizon.saw(position)


async def answer_from_behind(ahash: ReplicatedAHash, *_: Any) -> None:
    """Return at once, in the place of waiting until the copy has the caller's position."""


def main() -> None:
    """Make the mistake, and run the daemon."""
    match os.environ["CARELESS"]:
        case "early":
            TermDurability.wait = answer_early  # type: ignore[method-assign]
        case "behind":
            ReplicatedAHash._reach = answer_from_behind  # type: ignore[method-assign]
        case mistake:
            raise SystemExit(f"no such mistake: {mistake!r}")
    cheloniad.main()


if __name__ == "__main__":
    sys.exit(main())
