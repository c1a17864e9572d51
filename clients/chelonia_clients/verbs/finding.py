"""The verb that a word means, and suggestions for a word that is none. Pure.

The original's rule holds for its verbs: the first three letters of a method count, in any case. `mount` anywhere in a
word that begins with `mak` selects the mount variant. Our own verbs take an abbreviation of three letters or more.
A verb that removes takes its whole name, or one of its other whole names: nothing is removed by a slip.
"""

from __future__ import annotations

from typing import Final

from chelonia_clients.verbs import table
from chelonia_clients.verbs.table import VERBS, Verb

ORIGINAL: Final[dict[str, Verb]] = {
    "sta": table.STAT, "mak": table.MAKE_COLLECTION, "lis": table.LIST, "mov": table.MOVE, "put": table.PUT,
    "get": table.GET, "mod": table.MODIFY, "pol": table.POLICY, "cre": table.CREDENTIALS,
}  # fmt: skip
"""First three letters of the original's verbs that remove nothing."""

WHOLE: Final[dict[str, Verb]] = {
    "mkdir": table.MAKE_COLLECTION, "rmdir": table.UNMAKE_COLLECTION, "unmake": table.UNMAKE_COLLECTION,
    "unmount": table.UNMAKE_MOUNT, "df": table.QUOTA,
}  # fmt: skip
"""Other words for verbs, as people type them."""

REMOVING: Final = frozenset(("rm", "delFile", "unlink", "unmakeCollection", "unmakeMountPoint", "removeCredentials"))
"""Verbs that remove something."""

FOREIGN: Final[dict[str, str]] = {
    "copy": "cp", "rename": "mv", "dir": "ls", "upload": "put", "download": "get", "chmod": "policy", "chown": "policy",
    "acl": "policy", "setfacl": "policy", "getfacl": "policy", "mirror": "sync", "rsync": "sync", "config": "setup",
    "configure": "setup", "login": "setup", "init": "setup", "restore": "undelete", "check": "diff",
    "top": "admin top", "health": "admin status",
    "del": "rm", "delete": "rm", "remove": "rm",
    "erase": "rm", "info": "stat", "touch": "put", "man": "help", "symlink": "ln", "link": "ln",
}  # fmt: skip
"""Words of other programs for a verb."""

_ADMIN: Final = frozenset(form.split()[0] for form in table.ADMIN.synopsis.split(" | "))


def find_verb(word: str) -> Verb | None:
    """Return the verb that a word means, or None."""
    lower = word.lower()
    names = {verb.name.lower(): verb for verb in VERBS} | WHOLE
    if lower in names:
        return names[lower]
    if "mount" in lower and lower.startswith("mak"):
        return table.MAKE_MOUNT
    if lower[:3] in ORIGINAL:
        return ORIGINAL[lower[:3]]
    matching = [verb for name, verb in names.items() if len(lower) >= 3 and name.startswith(lower)]
    return matching[0] if len(matching) == 1 and matching[0].name not in REMOVING else None


def suggest(word: str) -> str:
    """Return a suggestion for a word that is no verb: `Did you mean ...?` after a blank, or ""."""
    import difflib  # here: hardly a command needs it

    lower = word.lower()
    names = {verb.name.lower(): verb.name for verb in VERBS} | {alias: alias for alias in (*WHOLE, "put", "get")}
    if lower in _ADMIN:
        guesses = [f"admin {lower}"]
    elif lower in FOREIGN:
        guesses = [FOREIGN[lower]]
    else:
        guesses = [name for start, name in names.items() if len(lower) >= 3 and start.startswith(lower)]
        guesses = guesses or [names[near] for near in difflib.get_close_matches(lower, names, 2, 0.6)]
    if guesses == ["rm"]:
        guesses = ["rm (one name)", "delFile (a file with all its names)"]
    return f" Did you mean {' or '.join(guesses)}?" if guesses else ""
