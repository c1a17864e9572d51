"""Hostile documents are refused before they cost anything, and the only error is a CheloniaError."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.wire import soap
from chelonia.wire.xml import escape, leaf, parse, text_of
from tests.support.failing import fails
from tests.unit.wire.goldens import GOLDENS, Golden

BOMB = (
    b'<!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (c, b"&%c;" % (c - 1) * 10) for c in range(ord("b"), ord("k")))
    + b"]><b>&j;</b>"
)


def refusal(body: bytes) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        parse(body)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        BOMB,
        b"<!DOCTYPE a><a/>",
        b'<!DOCTYPE a SYSTEM "http://localhost:9/x.dtd"><a/>',
        b"<!DOCTYPE a [<!ELEMENT a ANY>]><a/>",
        b'<!DOCTYPE a [<!ATTLIST a b CDATA "c">]><a/>',
        b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><a/>',
    ],
    ids=["bomb", "bare", "external", "element", "attribute default", "parameter entity"],
)
def test_a_dtd_is_refused_by_name(body: bytes) -> None:
    error = refusal(body)
    assert error.kind is Kind.BAD_XML
    assert "DOCTYPE" in error.cause


def test_an_external_entity_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden words")
    error = refusal(f'<!DOCTYPE a [<!ENTITY e SYSTEM "{secret.as_uri()}">]><a>&e;</a>'.encode())
    assert error.kind is Kind.BAD_XML
    assert "hidden" not in str(error)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"<a>",
        b"<a></b>",
        b"<a/><a/>",
        b"<a>&e;</a>",
        b"<a>&#1;</a>",
        b"<a>\x00</a>",
        b"<a>\x01</a>",
        b"<a>\xff</a>",
        b"<a>\xed\xa0\x80</a>",
        b"<a b='1' b='2'/>",
        b"<x:a/>",
        b'<?xml version="1.0" encoding="no-such"?><a/>',
        b'<?xml version="1.0" encoding="UTF-8"?><a>\xe9</a>',
        b"\x80\x04}.",
    ],
)
def test_what_is_not_well_formed_is_bad_xml(body: bytes) -> None:
    error = refusal(body)
    assert (error.kind, error.cause.startswith(("not well-formed", "the encoding"))) == (Kind.BAD_XML, True)
    assert error.cause.isprintable()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "iso-8859-1", "utf-7", "cp037", "utf-32"])
def test_other_encodings_are_refused(encoding: str) -> None:
    assert refusal(f'<?xml version="1.0" encoding="{encoding}"?><a>é</a>'.encode(encoding)).kind is Kind.BAD_XML


def test_a_byte_order_mark_and_ascii_are_taken() -> None:
    assert parse(b"\xef\xbb\xbf<a>x</a>").text == "x"
    assert parse(b'<?xml version="1.0" encoding="us-ascii"?><a>x</a>').text == "x"


def test_too_many_bytes_are_refused_unparsed() -> None:
    error = refusal(b"<a>" + b" " * bounds.SOAP_BODY_BYTES_MAX)
    assert error.kind is Kind.TOO_LARGE


def test_too_many_elements_are_refused_unparsed() -> None:
    assert refusal(b"<a>" + b"<b/>" * bounds.XML_ELEMENTS_MAX + b"</a").kind is Kind.TOO_LARGE


@pytest.mark.parametrize("depth", [bounds.XML_DEPTH_MAX + 1, 250, 300, 10_000, 150_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    assert refusal(b"<a>" * depth + b"</a>" * depth).kind is Kind.TOO_LARGE


def test_the_deepest_nesting_allowed_is_taken() -> None:
    parse(b"<a>" * bounds.XML_DEPTH_MAX + b"</a>" * bounds.XML_DEPTH_MAX)


def test_comments_and_processing_instructions_leave_no_trace() -> None:
    node = parse(b"<?x y?><!-- z --><a><?php evil?><b>on<!-- c -->e</b><!-- d --></a>")
    assert [child.tag for child in node] == ["b"]
    assert text_of(node[0]) == "one"


def test_cdata_is_text() -> None:
    assert text_of(parse(b"<a><![CDATA[<!DOCTYPE x> & ]]></a>")) == "<!DOCTYPE x> & "


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_a_leaf(text: str) -> None:
    assert text_of(parse(leaf("a", text).encode())) == text


def test_what_xml_cannot_carry_is_marked_and_escaped() -> None:
    assert leaf("a", "\x01\\<\r") == '<a escaped="1">\\u0001\\\\&lt;\\u000d</a>'
    assert leaf("a", "\\u0001") == "<a>\\u0001</a>"
    assert escape("\x01") is None


@pytest.mark.parametrize("text", ["\\", "\\x41", "\\u12", "\\ud800", "\\u", "a\\\\\\"])
def test_a_bad_escape_is_bad_xml(text: str) -> None:
    node = parse(f'<a escaped="1">{text}</a>'.encode())
    with fails(Kind.BAD_XML):
        text_of(node)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.block)
def test_damaged_messages_raise_nothing_but_the_error_value(golden: Golden) -> None:
    source = random.Random(golden.block)
    outcomes = {_try(golden, _damaged(source, _message(golden))) for _ in range(100)}
    outcomes |= {_try(golden, _rearranged(source, _message(golden))) for _ in range(100)}
    assert len(outcomes) > 1, "the damage never mattered"


def _message(golden: Golden) -> bytes:
    if golden.args is not None:
        return soap.encode_request(golden.service, golden.method, golden.args)
    request = soap.SoapRequest(golden.service.by_method[golden.method], (), golden.echo)
    return soap.encode_response(golden.service, request, golden.result)


def _damaged(source: random.Random, body: bytes) -> bytes:
    """A few bytes changed, lost, repeated, or the rest cut off."""
    out = bytearray(body)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(out) or 1)
        match source.randrange(4):
            case 0:
                out[at : at + 1] = source.randbytes(1)
            case 1:
                del out[at : at + source.randint(1, 40)]
            case 2:
                out[at:at] = out[source.randrange(len(out) or 1) :][:40]
            case _:
                del out[at:]
    return bytes(out)


def _rearranged(source: random.Random, body: bytes) -> bytes:
    """Still well-formed: elements lost, repeated, moved or renamed, texts replaced."""
    root = etree.fromstring(body)
    for _ in range(source.randint(1, 4)):
        nodes = list(root[0].iter())
        node, other = source.choice(nodes), source.choice(nodes)
        match source.randrange(5):
            case 0 if (parent := node.getparent()) is not None and node is not root[0]:
                parent.remove(node)
            case 1:
                other.append(copy.deepcopy(node))
            case 2:
                node.tag = other.tag
            case 3:
                node.set("escaped", "1")
                node.text = source.choice(["\\u0000", "\\", "\\ud800"])
            case _:
                node.text = source.choice(["0", "", "-1", "true", "None", "<IMBACK>", "/a/../b", "9" * 30, "\u0661"])
    return etree.tostring(root)


def _try(golden: Golden, body: bytes) -> Kind | None:
    try:
        if golden.args is not None:
            soap.decode_request(golden.service, body)
        else:
            soap.decode_response(golden.service, golden.method, body)
    except CheloniaError as error:
        return error.kind
    return None


def test_attributes_are_bounded_and_what_looks_like_one_in_text_is_not_counted() -> None:
    few = b"".join(b' a%d="x"' % number for number in range(100))
    many = b"".join(b" a%d='>'" % number for number in range(bounds.XML_ATTRIBUTES_MAX + 1))
    assert len(parse(b"<a" + few + b">" + b'b = "c" \'' * 100_000 + b"</a>").attrib) == 100
    error = refusal(b"<a" + many + b"/>")
    assert error.kind is Kind.TOO_LARGE
    assert "attributes" in error.cause


def test_a_text_with_escapes_is_refused_by_its_length() -> None:
    for length, taken in ((bounds.VALUE_BYTES_MAX, True), (bounds.VALUE_BYTES_MAX + 1, False)):
        node = parse(b'<a escaped="1">' + b"\\u0041" * length + b"</a>")
        if taken:
            assert text_of(node) == "A" * length
            continue
        with fails(Kind.TOO_LARGE):
            text_of(node)


@pytest.mark.parametrize(
    "name", ["xmlns", "xmlns:x", f"xmlns:{'p' * 3000}", "xmlns \n\t", "xmlns:\u00e9", f"xmlns{' ' * 3000}"]
)
@pytest.mark.parametrize(("mark", "other"), [("'", '"'), ('"', "'")])
def test_a_namespace_is_short(name: str, mark: str, other: str) -> None:
    """A reader of element names gets a copy of it, for each of 100 000 elements."""
    for text in ("u" * 1024, other * 1024, f"{other}={other}" * 1000, "&amp;" * 300):
        assert refusal(f"<a {name}= {mark}{text}{mark}/>".encode()).kind is Kind.TOO_LARGE, text[:10]
    parse(f"<a {name}={mark}{'u' * 1023}{mark}/>".encode())
    parse(f"<a>{'text ' * 1000} xmlns {'=' * 2000}</a>".encode())


def test_looking_for_long_namespaces_takes_no_longer_than_reading() -> None:
    for text in ("xmlns:", "xmlns:a", 'xmlns="', "xmlns=' ", "xmlns "):
        parse(b"<a>" + text.encode() * (4_000_000 // len(text)) + b"</a>")
