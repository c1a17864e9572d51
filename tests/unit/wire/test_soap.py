"""Dispatch, faults and the liberties that original clients take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.replicas import Checksums, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.core.ports.bartender import ListRequest, NameRequest
from chelonia.core.ports.librarian import Report
from chelonia.core.ports.shepherd import Purpose, PutRequest
from chelonia.wire import soap, xml
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.operations.table import Service
from chelonia.wire.schema import Codec, ListOf, Many, single
from tests.support.failing import fails


def message(inner: str, *, namespace: str = soap.ENVELOPE, header: str = "") -> bytes:
    spaces = " ".join(
        f'xmlns:{service.prefix}="{service.namespace}"' for service in (AHASH, LIBRARIAN, SHEPHERD, BARTENDER)
    )
    return f'<S:Envelope xmlns:S="{namespace}" {spaces}>{header}<S:Body>{inner}</S:Body></S:Envelope>'.encode()


def request(service: Service, inner: str) -> soap.SoapRequest:
    decoded = soap.decode_request(service, message(inner))
    assert isinstance(decoded, soap.SoapRequest)
    return decoded


def refused(service: Service, body: bytes) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        soap.decode_request(service, body)
    return caught.value


def test_wrong_namespace_is_named_with_the_expected_one() -> None:
    error = refused(BARTENDER, message("<lbr:stat/>"))
    assert error.kind is Kind.UNKNOWN_OPERATION
    assert error.cause == "wrong namespace. expected: http://www.nordugrid.org/schemas/bartender"


def test_unknown_operation_is_named() -> None:
    error = refused(BARTENDER, message("<bar:destroy/>"))
    assert (error.kind, error.cause) == (Kind.UNKNOWN_OPERATION, "wrong request (destroy)")


def test_soap_12_envelope_is_called_so() -> None:
    error = refused(BARTENDER, message("<bar:stat/>", namespace=soap.SOAP_12))
    assert error.kind is Kind.BAD_XML
    assert "SOAP 1.2" in error.cause


@pytest.mark.parametrize(
    "body",
    [
        b"<a/>",
        f'<S:Envelope xmlns:S="{soap.ENVELOPE}"/>'.encode(),
        f'<S:Envelope xmlns:S="{soap.ENVELOPE}"><S:Body/></S:Envelope>'.encode(),
        f'<S:Envelope xmlns:S="{soap.ENVELOPE}"><Body><a/></Body></S:Envelope>'.encode(),
    ],
)
def test_an_envelope_without_a_call_is_bad_xml(body: bytes) -> None:
    assert refused(BARTENDER, body).kind is Kind.BAD_XML


def test_header_that_must_be_understood_is_refused_and_others_are_ignored() -> None:
    must = '<S:Header><x:Security xmlns:x="urn:x" S:mustUnderstand="1"/></S:Header>'
    error = refused(BARTENDER, message("<bar:stat/>", header=must))
    assert (error.kind, "Security" in error.cause) == (Kind.NOT_SUPPORTED, True)
    stat = "<bar:stat><bar:statRequestList/></bar:stat>"
    ignored = message(stat, header='<S:Header><x:To xmlns:x="urn:x">me</x:To></S:Header>')
    assert isinstance(soap.decode_request(BARTENDER, ignored), soap.SoapRequest)


def test_lidi_request_is_recognised_at_every_service() -> None:
    body = message(f'<p:GetResourcePropertyDocument xmlns:p="{soap.WSRF_RP}"/>')
    for service in (AHASH, LIBRARIAN, SHEPHERD, BARTENDER):
        assert isinstance(soap.decode_request(service, body), soap.InformationRequest)


def test_prefix_order_and_unknown_elements_do_not_matter() -> None:
    text = (
        f'<q:stat xmlns:q="{BARTENDER.namespace}"><statRequestList><novelty><LN>no</LN></novelty>'
        "<q:statRequestElement><LN>/a</LN><q:colour>red</q:colour><requestID>0</requestID></q:statRequestElement>"
        "</statRequestList></q:stat>"
    )
    assert request(BARTENDER, text).args == ((NameRequest("0", "/a"),),)


def test_list_without_filter_and_recursion_as_from_old_clients() -> None:
    inner = (
        "<bar:list><bar:listRequestList><bar:listRequestElement><bar:requestID>0</bar:requestID><bar:LN>/</bar:LN>"
        "</bar:listRequestElement></bar:listRequestList></bar:list>"
    )
    assert request(BARTENDER, inner).args == ((ListRequest("0", "/"),), (), False)


def test_ahash_collects_ids_at_any_depth() -> None:
    inner = "<ahash:get><ahash:ID>a</ahash:ID><x><y><ahash:ID>b</ahash:ID></y></x></ahash:get>"
    assert request(AHASH, inner).args == (("a", "b"), ())


def test_report_of_an_original_shepherd_after_its_start() -> None:
    inner = (
        "<lbr:report><lbr:serviceID>https://h/Shepherd</lbr:serviceID><lbr:filelist><lbr:file><lbr:GUID>&lt;IMBACK&gt;"
        "</lbr:GUID><lbr:referenceID>&lt;NOTFOUND&gt;</lbr:referenceID><lbr:state></lbr:state></lbr:file></lbr:filelist>"
        "</lbr:report>"
    )
    (report,) = request(LIBRARIAN, inner).args
    assert isinstance(report, Report)
    assert (report.boot, report.number) == (0, 0)
    (replica,) = report.replicas
    assert (replica.guid, replica.reference, replica.state) == ("<IMBACK>", "<NOTFOUND>", ReplicaState.DELETED)


def test_report_answer_of_an_original_librarian_in_seconds() -> None:
    body = message(
        "<lbr:registerResponse><lbr:nextReportTime>-1</lbr:nextReportTime>"
        "<lbr:allFiles><lbr:GUID>g</lbr:GUID></lbr:allFiles></lbr:registerResponse>"
    )
    answer = soap.decode_response(LIBRARIAN, "report", body)
    assert (answer.next_report_ms, answer.all_files, answer.accepted) == (-1, ("g",), 0)
    answer = soap.decode_response(LIBRARIAN, "report", body.replace(b"-1", b"60"))
    assert answer.next_report_ms == 60_000


def test_shepherd_put_with_only_the_original_properties() -> None:
    pairs = [
        ("GUID", "g"),
        ("checksum", "ABCD"),
        ("checksumType", "md5"),
        ("size", "3"),
        ("protocol", "http"),
        ("acl", "x"),
    ]
    listed = "".join(
        f"<putRequestDataElement><property>{name}</property><value>{value}</value></putRequestDataElement>"
        for name, value in pairs
    )
    inner = (
        "<she:put><putRequestList><putRequestElement><requestID>0</requestID>"
        f"<putRequestDataList>{listed}</putRequestDataList></putRequestElement></putRequestList></she:put>"
    )
    ((put,),) = request(SHEPHERD, inner).args
    assert isinstance(put, PutRequest)
    assert (put.facts.guid, put.facts.size, put.facts.checksums) == ("g", 3, Checksums(md5="abcd"))
    assert (put.protocols, put.purpose, put.durable) == (("http",), Purpose.PENDING, 1)


def test_traverse_echoes_the_request_ids_of_the_caller() -> None:
    listed = "".join(
        f"<lbr:traverseLNRequestElement><lbr:requestID>{ident}</lbr:requestID><lbr:LN>/</lbr:LN></lbr:traverseLNRequestElement>"
        for ident in ("x", "y")
    )
    inner = f"<lbr:traverseLN><lbr:traverseLNRequestList>{listed}</lbr:traverseLNRequestList></lbr:traverseLN>"
    assert request(LIBRARIAN, inner).echo == ("x", "y")


def test_missing_element_is_named() -> None:
    error = refused(BARTENDER, message("<bar:stat/>"))
    assert (error.kind, error.op, error.subject) == (Kind.BAD_XML, "stat", "stat")
    assert error.cause == "element statRequestList is missing"


@pytest.mark.parametrize("text", ["", "x", "1.5", "1_0", "--1", "\u0661", "9" * 21, "9223372036854775808"])
def test_bad_number_is_refused_with_its_element(text: str) -> None:
    asked = f"<requestID>0</requestID><LN>/</LN><limit>{text}</limit>"
    inner = f"<bar:list><listRequestList><listRequestElement>{asked}</listRequestElement></listRequestList></bar:list>"
    error = refused(BARTENDER, message(inner))
    assert (error.kind, error.subject) == (Kind.BAD_REQUEST, "limit")


def test_unknown_word_is_refused_with_the_words_allowed() -> None:
    inner = (
        "<ahash:change><ahash:changeRequestList><ahash:changeRequestElement><ahash:ID>0</ahash:ID>"
        "<ahash:changeType>explode</ahash:changeType></ahash:changeRequestElement></ahash:changeRequestList></ahash:change>"
    )
    error = refused(AHASH, message(inner))
    assert error.kind is Kind.BAD_REQUEST
    assert "set, unset, delete" in error.cause


def test_too_many_elements_in_one_call_are_refused() -> None:
    body = soap.encode_request(BARTENDER, "stat", (tuple(NameRequest(str(n), "/") for n in range(1001)),))
    assert refused(BARTENDER, body).kind is Kind.TOO_LARGE


def test_lone_surrogate_cannot_be_sent() -> None:
    element = Element(ObjectId("0"), ChangeType.SET, "metadata", "k", "\ud800")
    with fails(Kind.BAD_REQUEST):
        soap.encode_request(AHASH, "change", ((element,),))


def test_answer_of_another_operation_is_not_taken() -> None:
    with pytest.raises(CheloniaError, match="moveResponse"):
        soap.decode_response(BARTENDER, "stat", message("<bar:moveResponse/>"))


# --- faults --------------------------------------------------------------------------------------------------------


@given(st.sampled_from(Kind), st.text(max_size=9), st.text(max_size=9), st.text(max_size=9))
def test_an_error_arrives_as_it_left(kind: Kind, op: str, subject: str, cause: str) -> None:
    with pytest.raises(CheloniaError) as caught:
        soap.decode_response(BARTENDER, "stat", soap.encode_fault(CheloniaError(kind, op, subject, cause)))
    error = caught.value
    assert (error.kind, error.op, error.subject, error.cause) == (kind, op, subject, cause)


def test_a_fault_about_what_is_not_text_can_be_sent() -> None:
    with pytest.raises(CheloniaError) as caught:
        soap.decode_response(BARTENDER, "stat", soap.encode_fault(CheloniaError(Kind.BAD_NAME, "", "\udcff\x00")))
    assert caught.value.subject == "?\x00"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("<faultcode>S:Client</faultcode><faultstring>wrong request (x)</faultstring>", Kind.BAD_REQUEST),
        ("<faultcode>S:Server</faultcode><faultstring>bartender service raised a</faultstring>", Kind.INTERNAL),
        ("<faultcode>S:Server</faultcode><faultstring>x service is inactive (not</faultstring>", Kind.UNAVAILABLE),
        ("", Kind.INTERNAL),
        (
            "<detail><c:error xmlns:c='urn:chelonia:error'><c:kind>from-the-future</c:kind></c:error></detail>",
            Kind.INTERNAL,
        ),
    ],
)
def test_faults_of_others_are_read(fault: str, kind: Kind) -> None:
    with fails(kind):
        soap.decode_response(BARTENDER, "stat", message(f"<S:Fault>{fault}</S:Fault>"))


LIMITED = Many("e", "e", limit=2)


@pytest.mark.parametrize("part", [LIMITED, ListOf("l", LIMITED), ListOf("l", LIMITED, deep=True)])
def test_no_more_elements_are_taken_than_a_list_may_have(part: Many | ListOf) -> None:
    codec = Codec(single(part), "")
    form = "<x>{}</x>" if part is LIMITED else "<x><l>{}</l></x>"
    assert codec.decode(xml.parse(form.format("<e>0</e><e>1</e>").encode(), 1000)) == ("0", "1")
    with fails(Kind.TOO_LARGE):
        codec.decode(xml.parse(form.format("<e/>" * 3).encode(), 1000))
