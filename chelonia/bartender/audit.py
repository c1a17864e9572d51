"""The audit log: the caller, operation and entry of each decision, its outcome, and the rule behind it.

One line per decision on the logger `chelonia.audit` at INFO, key=value with JSON-quoted values, so that no text of a
caller can forge a line. It has the full rule; the caller gets only what he may know (`rights`).
"""

from __future__ import annotations

import functools
import logging
from json.encoder import encode_basestring_ascii as _quoted

from chelonia.core.caller import Call
from chelonia.core.rights.scopes import narrowed_to

_log = logging.getLogger("chelonia.audit")
_repeated = functools.lru_cache(maxsize=64)(_quoted)
"""Quoting with a cache, for values that most lines share."""


def record(call: Call, op: str, ln: str, *, action: str, decision: str, rule: str) -> None:
    """Write one decision. `decision`: `allowed`, `denied` or `administrator`."""
    if not _log.isEnabledFor(logging.INFO):
        return
    line = (
        f'who={_repeated(call.dn)} op="{op}" ln={_quoted(ln)} action="{action}" decision="{decision}" '
        f"rule={_repeated(rule)} request={_quoted(call.request_id)} address={_repeated(call.address)}"
    )
    if call.via:
        line += f" via={_quoted(call.via)} narrowed={_quoted(narrowed_to(call.scopes))}"
    _log.info(line)
