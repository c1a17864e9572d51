"""A Bartender in a node, and its doors for users: plain, and S3."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from chelonia.bartender.service import BartenderService
from chelonia.bartender.settings import BartenderSettings
from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.ids import ServiceId
from chelonia.core.names import parse_ln
from chelonia.core.operations.access_keys import ACCESS_KEYS
from chelonia.core.operations.files import FILES
from chelonia.core.values import replace
from chelonia.hosting.config import BartenderSection, files_url, read_secret
from chelonia.hosting.doors.compact_server import offer
from chelonia.hosting.doors.plain.cluster_page import ClusterView
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.doors.plain.parts import DoorParts
from chelonia.hosting.doors.plain.third_party import ThirdParty
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.doors.soap_door import SoapDoor
from chelonia.hosting.doors.tokens.bearer import Bearers
from chelonia.hosting.doors.tokens.issuers import Issuers
from chelonia.hosting.net.delegations import Delegations
from chelonia.hosting.net.http_messages import Door
from chelonia.hosting.net.rpc_client import remote_librarian
from chelonia.hosting.net.strangers import Strangers
from chelonia.hosting.net.tls import TlsStore
from chelonia.hosting.services.hosting_node import HostingNode
from chelonia.hosting.transfer.front import HttpBytes
from chelonia.wire.operations.bartender import BARTENDER


async def host(node: HostingNode, section: BartenderSection) -> None:
    """Serve a Bartender and the doors of users. Raises: CheloniaError when it cannot start."""
    key = read_secret(Path(section.token_key_file))
    settings = BartenderSettings(node.dn, ServiceId(section.id), key, **section.tuning)
    if not settings.files_url:
        settings = replace(settings, files_url=files_url(section.id, node.config.listen))
    librarian = node.librarian or remote_librarian(node.link, section.librarians)
    bartender = BartenderService(librarian, node.directory, node.clock, node.ids, settings)
    node.metrics.count(bartender.limits)
    node.offered |= offer(BARTENDER.table, bartender) | offer(FILES, bartender.files)
    node.offered |= offer(ACCESS_KEYS, bartender.keys)
    bartender.keys.revoked = revoked = partial(_is_revoked, node.tls)
    node.doors["bartender"] = SoapDoor(BARTENDER, bartender, section.id, node.soap).serve
    strangers = Strangers(node.tls, settings.transfer_networks)
    node.closers.append(strangers.close)
    third = ThirdParty(strangers, Delegations(limits=node.metrics.limits))
    plain = DoorParts(
        bartender.files, HttpBytes(node.client, node.clock), node.dn, bounds.REPLICAS_DEFAULT, bartender, third,
        ClusterView(librarian, node.own(Role.BARTENDER, section.id), node.client, node.registry),
    )  # fmt: skip
    bearers = Bearers(
        node.registry, key, node.clock, settings.share_lifetime_ms_max, revoked,
        bartender.keys.kept, Issuers(section.issuers, node.clock).call_of,
    )  # fmt: skip
    node.doors["files"] = PlainDoor(plain, bearers.call_of, node.metrics).serve
    node.doors["s3"] = _s3_door(node, plain, bartender, section)
    if any({"files", "s3"} & {*listen.serves} for listen in node.config.listen):
        node.guard(lambda: bounds.DOOR_STILL_MS)
    call = node.own(Role.BARTENDER, section.id)

    async def check() -> None:
        await librarian.nodes(call)

    node.readiness.add("bartender", check)


def _s3_door(node: HostingNode, plain: DoorParts, bartender: BartenderService, section: BartenderSection) -> Door:
    own = replace(plain, copies=section.s3_copies)
    root = parse_ln(section.s3_root)
    return S3Door(S3Parts(own, bartender.keys, node.clock, root, section.s3_domain.lower()), node.metrics).serve


def _is_revoked(tls: TlsStore, credential: str) -> bool:
    """Return whether a CRL names a certificate (`Call.credential`)."""
    serial, _, issuer = credential.partition(" ")
    return any(int(serial, 16) in crl.revoked for crl in tls.trust.crls.get(issuer, ()))
