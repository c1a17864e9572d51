"""DNs as text, and the identity cache's promises beyond the handshakes in test_tls."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.hosting.net import identity
from chelonia.hosting.net.certificates import make_key
from chelonia.hosting.net.identity import (
    FOREVER,
    IdentityCache,
    canonical_dn,
    is_for,
    name_from_dn,
    parse_dn,
    render_dn,
)
from chelonia.hosting.net.tls import ClientCertificate
from tests.support.failing import fails
from tests.unit.hosting.grid import JANE, P256, Grid, handshake

OID = x509.NameOID
TYPES = [OID.COMMON_NAME, OID.ORGANIZATION_NAME, OID.ORGANIZATIONAL_UNIT_NAME, OID.USER_ID, OID.TITLE]
LETTERS = st.one_of(st.sampled_from("/+=\\xCNOU12. *\"'é漢"), st.characters(blacklist_categories=["Cs"]))
VALUES = st.text(LETTERS, min_size=1, max_size=12)
ATTRIBUTES = st.builds(x509.NameAttribute, st.sampled_from(TYPES), VALUES)
RDNS = st.lists(ATTRIBUTES, min_size=1, max_size=2, unique_by=lambda part: part.oid).map(x509.RelativeDistinguishedName)
NAMES = st.lists(RDNS, min_size=1, max_size=4).map(x509.Name)


def plain(name: x509.Name) -> list[list[tuple[str, str]]]:
    """A name's parts as (dotted OID, value)."""
    return [[(part.oid.dotted_string, str(part.value)) for part in rdn] for rdn in name.rdns]


@pytest.mark.parametrize(
    ("named", "host", "taken"),
    [
        ("one.example.org", "one.example.org", True),
        ("One.Example.ORG", "one.example.org", True),
        ("192.0.2.7", "192.0.2.7", True),
        ("*.example.org", "one.example.org", True),
        ("*.example.org", "one.two.example.org", False),
        ("*.example.org", "example.org", False),
        ("two.example.org", "one.example.org", False),
        ("192.0.2.8", "192.0.2.7", False),
    ],
)
def test_a_certificate_is_for_the_hosts_for_which_clients_take_it(
    named: str, host: str, taken: bool, tmp_path: Path
) -> None:
    grid = Grid(tmp_path)
    assert is_for(grid.ca.issue_host("/O=Grid/CN=host", [named], grid.now).certificate, host) is taken


@given(NAMES)
def test_a_dn_says_exactly_what_the_name_says(name: x509.Name) -> None:
    text = render_dn(name)
    assert plain(name_from_dn(text)) == plain(name)
    assert text.isascii()
    assert text.isprintable()
    assert canonical_dn(text) == text


@given(NAMES, NAMES)
def test_different_names_have_different_dns(one: x509.Name, other: x509.Name) -> None:
    assert (render_dn(one) == render_dn(other)) == (plain(one) == plain(other))


@given(st.text(max_size=40))
def test_any_text_is_a_dn_or_a_clear_error(text: str) -> None:
    try:
        dn = canonical_dn(text)
    except CheloniaError as error:
        wrong = error.kind
    else:
        assert canonical_dn(dn) == dn
        return
    assert wrong is Kind.BAD_REQUEST


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([(OID.ORGANIZATION_NAME, "Grid"), (OID.COMMON_NAME, "Jane Doe")], "/O=Grid/CN=Jane Doe"),
        (
            [(OID.DOMAIN_COMPONENT, "org"), (OID.USER_ID, "jd"), (OID.EMAIL_ADDRESS, "j@x.org")],
            "/DC=org/UID=jd/emailAddress=j@x.org",
        ),
        ([(OID.COMMON_NAME, "host/a.example.org")], "/CN=host/a.example.org"),
        ([(OID.COMMON_NAME, "Jane/CN=Admin")], r"/CN=Jane\x2FCN=Admin"),
        ([(OID.COMMON_NAME, "Jane+UID=0")], r"/CN=Jane\x2BUID=0"),
        ([(OID.COMMON_NAME, "a/1.2.3=b")], r"/CN=a\x2F1.2.3=b"),
        ([(OID.COMMON_NAME, "Jörg\n")], r"/CN=J\xC3\xB6rg\x0A"),
        ([(OID.COMMON_NAME, r"\x2F")], r"/CN=\x5Cx2F"),
        ([(x509.ObjectIdentifier("1.2.3.4"), "odd")], "/1.2.3.4=odd"),
    ],
)
def test_dns_look_as_grid_people_write_them(parts: list[tuple[x509.ObjectIdentifier, str]], text: str) -> None:
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])
    assert render_dn(name) == text


def test_a_multivalued_rdn_is_not_two_rdns() -> None:
    jane, uid = x509.NameAttribute(OID.COMMON_NAME, "Jane"), x509.NameAttribute(OID.USER_ID, "jd")
    assert render_dn(x509.Name([x509.RelativeDistinguishedName([jane, uid])])) == "/CN=Jane+UID=jd"
    assert render_dn(x509.Name([jane, uid])) == "/CN=Jane/UID=jd"


def test_dns_that_people_type_are_understood() -> None:
    assert canonical_dn("/o=Grid/cn=Jörg/Email=j@x.org") == r"/O=Grid/CN=J\xC3\xB6rg/emailAddress=j@x.org"
    for text in ("", "CN=Jane", "/CN", "Grid/CN=x", "/XX=1", r"/CN=a\b", r"/CN=\xFF"):
        with pytest.raises(CheloniaError):
            parse_dn(text)


# --------------------------------------------------------------------------------------------------------------- cache


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


def test_the_cache_is_bounded_and_forgets_the_least_recently_used(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "IDENTITIES_MAX", 2)
    cache = IdentityCache(lambda chain, now: FOREVER, grid.clock.now_ms)
    listener = grid.server().server_context(ClientCertificate.REQUIRED)
    contexts = [grid.client(grid.user(f"/O=Grid/CN=user{number}")).client_context().current() for number in range(3)]
    sides = [handshake(listener, context) for context in contexts]
    for number in (0, 1, 0, 2):
        assert cache.identify(sides[number][1]).dn == f"/O=Grid/CN=user{number}"
    resumed = [handshake(listener, contexts[n], session=sides[n][0].session)[1] for n in range(3)]
    assert all(side.session_reused for side in resumed)
    assert cache.identify(resumed[0]).dn == "/O=Grid/CN=user0"
    assert cache.identify(resumed[2]).dn == "/O=Grid/CN=user2"
    with pytest.raises(CheloniaError, match="reconnect"):
        cache.identify(resumed[1])


def test_a_verdict_holds_until_its_end_or_until_trust_is_loaded_anew(grid: Grid) -> None:
    verdicts: list[CheloniaError | Ms] = []

    def check(chain: identity.Chain, now_ms: Ms) -> Ms:
        verdict = verdicts.pop(0)
        if isinstance(verdict, CheloniaError):
            raise verdict
        return verdict

    cache = IdentityCache(check, grid.clock.now_ms)
    _, side = grid.meet(grid.user())
    verdicts[:] = [Ms(grid.now + 1000)]
    assert cache.identify(side).dn == cache.identify(side).dn == JANE
    grid.clock.ms = grid.now + 1000
    verdicts[:] = [FOREVER]
    assert cache.identify(side).dn == cache.identify(side).dn == JANE
    assert verdicts == []
    cache.judge_again()
    verdicts[:] = [CheloniaError(Kind.UNTRUSTED), CheloniaError(Kind.UNTRUSTED)]
    with pytest.raises(CheloniaError):
        cache.identify(side)
    assert verdicts == [], "the remembered chain was refused, so the connection's own chain was judged"
    assert not cache._cached
    verdicts[:] = [FOREVER]
    assert cache.identify(side).dn == JANE, "an open connection still has its chain"


def test_a_clock_far_behind_refuses(grid: Grid) -> None:
    store, side = grid.meet(grid.user())
    grid.clock.ms -= 3600 * 1000
    with pytest.raises(CheloniaError, match="check the clocks"):
        store.identify(side)


@pytest.mark.parametrize(
    "value", [b"", b"\x30", b"\x30\x05\x30", b"\x30\x02\x05\x00", b"\x30\x04\x30\x02\x06\x00", b"\x30\x85\x01\x01\x01"]
)
def test_a_malformed_proxy_extension_is_an_error_value(grid: Grid, value: bytes) -> None:
    user = grid.user().certificate
    builder = x509.CertificateBuilder(
        issuer_name=user.subject,
        subject_name=user.subject,
        public_key=make_key(P256).public_key(),
        serial_number=1,
        not_valid_before=user.not_valid_before_utc,
        not_valid_after=user.not_valid_after_utc,
    ).add_extension(x509.UnrecognizedExtension(identity.PROXY_CERT_INFO, value), critical=True)
    cert = builder.sign(grid.ca.issued.key, hashes.SHA256())
    with fails(Kind.UNTRUSTED):
        identity.identity_of_chain([cert])


INHERIT = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x15\x01"
POLICY = b"\x30\x0a" + INHERIT


def info(content: bytes) -> bytes:
    return bytes((0x30, len(content))) + content


@pytest.mark.parametrize(
    ("value", "critical", "why"),
    [
        (info(POLICY), False, "not critical"),
        (info(POLICY) + b"\x05\x00", True, "behind"),
        (info(POLICY + b"\x05\x00"), True, "behind"),
        (info(b"\x02\x01\xff" + POLICY), True, "negative"),
        (info(b"\x30\x0d" + INHERIT + b"\x04\x01x"), True, "beside inheritAll"),
    ],
)
def test_a_proxy_extension_that_rfc_3820_forbids_is_refused(grid: Grid, value: bytes, critical: bool, why: str) -> None:
    user = grid.user().certificate
    builder = x509.CertificateBuilder(
        user.subject, user.subject, make_key(P256).public_key(), 1, user.not_valid_before_utc, user.not_valid_after_utc
    )
    builder = builder.add_extension(x509.UnrecognizedExtension(identity.PROXY_CERT_INFO, value), critical=critical)
    with pytest.raises(CheloniaError, match=why):
        identity.proxy_language(builder.sign(grid.ca.issued.key, hashes.SHA256()))


LIMITED = bytes((0x06, len(identity.LIMITED))) + identity.LIMITED


@pytest.mark.parametrize(
    "value",
    [
        info(b"\x30\x81" + bytes((len(LIMITED),)) + LIMITED),
        b"\x30\x81" + bytes((len(LIMITED) + 2,)) + info(LIMITED),
        b"\x30\x82\x00\x90" + info(LIMITED).ljust(0x90, b"\0"),
        b"\x30\x83\x01\x00\x00" + info(LIMITED).ljust(0x10000, b"\0"),
        b"\x30\x80" + info(LIMITED) + b"\0\0",
        b"\x30\x81\xff" + info(LIMITED),
        b"\x30\x82\xff",
        b"\x30\xff",
    ],
)
def test_a_length_that_is_no_der_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"no DER|truncated"):
        identity._policy_language(value)


def test_a_proxy_with_a_path_length_is_taken(grid: Grid) -> None:
    assert identity._policy_language(info(b"\x02\x01\x00" + POLICY)) == identity.INHERIT_ALL


def test_bytes_that_are_no_certificate_are_an_error_value() -> None:
    with fails(Kind.UNTRUSTED):
        identity.load_certificate(b"\x30\x00")
