"""The settings of a Bartender: its identity, and the limits it works under."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core.ids import Dn, ServiceId


@dataclass(frozen=True, slots=True)
class BartenderSettings:
    """Identity and limits of one Bartender.

    Args:
        dn, service_id: the registered identity under which it calls Librarians and Shepherds.
        token_key: at least 16 secret bytes, the same on every Bartender of the cluster; signs `put` tokens.
        domain: failure domain of this node; replicas in it come first in answers.
        durable_copies: replicas on stable storage before an upload is answered (at most the wanted count).
        spares: further Shepherds a put may fall back on.
        fallback_turls: further replicas getFile names beside the first.
        put_lifetime_ms: until the bytes of an upload begin to come, and from the last of them to their name; a pending
            name expires with it.
        get_lifetime_ms: lifetime of a read TURL.
        nodes_cache_ms: greatest age of the list of Shepherds.
        hedge_ms: silence of a Shepherd after which the Bartender calls the next one beside it.
        silent_ms: time for which one that kept a caller waiting in vain comes last.
        shepherd_timeout_ms: longest wait for a Shepherd's answer.
        files_url: the plain door that share links lead to; empty: none is known.
        share_lifetime_ms_max: longest lifetime of a share link; 0: there are none.
        fallback_grace_ms: wait of getFile for further replicas once it has one.
        transfer_networks: networks that are not public, from and to which users may have files copied (COPY).
    """

    dn: Dn
    service_id: ServiceId
    token_key: bytes
    domain: str = ""
    durable_copies: int = 2
    spares: int = 1
    fallback_turls: int = 2
    put_lifetime_ms: int = 60 * 60 * 1000
    get_lifetime_ms: int = 10 * 60 * 1000
    nodes_cache_ms: int = 500
    hedge_ms: int = 150
    silent_ms: int = 5000
    shepherd_timeout_ms: int = 3000
    fallback_grace_ms: int = 100
    files_url: str = ""
    share_lifetime_ms_max: int = 30 * 24 * 60 * 60 * 1000
    transfer_networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Assert the promises of hosting: a real key and at least one durable copy."""
        assert len(self.token_key) >= 16, "token_key needs at least 16 bytes"
        assert self.durable_copies >= 1, "durable_copies is at least 1"
