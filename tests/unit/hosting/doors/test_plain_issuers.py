"""Tokens of issuers at the plain door, with real signatures, and keys from a real HTTPS server or a file."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.rights.claims import LEEWAY_S
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import Scope
from chelonia.hosting.doors.tokens.issuers import Issuer, Issuers
from chelonia.hosting.net import key_sets
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse
from chelonia.hosting.net.tls import ClientCertificate
from tests.support.clocks import QuickClock
from tests.support.failing import fails
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import secure

NAME = "https://tokens.example/"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
NOW = 1_800_000_000_000
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def jwks(**keys: Any) -> dict[str, Any]:
    told = []
    for kid, key in keys.items():
        kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        told.append({**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid})
    return {"keys": told}


def token(key: Any = EC_KEY, algorithm: str = "ES256", kid: str | None = "ec", **claims: Any) -> str:
    said = {
        "iss": NAME, "sub": "b3a9", "aud": "https://se", "exp": 1_800_000_600, "wlcg.ver": "1.0",
        "scope": "storage.read:/run1", "wlcg.groups": ["/atlas"], **claims,
    }  # fmt: skip
    return jwt.encode(said, key, algorithm, headers={"kid": kid} if kid else {})


def issuer(keys: str, **more: Any) -> Issuer:
    return Issuer(NAME, ("https://se",), "/atlas", keys, vo="atlas", **more)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(jwks(ec=EC_KEY, rsa=RSA_KEY)))
    return str(path)


def call_of(text: str, known: Issuer, clock: QuickClock | None = None) -> Call:
    return asyncio.run(Issuers((known,), clock or QuickClock(NOW)).call_of(text, Call()))  # type: ignore[arg-type]


def test_a_holder_is_somebody_narrowed(file: str) -> None:
    for text in (token(), token(RSA_KEY, "RS256", "rsa"), token(RSA_KEY, "PS512", "rsa")):
        call = call_of(text, issuer(file))
        assert call.dn == "/O=Token/OU=tokens.example/CN=b3a9"
        assert (call.attributes, call.roles) == (("/atlas",), ())
        assert call.scopes == (Scope((Action.READ,), ("atlas", "run1")),)
        assert call.via == f"token of {NAME}"
        assert call.until_ms == (1_800_000_600 + LEEWAY_S) * 1000


def test_a_holder_may_have_another_name_here(file: str) -> None:
    jane = issuer(file, subjects={"b3a9": "/DC=org/CN=Jane"}, identity="/O=Example")
    assert call_of(token(), jane).dn == "/DC=org/CN=Jane"
    assert call_of(token(sub="x/CN=admin"), jane).dn == "/O=Example/CN=x\\x2FCN=admin"


def test_what_is_not_signed_by_the_issuer_is_refused(file: str) -> None:
    public = EC_KEY.public_key()
    head, body, sign = token().split(".")
    refusals = {
        jwt.encode({"iss": NAME}, None, "none"): "signed by 'none'",
        jwt.encode({"iss": NAME}, b"k" * 32, "HS256", headers={"kid": "ec"}): "signed by 'HS256'",
        token(OTHER_KEY): "its signature is not of",
        token(RSA_KEY, "RS256", "ec"): "its signature is not of",
        f"{head}.{body}.": "its signature is not of",
        f"{head}.{token(sub='root').split('.')[1]}.{sign}": "its signature is not of",
        token(kid="unknown"): "is none of",
        token(kid=None): "is none of",
        token(iss="https://evil.example/"): "is not known here",
        token(iss=NAME.rstrip("/")): "is not known here",
        "a.b.c": "it is no JWT",
        "\udc80.b.c": "it is no JWT",  # as a header field has bytes that are no UTF-8
        f"{base64.urlsafe_b64encode(b'[' * 15_000).decode()}.b.c": "it is no JWT",
        f"{head}.{base64.urlsafe_b64encode(b'[' * 15_000).decode()}.{sign}": "it is no JWT",
        "..": "it is no JWT",
        token(aud="https://another"): "its claim aud",
        token(scope="storage.read:/../cms"): "its claim scope",
    }
    assert public
    for text, why in refusals.items():
        with pytest.raises(CheloniaError) as refused:
            call_of(text, issuer(file))
        assert (refused.value.kind, refused.value.op) == (Kind.UNTRUSTED, "token")
        assert why in refused.value.cause, refused.value.cause
    with fails(Kind.EXPIRED):
        call_of(token(exp=1_799_999_000), issuer(file))


def test_a_key_for_another_algorithm_or_use_does_not_count(tmp_path: Path) -> None:
    keys = jwks(rsa=RSA_KEY, ec=EC_KEY)
    keys["keys"][0]["alg"] = "RS512"
    keys["keys"][1]["use"] = "enc"
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(keys))
    with pytest.raises(CheloniaError, match="its key is for 'RS512'"):
        call_of(token(RSA_KEY, "RS256", "rsa"), issuer(str(path)))
    with pytest.raises(CheloniaError, match="is none of"):
        call_of(token(), issuer(str(path)))


DEEP = b'{"keys":' + b"[" * 100_000


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"keys": []}', b'{"keys": 1}', b'{"keys": "\xff"}', DEEP])
def test_a_key_file_that_is_none_is_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(data)
    with fails(Kind.UNAVAILABLE):
        call_of(token(), issuer(str(path)))


class Server:
    """An issuer's web server."""

    def __init__(self) -> None:
        self.url = ""
        self.keys = jwks(ec=EC_KEY)
        self.asked: list[str] = []
        self.away = False
        self.body: Callable[[], AsyncIterator[bytes]] | None = None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request.path)
        if self.away:
            return HttpResponse(503)
        if self.body is not None:
            return HttpResponse(200, body=self.body())
        told = {"issuer": self.url, "jwks_uri": f"{self.url}jwk"} if "well-known" in request.path else self.keys
        return HttpResponse(200, (("Content-Type", "application/json"),), json.dumps(told).encode())


@asynccontextmanager
async def served(grid: Grid) -> AsyncIterator[Server]:
    server = Server()
    async with secure(server.answer, grid.server(), ClientCertificate.OPTIONAL) as listener:
        server.url = f"https://localhost:{listener.port}/"
        yield server


def by_server(tmp_path: Path, test: Callable[[Server, Issuer], Awaitable[None]]) -> None:
    async def run() -> None:
        grid = Grid(tmp_path)
        ca = str(next(grid.trust_dir.glob("*.0")))
        async with served(grid) as server:
            await test(server, Issuer(server.url, ("https://se",), "/atlas", "", ca))

    asyncio.run(run())


def test_keys_are_found_kept_and_fetched_again(tmp_path: Path) -> None:
    async def test(server: Server, known: Issuer) -> None:
        clock = QuickClock(NOW)
        issuers = Issuers((known,), clock)  # type: ignore[arg-type]

        async def holds(**more: Any) -> bool:
            try:
                return bool(await issuers.call_of(token(iss=server.url, exp=2**40, **more), Call()))
            except CheloniaError as error:
                return error.kind is not Kind.UNTRUSTED

        assert await asyncio.gather(*(holds() for _ in range(5))) == [True] * 5
        assert server.asked == ["/.well-known/openid-configuration", "/jwk"]
        server.keys = jwks(new=OTHER_KEY)
        assert not await holds(key=OTHER_KEY, kid="new"), "not asked for again at once"
        assert len(server.asked) == 2
        clock.ms += key_sets.PAUSE_MS
        assert await holds(key=OTHER_KEY, kid="new")
        assert not await holds(), "a key that was withdrawn"
        server.away = True
        clock.ms += key_sets.REFRESH_MS
        assert await holds(key=OTHER_KEY, kid="new"), "the issuer is away, its keys are known"
        clock.ms += key_sets.KEEP_MS
        with pytest.raises(CheloniaError) as refused:
            await issuers.call_of(token(iss=server.url, exp=2**40), Call())
        assert (refused.value.kind, "answers 503" in refused.value.cause) == (Kind.UNAVAILABLE, True)

    by_server(tmp_path, test)


def test_a_server_that_never_ends_its_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All holders of its tokens would wait with the first one."""
    monkeypatch.setattr(key_sets, "FETCH_MS", 300)

    async def blanks() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    async def test(server: Server, known: Issuer) -> None:
        server.body = blanks
        with fails(Kind.UNAVAILABLE):
            await Issuers((known,), QuickClock(NOW)).call_of(token(iss=server.url), Call())  # type: ignore[arg-type]

    by_server(tmp_path, test)


def test_a_server_that_is_not_trusted_tells_no_keys(tmp_path: Path) -> None:
    async def test(server: Server, known: Issuer) -> None:
        system = Issuer(server.url, ("https://se",))
        with fails(Kind.UNAVAILABLE):
            await Issuers((system,), QuickClock(NOW)).call_of(token(iss=server.url), Call())  # type: ignore[arg-type]
        assert not server.asked

    by_server(tmp_path, test)
