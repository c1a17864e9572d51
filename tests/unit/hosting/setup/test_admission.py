"""Admission of new hosts: tokens, judgements, and the door's answers by caller."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.ports.ahash import PeerView
from chelonia.core.values import replace
from chelonia.hosting.config import PeerEntry
from chelonia.hosting.net.identity import name_from_dn
from chelonia.hosting.setup import admission, admission_door
from chelonia.hosting.setup.admission import (
    AdmissionRequest,
    AdmissionStatus,
    AdmissionToken,
    Expected,
    Offer,
)
from chelonia.hosting.setup.admission_door import Door, Knock
from tests.support.failing import fails
from tests.support.polling import patience
from tests.support.ports import free_ports
from tests.unit.hosting.grid import Grid

NOW = Ms(1_800_000_000_000)
SECRET = bytes(range(16))
TWO = Dn("/O=Grid/CN=host/two.example.org")
ADDRESS = "two.example.org:60011"
KEY = ec.generate_private_key(ec.SECP256R1())


def csr_of(key: Any, subject: str = "/CN=two.example.org") -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(name_from_dn(subject))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def request(**changes: Any) -> AdmissionRequest:
    good = AdmissionRequest(admission.VERSION, SECRET.hex(), "two.example.org", csr_of(KEY), "", NOW)
    return msgspec.structs.replace(good, **changes)


def expected(*members: PeerView) -> Expected:
    return Expected("two.example.org", TWO, SECRET, ADDRESS, members, [Dn("/O=Grid/CN=Anna Admin")])


def member(replica: int, dn: str, address: str, role: str = "follower") -> PeerView:
    return PeerView(replica, Dn(dn), address, role, 0)


ONE = member(1, "/O=Grid/CN=host/one.example.org", "one.example.org:60011", "master")
CORE = PeerEntry(1, "one.example.org", 60_011, ONE.dn)
ADMINISTRATORS, HOSTS = (Dn("/O=Grid/CN=A"),), ("one.example.org",)
OFFER = Offer("c", 60_000, ADMINISTRATORS, HOSTS, (CORE,), dn=TWO, replica=2, bartender_secret="00")


# --- tokens --------------------------------------------------------------------------------------------------------


def test_a_token_is_read_as_it_was_printed_however_it_was_copied() -> None:
    token = AdmissionToken(b"p" * 16, b"s" * 16)
    assert admission.parse_token(str(token)) == token
    assert admission.parse_token(f"  {str(token).upper()}\n") == token


@pytest.mark.parametrize("cut", [0, 3, 20, 40, 61])
def test_half_a_token_is_refused_with_the_cure(cut: int) -> None:
    with fails(Kind.BAD_REQUEST, match="cheloniad admit"):
        admission.parse_token(str(AdmissionToken(b"p" * 16, b"s" * 16))[:cut])


# --- judging -------------------------------------------------------------------------------------------------------


def test_of_a_good_request_only_the_key_is_taken() -> None:
    csr = admission.judge(request(csr=csr_of(KEY, "/O=Grid/CN=Anna Admin")), expected(ONE), NOW)
    assert csr.public_key() == KEY.public_key()


WEAK = rsa.generate_private_key(65537, 1024)


@pytest.mark.parametrize(
    ("asked", "kind", "cure"),
    [
        (request(host="three.example.org"), Kind.UNTRUSTED, "cheloniad admit three.example.org"),
        (request(time_ms=NOW + 60_000), Kind.CONFLICT, "60 s ahead: run NTP"),
        (request(time_ms=NOW - 3_600_000), Kind.CONFLICT, "3600 s behind: run NTP"),
        (request(csr="no PEM"), Kind.BAD_REQUEST, "cannot be read"),
        (request(csr=csr_of(WEAK)), Kind.BAD_REQUEST, "too weak"),
        (request(csr=csr_of(ec.generate_private_key(ec.SECP192R1()))), Kind.BAD_REQUEST, "too weak"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_cure(asked: AdmissionRequest, kind: Kind, cure: str) -> None:
    with fails(kind, match=cure):
        admission.judge(asked, expected(ONE), NOW)


def test_a_request_that_its_key_did_not_sign_is_refused() -> None:
    der = bytearray(x509.load_pem_x509_csr(csr_of(KEY).encode()).public_bytes(Encoding.DER))
    der[der.index(b"two.example.org")] ^= 1
    pem = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM).decode()
    with pytest.raises(CheloniaError, match="not signed by its key"):
        admission.judge(request(csr=pem), expected(ONE), NOW)


@pytest.mark.parametrize(
    ("there", "cure"),
    [
        (member(2, TWO, ADDRESS), "is at work"),
        (member(2, TWO, ADDRESS, "master"), "ahash remove 2"),
        (member(3, "/O=Grid/CN=host/three.example.org", ADDRESS), "ahash remove 3"),
        (member(3, TWO, "three.example.org:60011", "away"), "name of its own"),
    ],
)
def test_a_name_and_an_address_are_given_once(there: PeerView, cure: str) -> None:
    with fails(Kind.EXISTS, match=cure):
        admission.judge(request(), expected(ONE, there), NOW)


def test_a_host_that_was_admitted_and_did_not_come_up_may_try_again() -> None:
    gone = member(2, TWO, ADDRESS, "away")
    admission.judge(request(), expected(ONE, gone), NOW)
    assert admission.replica_of((ONE, gone), TWO) == 2
    assert admission.replica_of((ONE,), TWO) == 0


def test_nobody_becomes_a_person() -> None:
    with pytest.raises(CheloniaError, match="somebody else's identity"):
        admission.check_free(replace(expected(ONE), dn=Dn("/O=Grid/CN=Anna Admin")))


def test_a_sites_certificate_has_to_be_for_the_key_and_the_name(tmp_path: Any) -> None:
    grid = Grid(tmp_path)
    issued = grid.ca.issue_host("/O=Grid/CN=host/two", ["two.example.org"], grid.now, key=KEY)
    pem = issued.certificate.public_bytes(Encoding.PEM).decode()
    csr = x509.load_pem_x509_csr(csr_of(KEY).encode())
    assert admission.own_certificate(request(certificate=pem), csr) == (issued.certificate,)
    with pytest.raises(CheloniaError, match="subject alternative name"):
        admission.own_certificate(request(certificate=pem, host="three.example.org"), csr)
    other = x509.load_pem_x509_csr(csr_of(ec.generate_private_key(ec.SECP256R1())).encode())
    with pytest.raises(CheloniaError, match="has not the key"):
        admission.own_certificate(request(certificate=pem), other)
    with pytest.raises(CheloniaError, match="cannot be read"):
        admission.own_certificate(request(certificate="-"), csr)


# --- the door ------------------------------------------------------------------------------------------------------

Decide = Callable[[AdmissionRequest, str], Awaitable[Offer]]


async def admit(_request: AdmissionRequest, _origin: str) -> Offer:
    return OFFER


async def refuse(_request: AdmissionRequest, _origin: str) -> Offer:
    raise CheloniaError(Kind.CONFLICT, "join", cause="its clock is ahead: run NTP")


async def deny(_request: AdmissionRequest, _origin: str) -> Offer:
    raise CheloniaError(Kind.DENIED, "admit", cause="the administrator said no")


class OpenDoor:
    """A door on loopback for the length of a test."""

    def __init__(self, decide: Decide, deadline_s: float = 30) -> None:
        self.door, (self.port,) = Door(SECRET, decide), free_ports(1)
        self._decide, self._deadline_s = decide, deadline_s
        self.opened = asyncio.Event()

    @property
    def token(self) -> AdmissionToken:
        return AdmissionToken(self.door.pin, SECRET)

    async def __aenter__(self) -> OpenDoor:
        self.task = asyncio.create_task(self.door.run("127.0.0.1", self.port, self._deadline_s, self.opened.set))
        await self.opened.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def ask(self, asked: AdmissionRequest, token: AdmissionToken | None = None) -> Offer:
        return await asyncio.to_thread(self._ask, asked, token or self.token)

    def _ask(self, asked: AdmissionRequest, token: AdmissionToken) -> Offer:
        knock = Knock("127.0.0.1", self.port, token)
        try:
            offer = knock.ask(asked, 20, lambda: None)
            knock.received()
            return offer
        finally:
            knock.close()

    async def send(self, sent: bytes) -> AdmissionStatus:
        """Send any bytes."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            writer.write(sent)
            return admission.parse_answer(await reader.readuntil(b"\n"))
        finally:
            writer.transport.abort()


async def test_the_holder_of_the_token_is_admitted_once() -> None:
    async with OpenDoor(admit) as door:
        assert await door.ask(request()) == OFFER
        await door.task
        with fails(Kind.NETWORK, match="does `cheloniad admit` still run"):
            await door.ask(request())


async def test_a_stranger_in_the_doors_place_is_told_nothing() -> None:
    heard: list[AdmissionRequest] = []

    async def listen(asked: AdmissionRequest, _origin: str) -> Offer:
        heard.append(asked)
        return OFFER

    async with OpenDoor(listen) as door:
        with fails(Kind.UNTRUSTED, match="nothing was sent"):
            await door.ask(request(), AdmissionToken(b"x" * 16, SECRET))
        assert not heard


@pytest.mark.expect_log("wrong token from=127.0.0.1")
async def test_who_guesses_learns_nothing_and_is_stopped() -> None:
    async with OpenDoor(admit) as door:
        for _ in range(admission.WRONG_TOKENS_MAX):
            assert not door.task.done()
            with pytest.raises(CheloniaError, match="token is not that"):
                await door.ask(request(secret="00" * 16))
        with fails(Kind.UNTRUSTED, match="the token is void"):
            await door.task


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no request to join"),
        (b"\xff\xfe\n", "no request to join"),
        (b"{}\n", "no request to join"),
        (json.dumps({"version": 99}).encode() + b"\n", "no request to join"),
        (b'{"new": ' + b"[" * 60_000 + b"\n", "no request to join"),
        (admission.line_of(request(version=99)), "install the same release"),
        (b"x" * (admission.LINE_BYTES_MAX + 1), "at most"),
    ],
)
async def test_garbage_is_refused_and_the_door_stays_open(sent: bytes, cause: str) -> None:
    async with OpenDoor(admit) as door:
        answer = await door.send(sent)
        assert answer.state == "refused"
        assert cause in answer.cause
        assert await door.ask(request()) == OFFER


async def test_a_refusal_is_told_and_may_be_mended_a_denial_is_the_end() -> None:
    async with OpenDoor(refuse) as door:
        with pytest.raises(CheloniaError, match="refused: its clock is ahead: run NTP"):
            await door.ask(request())
        assert not door.task.done()
    async with OpenDoor(deny) as door:
        with pytest.raises(CheloniaError, match="the administrator said no"):
            await door.ask(request())
        with fails(Kind.DENIED):
            await door.task


async def test_who_hangs_up_with_the_offer_in_hand_may_come_again() -> None:
    """He may have lost it before he wrote it down."""
    async with OpenDoor(admit) as door:
        assert (await door.send(admission.line_of(request()))).state == "waiting"
        assert await door.ask(request()) == OFFER
        await door.task


async def test_a_door_closes_when_its_time_is_over() -> None:
    async with OpenDoor(admit, deadline_s=0.05) as door:
        with fails(Kind.EXPIRED, match="run `cheloniad admit` again"):
            await door.task


async def test_the_silent_are_cut_off_and_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_door, "REQUEST_S", 0.6 * patience())
    async with OpenDoor(admit) as door:
        silent = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(5)]
        assert await door.ask(request()) == OFFER
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()


async def test_one_door_at_a_time() -> None:
    async with OpenDoor(admit) as door:
        with fails(Kind.UNAVAILABLE, match="another `cheloniad admit`"):
            await Door(SECRET, admit).run("127.0.0.1", door.port, 1, lambda: None)


@pytest.mark.parametrize("line", [b"no json\n", b'{"state": 1}\n', b"[]\n", b'{"new": ' + b"[" * 60_000 + b"\n"])
def test_an_answer_of_something_else_is_refused(line: bytes) -> None:
    with pytest.raises(CheloniaError, match="no answer of `cheloniad admit`"):
        admission.parse_answer(line)
