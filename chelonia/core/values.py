"""How a value is changed: by another one. Value types are frozen; most of those of ports and messages are
`msgspec.Struct`. What keeps a field out of its `repr` (bytes, secrets), or is referred to weakly, is a dataclass.

A struct is made, compared and encoded in C, and its class in a thirtieth of the time of a dataclass: a command line
that loads two hundred of them notices. `replace` serves both, so that nobody needs to know which one he holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace  # noqa: TID251 - of this one the type checker knows the arguments
else:
    import dataclasses

    import msgspec

    def replace(value, /, **changes):
        """The value with other fields. Raises: TypeError for a field that it does not have."""
        if isinstance(value, msgspec.Struct):
            return msgspec.structs.replace(value, **changes)
        return dataclasses.replace(value, **changes)  # noqa: TID251
