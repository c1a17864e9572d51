"""One transfer as a process of its own: `one_stream.py put|get CLUSTER LOCAL LN REPLICAS`, through the public SDK."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from chelonia_clients.connect import from_environment
from chelonia_clients.downloads import download
from chelonia_clients.settings import Wish
from chelonia_clients.uploads import UploadOptions, file_source, upload


async def main(verb: str, cluster: str, local: str, ln: str, replicas: str) -> None:
    """Move one file."""
    async with from_environment(Wish(cluster=Path(cluster)), {}) as client:
        if verb == "put":
            await upload(client, file_source(Path(local)), ln, UploadOptions(replicas=int(replicas)))
        else:
            await download(client, ln, Path(local), overwrite=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
