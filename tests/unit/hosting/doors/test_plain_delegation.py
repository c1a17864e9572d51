"""Delegation at the plain door: how a user gives it a proxy, and its use in a copy."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from lxml import etree

from chelonia.core.ids import ANONYMOUS, Dn, Ms
from chelonia.hosting.doors.plain.third_party import ThirdParty
from chelonia.hosting.net import delegations
from chelonia.hosting.net.certificates import Issued, KeyKind, PrivateKey, chain_pem, make_proxy
from chelonia.hosting.net.delegations import Delegations
from chelonia.hosting.net.http_messages import Peer
from chelonia.hosting.net.strangers import Strangers
from chelonia.wire.soap import ENVELOPE
from tests.unit.hosting.doors.test_plain_door import JOE, Bench, Seen
from tests.unit.hosting.doors.test_plain_third_party import BYTES, OTHER, Other
from tests.unit.hosting.grid import Grid

HOUR_S = 3600
V1, V2 = (f"http://www.gridsite.org/namespaces/delegation-{n}" for n in (1, 2))


class Asker:
    """A client of the delegation service, and its copies."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.other = grid, Other()
        self.bench = Bench(ThirdParty(cast(Strangers, self.other), Delegations(grid.clock.now_ms)))

    def call(self, operation: str, dn: Dn = JOE, space: str = V2, **values: str) -> dict[str, str]:
        """Call an operation; returns its answer, by the names of its leaves."""
        inner = "".join(f"<{name}>{value}</{name}>" for name, value in values.items())
        body = (
            f'<e:Envelope xmlns:e="{ENVELOPE}"><e:Body>'
            f'<d:{operation} xmlns:d="{space}">{inner}</d:{operation}></e:Body></e:Envelope>'
        )
        return leaves(self.bench.ask("POST", "/?delegation", body.encode(), dn, Content_Type="text/xml"))

    def sign(self, request: str, signer: Issued, lifetime_s: int = HOUR_S) -> str:
        """Sign a certificate request as the client does; returns the proxy."""
        asked: Any = x509.load_pem_x509_csr(request.encode())
        assert asked.is_signature_valid
        return chain_pem(make_proxy(signer, self.grid.now, lifetime_s=lifetime_s, key=asked).chain).decode()

    def delegate(self, lifetime_s: int = HOUR_S) -> None:
        request = self.call("getProxyReq", delegationID="mine")["getProxyReqReturn"]
        assert not self.call("putProxy", delegationID="mine", proxy=self.sign(request, self.joe(), lifetime_s))

    def joe(self) -> Issued:
        return self.grid.user(JOE)

    def copy(self, path: str = "/f", dn: Dn = JOE, **headers: str) -> Seen:
        return self.bench.ask("COPY", path, dn=dn, Credential="gridsite", **headers)


def leaves(answer: Seen) -> dict[str, str]:
    found = {str(each.tag): each.text or "" for each in etree.fromstring(answer.body).iter() if not len(each)}
    assert ("faultcode" in found) == (answer.status == 500)
    return {name: text for name, text in found.items() if not name.startswith("{http://www.gridsite")}


def altered(proxy: str, number: int, old: str, new: str) -> str:
    """Return a chain with these bytes (hex) in place of others in one of its certificates."""
    chain = [ssl.PEM_cert_to_DER_cert(each.strip() + ssl.PEM_FOOTER) for each in proxy.split(ssl.PEM_FOOTER)[:-1]]
    assert bytes.fromhex(old) in chain[number]
    chain[number] = chain[number].replace(bytes.fromhex(old), bytes.fromhex(new))
    return "".join(map(ssl.DER_cert_to_PEM_cert, chain))


@pytest.fixture
def asker(tmp_path: Path) -> Asker:
    return Asker(Grid(tmp_path))


def test_a_copy_is_sent_to_delegate_and_then_shows_the_proxy(asker: Asker) -> None:
    first = asker.copy("/a%3F b?x=1", Source=OTHER)
    assert (first.status, first.headers["X-Delegate-To"]) == (302, "/?delegation")
    again = first.headers["Location"]
    assert again.startswith("/a%253F%20b?x=1&asked-to-delegate")
    assert asker.copy("//evil.example.org/x", Source=OTHER).headers["Location"].startswith("/evil.example.org/x?")
    refused = asker.copy(again, Source=OTHER)
    assert (refused.status, "delegate a proxy" in refused.text) == (403, True)
    asker.delegate()
    assert asker.copy("/f", Source=OTHER).text.endswith("success: Created\n")
    assert asker.copy("/f", Destination=OTHER).text.endswith("success: Created\n")
    pulled, pushed = asker.other.shown
    assert pulled == pushed
    assert pulled.count(b"BEGIN CERTIFICATE") == 2
    assert pulled.count(b"PRIVATE KEY") == 2
    assert asker.other.stored == BYTES
    assert asker.copy("/f", Source=OTHER, dn=Dn("/CN=eve")).status == 302
    asker.bench.ask("COPY", "/f", dn=JOE, Source=OTHER)
    assert asker.other.shown[-1] == b""


def test_both_versions_tell_when_it_ends_and_forget_it(asker: Asker) -> None:
    assert asker.call("getInterfaceVersion")["getInterfaceVersionReturn"] == "2.0.0"
    assert "faultstring" in asker.call("getTerminationTime")
    for space in (V1, V2):
        asked = asker.call("getNewProxyReq", space=space)
        proxy = asker.sign(asked["proxyRequest"], asker.joe())
        assert not asker.call("putProxy", space=space, delegationID=asked["delegationID"], proxy=proxy)
        assert asker.call("getTerminationTime", space=space)["getTerminationTimeReturn"].endswith("Z")
        assert not asker.call("destroy", space=space)
        assert asker.copy("/f", Source=OTHER).status == 302


def test_a_proxy_that_ends_soon_is_asked_for_anew_and_a_short_one_is_used(asker: Asker) -> None:
    asker.delegate(lifetime_s=10 * 60)
    assert asker.copy("/f", Source=OTHER).status == 302
    assert asker.copy("/f?asked-to-delegate", Source=OTHER).status == 202
    asker.grid.clock.ms += 11 * 60_000
    assert asker.copy("/f?asked-to-delegate", Source=OTHER).status == 403
    assert "faultstring" in asker.call("getTerminationTime")


def test_a_request_is_the_same_until_it_is_signed_and_a_new_one_after(asker: Asker) -> None:
    one, two = (asker.call("getProxyReq")["getProxyReqReturn"] for _ in range(2))
    keys = [x509.load_pem_x509_csr(each.encode()).public_key() for each in (one, two)]
    assert keys[0] == keys[1]
    for request in (one, two):  # two clients of one user at once
        assert not asker.call("putProxy", proxy=asker.sign(request, asker.joe()))
    renewed = asker.call("renewProxyReq")["renewProxyReqReturn"]
    assert x509.load_pem_x509_csr(renewed.encode()).public_key() != keys[0]
    assert asker.copy("/f", Source=OTHER).status == 202  # by the one that is kept meanwhile


def test_a_request_outlives_a_proxy_for_the_one_before(asker: Asker) -> None:
    first = asker.call("getProxyReq")["getProxyReqReturn"]
    assert not asker.call("putProxy", proxy=asker.sign(first, asker.joe()))
    second = asker.call("getProxyReq")["getProxyReqReturn"]
    for request in (first, second):  # the client of the first tries again, or there are two
        assert not asker.call("putProxy", proxy=asker.sign(request, asker.joe()))


async def test_what_is_forgotten_while_a_key_is_made_can_be_signed(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, peer = Delegations(asker.grid.clock.now_ms), Peer(JOE)
    made = delegations.make_key(KeyKind.RSA)

    def make(kind: KeyKind) -> PrivateKey:
        kept.drop(peer)
        return made

    monkeypatch.setattr(delegations, "make_key", make)
    kept.put(peer, asker.sign(await kept.request(peer), asker.joe()))
    assert kept.until_ms(peer)


def test_what_is_no_proxy_of_the_caller_is_refused(asker: Asker) -> None:
    request = asker.call("getProxyReq")["getProxyReqReturn"]
    eve = asker.grid.user("/O=Grid/CN=eve")
    for proxy, why in (
        (asker.sign(request, eve), "proxy of /O=Grid/CN=eve"),
        (asker.sign(request, asker.joe(), -60), "expired"),
        (chain_pem(asker.grid.proxy(asker.joe()).chain).decode(), "not of a key"),
        ("x", "no certificates"),
        (asker.sign(request, asker.joe()) * 9, "more than 16"),
        (altered(asker.sign(request, asker.joe()), 0, "2a864886f70d010101", "2a864886f70d01017f"), "no certificates"),
        (altered(asker.sign(request, asker.joe()), 1, "0603551d13", "0603551d0f"), "cannot be read"),
    ):
        assert why in asker.call("putProxy", proxy=proxy)["faultstring"]
    assert asker.copy("/f", Source=OTHER).status == 302


def test_who_shows_no_certificate_delegates_nothing(asker: Asker) -> None:
    for operation in ("getProxyReq", "getNewProxyReq", "putProxy", "getTerminationTime", "destroy"):
        assert "show a certificate" in asker.call(operation, ANONYMOUS)["faultstring"]
    assert asker.copy("/f", Source=OTHER, dn=ANONYMOUS).status == 401
    assert asker.bench.ask("COPY", "/f", Source=OTHER, Credential="oidc").status == 400
    assert "no operation" in asker.call("getServiceMetadata", key="x")["faultstring"]
    assert "wrong namespace" in asker.call("getProxyReq", space="urn:x")["faultstring"]
    assert asker.bench.ask("POST", "/?delegation", b"<!DOCTYPE x><x/>", Content_Type="text/xml").status == 500


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain", ""])
def test_a_page_of_another_site_delegates_and_forgets_nothing(asker: Asker, kind: str) -> None:
    asker.delegate()
    body = f"""<e:Envelope xmlns:e="{ENVELOPE}"><e:Body><d:destroy xmlns:d="{V2}"/></e:Body></e:Envelope>"""
    assert asker.bench.ask("POST", "/?delegation", body.encode(), Content_Type=kind).status in (403, 415)
    assert asker.copy("/f", Source=OTHER).status == 202


def test_a_user_fills_no_memory(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegations, "DELEGATIONS_MAX", 2)
    users = [Dn(f"/CN={n}") for n in range(3)]
    kept = Delegations(asker.grid.clock.now_ms)
    third = asker.bench.parts.third
    assert third is not None
    third.delegations = kept
    assert all("getProxyReqReturn" in asker.call("getProxyReq", dn) for dn in users[:2])
    assert "at most" in asker.call("getProxyReq", users[2])["faultstring"]
    assert kept.limits.reached == {"delegations": 1}
    asker.grid.clock.ms = Ms(asker.grid.clock.ms + delegations.ANSWER_MS_MAX)
    assert "getProxyReqReturn" in asker.call("getProxyReq", users[2])
