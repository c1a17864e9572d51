"""Records the read strength that a door requests of the port `Files`."""

from __future__ import annotations

from typing import Any

import pytest

from chelonia.core.caller import Call


def noted(files: Any, patch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each later `look`, `list` and `apply` requests the newest acknowledged state, in their order."""
    strong = list[bool]()

    def noting(name: str) -> None:
        inner = getattr(files, name)

        async def asked(call: Call, *args: Any) -> Any:
            strong.append(call.strong)
            return await inner(call, *args)

        patch.setattr(files, name, asked)

    for name in ("look", "list", "apply"):
        noting(name)
    return strong
