"""Metadata from clients: a whitelist, and the facts of a file about to be put.

Allowed are `metadata/*`, valid `policy` and `defaultPolicy` rules, `timestamps/modified` and, on collections,
`states/closed` = `no`. Properties that the server sets itself (`entry/type`, `entry/owner`, `timestamps/created`) are
ignored, as in the original. Everything else - `locations`, `parents`, `entries`, `entry/GUID`, blobs - is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, Sections, Triple
from chelonia.core.rights.policy import DEFAULT_POLICY_SECTION, check_policy_rule

IGNORED = frozenset({("entry", "type"), ("entry", "owner"), ("timestamps", "created")})
"""Properties that the server sets; a client's values for them are dropped."""

WRITTEN = ("metadata", "policy", DEFAULT_POLICY_SECTION, "timestamps")
"""Sections whose properties users choose."""

FILE_FACTS = ("size", "checksum", "checksumType", "neededReplicas")
"""The mandatory `states` of putFile, in the order in which a missing one is named."""

CHECKSUM_DIGITS = {"md5": 32, "sha256": 64, "adler32": 8}
"""Checksum types and their length in hexadecimal digits."""

_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?\Z")
_SIZE_DIGITS_MAX = 19


class FileFacts(msgspec.Struct, frozen=True):
    """The facts of a file before its bytes. `size` -1: unknown; `checksum` "": unknown."""

    size: int
    checksum: str
    checksum_type: str
    needed: int

    @property
    def checksums(self) -> Checksums:
        """The one known checksum, in its field."""
        kind = self.checksum_type if self.checksum_type in CHECKSUM_DIGITS else "sha256"
        return Checksums(**{kind: self.checksum})

    def states(self) -> dict[str, str]:
        """Return the `states` section of these facts; size only when known."""
        states = {"checksum": self.checksum, "checksumType": self.checksum_type, "neededReplicas": str(self.needed)}
        return states if self.size < 0 else {"size": str(self.size), **states}


def accepted(triples: tuple[Triple, ...], entry_type: str, phase: str) -> dict[str, dict[str, str]]:
    """Return what a client may set on a new entry of this type; `phase` chooses the status string of a refusal.

    Returns: sections among `metadata`, `policy`, `defaultPolicy`, `timestamps`.
    Raises: DENIED for a property that only the system writes, BAD_REQUEST for a malformed one, TOO_LARGE.
    """
    if not triples:
        return {}
    if len(triples) > bounds.USER_METADATA_MAX:
        raise CheloniaError(Kind.TOO_LARGE, phase, "", f"at most {bounds.USER_METADATA_MAX} metadata elements")
    sections: dict[str, dict[str, str]] = {}
    for triple in triples:
        check_text(triple)
        if _is_kept(triple, entry_type, phase):
            sections.setdefault(triple.section, {})[triple.property] = triple.value
    check_volume(sections)
    check_count(sections)
    return sections


def check_volume(sections: Sections) -> None:
    """Refuse more text in the sections that users write than one entry may hold. Raises: TOO_LARGE."""
    written = (sections.get(name, {}) for name in WRITTEN)
    size = sum(len(prop.encode()) + len(value.encode()) for section in written for prop, value in section.items())
    if size > bounds.USER_METADATA_BYTES_MAX:
        cause = f"{size} bytes of metadata and policy, at most {bounds.USER_METADATA_BYTES_MAX} are kept with one entry"
        raise CheloniaError(Kind.TOO_LARGE, subject="metadata", cause=cause)


def check_count(sections: Sections) -> None:
    """Refuse more properties of users than one entry may have, or more rules than a decision can check in time. Raises:
    TOO_LARGE."""
    if (count := len(sections.get("metadata", {}))) > bounds.USER_METADATA_MAX:
        cause = f"{count} properties, at most {bounds.USER_METADATA_MAX} are kept with one entry"
        raise CheloniaError(Kind.TOO_LARGE, subject="metadata", cause=cause)
    for name in ("policy", DEFAULT_POLICY_SECTION):
        count = len(sections.get(name, {}))
        if count > bounds.POLICY_RULES_MAX:
            cause = f"{count} rules, at most {bounds.POLICY_RULES_MAX} make a policy: give rights to a VO, or to ALL"
            raise CheloniaError(Kind.TOO_LARGE, subject=name, cause=cause)


def check_value(triple: Triple) -> None:
    """Refuse a malformed value of a whitelisted property. Raises: BAD_REQUEST."""
    if triple.section in ("policy", DEFAULT_POLICY_SECTION):
        check_policy_rule(triple.property, triple.value)
    elif triple.section == "timestamps" and not (
        _TIME.match(triple.value) and float(triple.value) <= bounds.TIME_S_MAX
    ):
        cause = f"a time is Unix seconds as a decimal number, at most {bounds.TIME_S_MAX}"
        raise CheloniaError(Kind.BAD_REQUEST, subject="timestamps/modified", cause=cause)


def is_settable(section: str, prop: str, entry_type: str) -> bool:
    """Whether users may write this property of an entry of this type (states have rules of their own)."""
    if section in ("metadata", "policy"):
        return bool(prop)
    if section == DEFAULT_POLICY_SECTION:
        return bool(prop) and entry_type == TYPE_COLLECTION
    return (section, prop) == ("timestamps", "modified")


def check_text(triple: Triple) -> None:
    """Refuse text that cannot be stored. Raises: TOO_LARGE, BAD_REQUEST (not valid UTF-8)."""
    limits = ((triple.property, bounds.PROPERTY_BYTES_MAX), (triple.value, bounds.VALUE_BYTES_MAX))
    for text, limit in limits:
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError:
            subject = ascii(f"{triple.section}/{triple.property}"[:80])
            raise CheloniaError(Kind.BAD_REQUEST, subject=subject, cause="not valid UTF-8") from None
        if size > limit:
            subject = f"{triple.section}/{triple.property}"[:80]
            raise CheloniaError(Kind.TOO_LARGE, subject=subject, cause=f"{size} bytes, at most {limit} are kept")


def file_facts(triples: tuple[Triple, ...]) -> FileFacts:
    """Read the mandatory metadata of putFile.

    Raises: MISSING_METADATA naming the first one missing; BAD_REQUEST naming an invalid one.
    """
    states = {triple.property: triple.value for triple in triples if triple.section == "states"}
    for name in FILE_FACTS:
        if name not in states:
            cause = "putFile needs states/" + ", states/".join(FILE_FACTS)
            raise CheloniaError(Kind.MISSING_METADATA, subject=f"states/{name}", cause=cause)
    size, needed = _number(states, "size"), _number(states, "neededReplicas")
    return checked_facts(FileFacts(size, states["checksum"], states["checksumType"], needed))


def checked_facts(facts: FileFacts) -> FileFacts:
    """Return the facts with the checksum in canonical form. Raises: BAD_REQUEST."""
    if not 0 <= facts.needed <= bounds.REPLICAS_WANTED_MAX:
        raise _bad("neededReplicas", f"at most {bounds.REPLICAS_WANTED_MAX} replicas can be asked for")
    digits = CHECKSUM_DIGITS.get(facts.checksum_type)
    if digits is None:
        raise _bad("checksumType", f"one of {', '.join(CHECKSUM_DIGITS)} is understood")
    if not facts.checksum:
        return facts
    checksum = facts.checksum.lower()
    if facts.checksum_type == "adler32":
        checksum = checksum.zfill(digits)
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", checksum):
        raise _bad("checksum", f"{facts.checksum_type} has {digits} hexadecimal digits")
    return FileFacts(facts.size, checksum, facts.checksum_type, facts.needed)


def new_policies(parent: Mapping[str, Mapping[str, str]], entry_type: str) -> dict[str, dict[str, str]]:
    """Return the policies that a new entry inherits: `defaultPolicy` as policy, and in a collection as default too."""
    default = dict(parent.get(DEFAULT_POLICY_SECTION, {}))
    if not default:
        return {}
    return {"policy": default} | ({DEFAULT_POLICY_SECTION: dict(default)} if entry_type == TYPE_COLLECTION else {})


def merged(*layers: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Lay sections over one another, later ones on top, property by property."""
    out: dict[str, dict[str, str]] = {}
    for layer in layers:
        for section, properties in layer.items():
            out.setdefault(section, {}).update(properties)
    return out


def _is_kept(triple: Triple, entry_type: str, phase: str) -> bool:
    key = (triple.section, triple.property)
    if key in IGNORED:
        return False
    if entry_type == TYPE_FILE and triple.section == "states" and triple.property in FILE_FACTS:
        return False  # read by `file_facts`
    if entry_type == TYPE_COLLECTION and key == ("states", "closed") and triple.value == "no":
        return False  # old clients send it, and a new collection has it anyway
    if not is_settable(triple.section, triple.property, entry_type):
        subject = f"{triple.section}/{triple.property}"[:80]
        cause = (
            f"{subject} is written by the system only; users set metadata/*, policy, defaultPolicy, timestamps/modified"
        )
        raise CheloniaError(Kind.DENIED, phase, subject, cause)
    check_value(triple)
    return True


def _number(states: Mapping[str, str], name: str) -> int:
    text = states[name]
    if not (text.isascii() and text.isdigit() and len(text) <= _SIZE_DIGITS_MAX):
        raise _bad(name, "a whole number from 0 is needed")
    return int(text)


def _bad(name: str, cause: str) -> CheloniaError:
    return CheloniaError(Kind.BAD_REQUEST, subject=f"states/{name}", cause=cause)
