"""Changes to values: `replace` makes a new one, for value types are frozen.

Most types of ports and messages are `msgspec.Struct`. A value is a dataclass where it keeps a field out of its `repr`
(bytes, secrets), or where something refers to it weakly. `replace` serves both.
"""
# A struct works in C, and its class is made in a thirtieth of a dataclass's time: a command line loads two hundred.

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace  # noqa: TID251 - of this one the type checker knows the arguments
else:
    import dataclasses

    from msgspec import Struct
    from msgspec.structs import replace as replace_in_struct

    def replace(value, /, **changes):
        """Return `value` with other fields. Raises: TypeError for a field that it does not have."""
        if isinstance(value, Struct):
            return replace_in_struct(value, **changes)
        return dataclasses.replace(value, **changes)  # noqa: TID251
