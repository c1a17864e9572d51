"""The audit log: who asked for what on which entry, what was decided, and by which rule.

One line per decision on the logger `chelonia.audit` at INFO, key=value with JSON-quoted values, so that nothing a
caller chooses can forge a line. The full rule stands here; the caller is told only what he may know (`rights`).
"""

from __future__ import annotations

import json
import logging

from chelonia.core.caller import Call
from chelonia.core.rights.scopes import narrowed_to

_log = logging.getLogger("chelonia.audit")
_quoted = json.JSONEncoder().encode


def record(call: Call, op: str, ln: str, *, action: str, decision: str, rule: str) -> None:
    """Write one decision. `decision`: `allowed`, `denied` or `administrator`."""
    if not _log.isEnabledFor(logging.INFO):
        return
    fields = {
        "who": call.dn,
        "op": op,
        "ln": ln,
        "action": action,
        "decision": decision,
        "rule": rule,
        "request": call.request_id,
        "address": call.address,
    }
    if call.via:
        fields |= {"via": call.via, "narrowed": narrowed_to(call.scopes)}
    _log.info("%s", " ".join(f"{key}={_quoted(value)}" for key, value in fields.items()))
