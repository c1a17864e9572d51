"""XML at the door: hardened parsing of strangers' documents, and escaping for those that we build as text.

The parser refuses a document before it can cost much. It takes no DTD and so no entities, only UTF-8, and bounded
bytes, elements, attributes and depth (`core.bounds`); it never uses the network. It drops comments and processing
instructions.
XML 1.0 cannot carry most control characters. A value with one travels as backslash escapes under the attribute
`escaped="1"` (`docs/formats/soap.md`), so services exchange any stored string without loss. Lone surrogates, which
nothing of ours can store, are refused.
"""

from __future__ import annotations

import re
from typing import Any

from lxml import etree

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

ESCAPED_ATTRIBUTE = "escaped"
"""Attribute of an element whose text has backslash escapes for characters that XML cannot carry."""

Node = Any
"""An lxml element. Its stubs allow any kind of tag; after `parse` every tag is a string."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_TO_ESCAPE = re.compile("[\\\\\x00-\x08\x0b-\x1f\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:\\|u([0-9a-f]{4})|.?)", re.DOTALL)
_TOO_DEEP = etree.XPath(f"boolean({'/*' * (bounds.XML_DEPTH_MAX + 1)})")
_SMALL_BYTES = 4 * bounds.XML_ELEMENTS_MAX
"""No element is shorter than `<a/>`: a smaller body cannot hold too many."""
_FEW_ATTRIBUTES_BYTES = 6 * bounds.XML_ATTRIBUTES_MAX
"""No attribute is shorter than ` a=""`, in UTF-8 with the blank before it: a smaller body cannot hold too many."""
_ATTRIBUTE = re.compile(rb"=\s*[\"']")
_TAG = re.compile(rb"<(?:[^<>\"']|\"[^<\"]*\"|'[^<']*')*")
_QUOTED = re.compile(rb"\"[^\"]*\"|'[^']*'")
_LONG_NAMESPACE = re.compile(
    rb"xmlns(?::[^\s:=<>\"'/]*)?\s*=\s*(?:\"[^\"<]{%d}|'[^'<]{%d})" % ((bounds.XML_NAMESPACE_BYTES_MAX,) * 2)
)
_ENCODINGS = frozenset({"UTF-8", "UTF8", "US-ASCII", "ASCII"})


def parse(body: bytes, limit_bytes: int = bounds.SOAP_BODY_BYTES_MAX) -> Node:
    """Parse a document that may come from anyone.

    Returns: the root element; every node below it is an element.
    Raises: TOO_LARGE (bytes, elements, attributes, a namespace, depth), BAD_XML (not well-formed, a DTD, not UTF-8).
    """
    if len(body) > limit_bytes:
        raise CheloniaError(Kind.TOO_LARGE, cause=f"the message has {len(body)} bytes, at most {limit_bytes} are taken")
    if len(body) > _SMALL_BYTES and body.count(b"<") - body.count(b"</") > bounds.XML_ELEMENTS_MAX:
        raise CheloniaError(Kind.TOO_LARGE, cause=f"more than {bounds.XML_ELEMENTS_MAX} elements in one message")
    if len(body) > _FEW_ATTRIBUTES_BYTES and len(_ATTRIBUTE.findall(body)) > bounds.XML_ATTRIBUTES_MAX:
        _check_attributes(body)
    if _LONG_NAMESPACE.search(body):
        raise CheloniaError(Kind.TOO_LARGE, cause=f"a namespace of {bounds.XML_NAMESPACE_BYTES_MAX} bytes or more")
    try:
        root = etree.fromstring(body, _parser())
    except (etree.XMLSyntaxError, ValueError, LookupError) as error:
        raise _malformed(body, error) from None
    document = root.getroottree().docinfo
    if document.internalDTD is not None or document.doctype:
        raise CheloniaError(Kind.BAD_XML, cause="a document type declaration (DTD) is not taken: remove the DOCTYPE")
    if (document.encoding or "UTF-8").upper() not in _ENCODINGS:
        raise CheloniaError(Kind.BAD_XML, cause=f"the encoding is {document.encoding!a}: send UTF-8")
    if _TOO_DEEP(root):
        raise _too_deep()
    return root


def local_name(node: Node) -> str:
    """Return the name of an element without its namespace."""
    return str(node.tag).rpartition("}")[2]


def namespace(node: Node) -> str:
    """Return the namespace of an element; empty when it is in none."""
    return str(node.tag).rpartition("}")[0][1:]


def name_of(node: Node) -> tuple[str, str]:
    """Return the namespace and the local name of an element."""
    return namespace(node), local_name(node)


def text_of(node: Node) -> str:
    """Return the text of a leaf, unescaped if it is marked so. Raises: BAD_XML (a bad escape), TOO_LARGE (escaped)."""
    text = node.text or ""
    if "\\" in text and node.get(ESCAPED_ATTRIBUTE) == "1":
        if len(text) > bounds.XML_ESCAPED_BYTES_MAX:
            cause = f"a text with escapes has {len(text)} characters, at most {bounds.XML_ESCAPED_BYTES_MAX} are taken"
            raise CheloniaError(Kind.TOO_LARGE, cause=cause)
        return _unescape(text)
    return text


def inside(node: Node) -> str:
    """Return the content of an element as self-contained XML."""
    parts = [escape(node.text or "") or "", *(etree.tostring(child, encoding="unicode") for child in node)]
    return "".join(parts)


def escape(text: str) -> str | None:
    """Escape `text` for use between tags; None when XML cannot carry it (then: `escape_forbidden`)."""
    if not text.isprintable():
        if _FORBIDDEN.search(text):
            return None
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return text.replace("\r", "&#13;")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_forbidden(text: str) -> str:
    r"""Escape `text` for an element that carries `escaped="1"`: `\\` and `\uXXXX`, then as `escape`.

    Raises: BAD_REQUEST on a lone surrogate: that is not text.
    """
    if _SURROGATE.search(text):
        raise CheloniaError(Kind.BAD_REQUEST, subject=ascii(text[:80]), cause="not valid UTF-8")
    marked = _TO_ESCAPE.sub(lambda found: "\\\\" if found[0] == "\\" else f"\\u{ord(found[0]):04x}", text)
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def leaf(name: str, text: str) -> str:
    """Build `<name>text</name>` for any text. Raises: BAD_REQUEST on a lone surrogate."""
    escaped = escape(text)
    if escaped is None:
        return f'<{name} {ESCAPED_ATTRIBUTE}="1">{escape_forbidden(text)}</{name}>'
    return f"<{name}>{escaped}</{name}>"


def fragment(text: str) -> str:
    """Return `text` for use inside an element: as it is if it is self-contained XML, else escaped."""
    try:
        parse(f"<a>{text}</a>".encode())
    except CheloniaError:
        return escape(text) or ""
    return text


def is_name(text: str) -> bool:
    """Return whether `text` can be the name of an element, without a prefix."""
    try:
        return str(etree.QName(text).localname) == text
    except ValueError:
        return False


def attribute(text: str) -> str:
    """Escape `text`, which has no control characters, for use between double quotes."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _parser() -> etree.XMLParser:
    return etree.XMLParser(  # one per call costs 2 us and shares nothing between threads
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
        huge_tree=False,
        recover=False,
        remove_comments=True,
        remove_pis=True,
    )


def _malformed(body: bytes, error: Exception) -> CheloniaError:
    if b"<!DOCTYPE" in body:
        return CheloniaError(Kind.BAD_XML, cause="a document type declaration (DTD) is not taken: remove the DOCTYPE")
    if "depth" in str(error):
        return _too_deep()
    words = " ".join(str(error).removesuffix("(<string>, line 1)").split())
    reason = words.encode("ascii", "backslashreplace").decode("ascii")[:200] or "empty document"
    return CheloniaError(Kind.BAD_XML, cause=f"not well-formed XML: {reason}")


def _check_attributes(body: bytes) -> None:
    """Count attributes in tags alone: text may look like one. Raises: TOO_LARGE."""
    count = sum(len(_QUOTED.findall(tag)) for tag in _TAG.findall(body))
    if count > bounds.XML_ATTRIBUTES_MAX:
        raise CheloniaError(Kind.TOO_LARGE, cause=f"more than {bounds.XML_ATTRIBUTES_MAX} attributes in one message")


def _too_deep() -> CheloniaError:
    return CheloniaError(Kind.TOO_LARGE, cause=f"elements nested deeper than {bounds.XML_DEPTH_MAX}")


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        if found[0] == "\\\\":
            return "\\"
        if found[1] is None or 0xD800 <= int(found[1], 16) <= 0xDFFF:
            raise CheloniaError(Kind.BAD_XML, subject=ascii(text[:80]), cause="a bad backslash escape")
        return chr(int(found[1], 16))

    return _ESCAPE.sub(replace, text)
