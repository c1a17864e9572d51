"""Summaries of files, kept beside their names so that a listing does not read the files. Pure.

Stored in `summaries` of each collection that names the file, under the name: one line of words separated by blanks.
`<GUID> <marks> <size> <modified ns> <changed ns> <accessed ns> <created ns> <mode> <uid> <gid> <links> <wanted>
<rights> <etag>`. `marks`: `f`, then what the file has beyond its summary: `u` metadata of users, `l` locks.
`rights`: a digest of owner and policy, by which a reader decides for many files at once. An unset number is -1, an
unset time 0.
Invariant: every transact that changes one of these facts, or a name, changes the summaries with it (`librarian`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from chelonia.core.contents.attributes import attributes_of, is_empty
from chelonia.core.ids import Dn, Guid
from chelonia.core.metadata import TYPE_FILE, Filter, Needed, StoredObject
from chelonia.core.ports.files import Attributes
from chelonia.core.values import replace

SECTION: Final = "summaries"
NAMES_MAX: Final = 16
"""A file with more names has no summaries: each change of it would write all of them."""
GUID_WORD: Final = 0
WORDS: Final = 14
COMMON_WORD: Final = 7
"""Mode, uid, gid, links, wanted and rights, with their blanks: the same for most files of a page."""
MARK_USER: Final = "u"
MARK_LOCKS: Final = "l"
SUMMARISED: Final[Filter] = (
    Needed("entry"), Needed("states"), Needed("timestamps"), Needed("posix"), Needed("blobs"), Needed("content"),
    Needed("parents"), Needed("policy"), Needed("metadata"), Needed("locks"),
)  # fmt: skip
"""The sections of a file from which its summary is made."""
SECTIONS: Final = frozenset(need.section for need in SUMMARISED)


def summary_of(file: StoredObject) -> str:
    """Return the summary of a file read with `SUMMARISED`; "" for another entry, or a file with many names."""
    if file.value("entry", "type") != TYPE_FILE or not 0 < len(file.sections.get("parents", {})) <= NAMES_MAX:
        return ""
    attrs = attributes_of(file)
    if " " in attrs.etag or not (file.sections.get("blobs") or file.value("content", "id") or is_empty(file)):
        return ""  # without known bytes, the etag does not name bytes
    marks = (
        "f" + (MARK_USER if file.sections.get("metadata") else "") + (MARK_LOCKS if file.sections.get("locks") else "")
    )
    numbers = (
        attrs.size, attrs.modified_ns, attrs.changed_ns, attrs.accessed_ns, attrs.created_ns,
        attrs.mode, attrs.uid, attrs.gid, attrs.links, attrs.wanted,
    )  # fmt: skip
    rights = rights_of(attrs.owner, file.sections.get("policy", {}))
    summary = f"{file.id} {marks} {' '.join(map(str, numbers))} {rights} {attrs.etag}"
    assert summary.count(" ") == WORDS - 1, "a summary is read word by word"
    words = words_of(summary)
    parsed = attributes_in(words, attrs.owner, numbers_in(words[COMMON_WORD]))
    assert parsed == replace(attrs, version=0, device=0, target="", implied=False), "a listing tells what a look does"
    return summary


def rights_of(owner: str, policy: Mapping[str, str]) -> str:
    """Return a digest of an owner and a policy: 120 bits of a SHA-256 (FIPS 180-4), equal only for equal ones."""
    words = [owner, *(word for identity in sorted(policy) for word in (identity, policy[identity]))]
    text = "".join(f"{len(word)}:{word}" for word in words)
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:15]).decode()


def words_of(summary: str) -> list[str]:
    """Return the words of a summary, the common ones as one."""
    words = summary.split(" ", COMMON_WORD)
    words += words.pop().rsplit(" ", 1)
    return words


def rights_in(common: str) -> str:
    """Return the digest of owner and policy in the common words."""
    return common.rpartition(" ")[2]


def numbers_in(common: str) -> tuple[int, int, int, int, int]:
    """Return mode, uid, gid, links and wanted in the common words. Raises: ValueError for other text."""
    mode, uid, gid, links, wanted, _ = common.split(" ")
    return int(mode), int(uid), int(gid), int(links), int(wanted)


def attributes_in(words: Sequence[str], owner: Dn, numbers: tuple[int, int, int, int, int]) -> Attributes:
    """Return the attributes in the words of a summary, with an owner and the numbers of its common words.

    The version is 0: a summary does not have it. Raises: ValueError for other words.
    """
    guid, _, size, modified, changed, accessed, created, _, etag = words
    mode, uid, gid, links, wanted = numbers
    at = int(modified)  # a file written in one piece has one time
    return Attributes(
        Guid(guid), TYPE_FILE, 0, owner, int(size), etag, at, at if changed == modified else int(changed),
        at if accessed == modified else int(accessed), at if created == modified else int(created),
        mode, uid, gid, 0, links, "", wanted,
    )  # fmt: skip
