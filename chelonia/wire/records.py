"""Records at rest: versioned msgpack, and the checked record beside a replica's bytes.

A `Format` is one byte of version and a msgpack body; it refuses newer versions and migrates older ones step by step.
A checked record adds magic and a digest, which reveals a torn or rotten record.

Replica record: `CHLR` | BLAKE2b-64 of the rest, personalised with the magic | version byte (1) | msgpack map.
The map has the fields of `ReplicaFacts` by name, and `blocks` if the replica has several (`crcs.BlockCrcs`).
Golden bytes: `docs/formats/tickets.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.wire.crcs import BLOCK_CRC_BYTES, BlockCrcs, block_count

T = TypeVar("T")

MAGIC_BYTES: Final = 4
DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Format(Generic[T]):
    """A versioned record of type `kind`.

    Args:
        name: of the format, for messages.
        version: the one it writes, 1 to 255; it reads 1 to `version`.
        migrations: for each older version, a function from its decoded body (dicts, lists) to that of the next.
    """

    name: str
    kind: type[T]
    version: int
    migrations: Mapping[int, Callable[[Any], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that every older version has its migration."""
        assert 1 <= self.version <= 255, "the version is one byte"
        assert set(self.migrations) == set(range(1, self.version)), f"{self.name}: a migration is missing"

    def encode(self, value: T) -> bytes:
        """Return the version byte and the msgpack of `value`."""
        return bytes((self.version,)) + msgspec.msgpack.encode(value)

    def decode(self, raw: bytes) -> T:
        """Read a record of this or an older version.

        Raises: NOT_SUPPORTED for a newer version; CHECKSUM when it cannot be read.
        """
        version = raw[0] if raw else 0
        if version > self.version:
            cause = f"written as version {version}, this software reads up to {self.version}: upgrade it"
            raise CheloniaError(Kind.NOT_SUPPORTED, "", self.name, cause)
        try:
            if version == self.version:
                return msgspec.msgpack.decode(raw[1:], type=self.kind)
            return self._migrate(version, raw[1:])
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError) as error:
            raise CheloniaError(Kind.CHECKSUM, "", self.name, f"damaged record: {str(error)[:200]}") from None

    def _migrate(self, version: int, body: bytes) -> T:
        value = msgspec.msgpack.decode(body)
        for step in range(version, self.version):
            value = self.migrations[step](value)
        return msgspec.convert(value, self.kind)


def check_in(magic: bytes, body: bytes) -> bytes:
    """Put magic (4 bytes) and digest before `body`."""
    assert len(magic) == MAGIC_BYTES, "magic is four bytes"
    return magic + _digest(magic, body) + body


def check_out(magic: bytes, raw: bytes, name: str) -> bytes:
    """Return the body of a checked record. Raises: CHECKSUM when magic or digest is wrong."""
    head = MAGIC_BYTES + DIGEST_BYTES
    if raw[:MAGIC_BYTES] != magic:
        raise CheloniaError(Kind.CHECKSUM, "", name, f"does not begin with {magic!r}: empty, torn or another file")
    if raw[MAGIC_BYTES:head] != _digest(magic, raw[head:]):
        raise CheloniaError(Kind.CHECKSUM, "", name, "its digest is wrong: torn or damaged")
    return raw[head:]


_MAGIC: Final = b"CHLR"
_FACTS: Final = Format("replica record", ReplicaFacts, 1)


class _BlocksToo(ReplicaFacts, frozen=True):
    """The record of a replica of several blocks; the CRC of a single block is among the checksums."""

    blocks: bytes = b""


_BLOCKS_TOO: Final = Format(_FACTS.name, _BlocksToo, _FACTS.version)


def encode_facts(facts: ReplicaFacts, blocks: bytes = b"") -> bytes:
    """Encode the record beside a replica's bytes. `blocks`: the CRC of each of its blocks, if known."""
    assert len(blocks) in (0, block_count(facts.size) * BLOCK_CRC_BYTES), "each block has its CRC"
    if len(blocks) > BLOCK_CRC_BYTES:
        return check_in(_MAGIC, _BLOCKS_TOO.encode(_BlocksToo(**msgspec.structs.asdict(facts), blocks=blocks)))
    return check_in(_MAGIC, _FACTS.encode(facts))


def record_of(facts: ReplicaFacts, data: bytes) -> bytes:
    """Encode the record of a replica from all its bytes."""
    crcs = BlockCrcs()
    crcs.update(data if len(data) > bounds.CHECKED_BLOCK_BYTES else b"")
    return encode_facts(facts, crcs.blocks())


def decode_blocks(raw: bytes) -> bytes:
    """Return the CRC of each block from a replica's record; b"" if it has none. Raises: as `decode_facts`."""
    record = _BLOCKS_TOO.decode(check_out(_MAGIC, raw, _FACTS.name))
    count = block_count(record.size)
    crcs = record.blocks if count > 1 else bytes.fromhex(record.checksums.crc32c)
    return crcs if len(crcs) == count * BLOCK_CRC_BYTES else b""


def decode_facts(raw: bytes) -> ReplicaFacts:
    """Read a replica's record. Raises: CHECKSUM when damaged, NOT_SUPPORTED when newer than this software."""
    return _FACTS.decode(check_out(_MAGIC, raw, _FACTS.name))


def _digest(magic: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES, person=magic).digest()
