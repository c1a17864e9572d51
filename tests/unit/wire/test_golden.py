"""The bytes in docs/formats/soap.md are the bytes on the wire, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.wire import soap
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from tests.unit.wire.goldens import GOLDENS, Golden

DOCUMENT = (Path(__file__).parents[3] / "docs/formats/soap.md").read_text(encoding="utf-8")
BLOCKS = {
    name: re.sub(r"\n *", "", body)
    for name, body in re.findall(r"^```xml (.+?)\n(.+?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
}


def in_envelope(block: str, golden: Golden) -> bytes:
    inner = BLOCKS[golden.block]
    declared = f' xmlns:{golden.service.prefix}="{golden.service.namespace}"'
    if inner.startswith("<lbr:toggle"):
        declared += f' xmlns:lbr="{LIBRARIAN.namespace}"'
    head, tail = BLOCKS["envelope"].split("...")
    return (head.replace(' xmlns:bar="http://www.nordugrid.org/schemas/bartender"', declared) + inner + tail).encode()


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.block)
def test_message_has_the_bytes_of_the_document(golden: Golden) -> None:
    document = in_envelope(golden.block, golden)
    if golden.args is not None:
        assert soap.encode_request(golden.service, golden.method, golden.args) == document
        request = soap.decode_request(golden.service, document)
        assert isinstance(request, soap.SoapRequest)
        assert (request.operation.method, request.args) == (golden.method, golden.args)
    else:
        request = soap.SoapRequest(golden.service.by_method[golden.method], (), golden.echo)
        assert soap.encode_response(golden.service, request, golden.result) == document
        assert soap.decode_response(golden.service, golden.method, document) == golden.result


def test_every_message_block_of_the_document_is_tested() -> None:
    assert set(BLOCKS) == {golden.block for golden in GOLDENS} | {"envelope", "fault", "lidi"}


def test_fault_has_the_bytes_of_the_document() -> None:
    error = CheloniaError(Kind.DENIED, "stat", "/a", "no rule allows it")
    head, tail = BLOCKS["envelope"].replace(' xmlns:bar="http://www.nordugrid.org/schemas/bartender"', "").split("...")
    assert soap.encode_fault(error).decode() == head + BLOCKS["fault"] + tail


def test_lidi_has_the_bytes_of_the_document() -> None:
    declared = f' xmlns:wsrf-rp="{soap.WSRF_RP}"'
    head, tail = (
        BLOCKS["envelope"].replace(' xmlns:bar="http://www.nordugrid.org/schemas/bartender"', declared).split("...")
    )
    answer = soap.encode_lidi(SHEPHERD, soap.Capacity(3 << 30, 10 << 30))
    assert answer.decode() == head + BLOCKS["lidi"] + tail
    assert b"<Service>" in soap.encode_lidi(BARTENDER)
