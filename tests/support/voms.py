"""A VOMS server's hand: attribute certificates (ACs) signed for a user, and proxies that carry them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from asn1crypto import algos, cms, core
from asn1crypto import x509 as asn1
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from chelonia.hosting.net.certificates import Issued, make_proxy
from chelonia.hosting.net.identity import VOMS_ATTRIBUTES, name_from_dn
from chelonia.hosting.net.voms import (
    CERTIFICATES,
    FQANS,
    TARGETS,
    _Acs,
    _Certificates,
    _TargetName,
    _TargetNames,
)

HOUR_S = 3600


@dataclass
class Ac:
    """The contents of an AC, and, for tests of refusals, its lies."""

    holder: x509.Certificate
    signer: Issued
    now_ms: int
    fqans: Sequence[str] = ("/atlas/Role=NULL/Capability=NULL", "/atlas/prod/Role=boss/Capability=NULL")
    authority: str = "atlas://voms.example:15000"
    begin_s: int = -HOUR_S
    end_s: int = HOUR_S
    serial: int = 0
    digest: str = "sha256"
    targets: Sequence[str] = ()
    carried: Sequence[x509.Certificate] | None = None
    issuer: x509.Certificate | None = None
    critical: str = ""
    spoil: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> cms.AttributeCertificateV2:
        name = asn1.GeneralName("directory_name", asn1.Name.load(self.holder.issuer.public_bytes()))
        signer = (self.issuer or self.signer.certificate).subject
        algorithm = algos.SignedDigestAlgorithm({"algorithm": f"{self.digest}_ecdsa"})
        info = cms.AttributeCertificateInfoV2({
            "version": "v2",
            "holder": {"base_certificate_id": {"issuer": [name], "serial": self.serial or self.holder.serial_number}},
            "issuer": cms.AttCertIssuer("v2_form", {
                "issuer_name": [asn1.GeneralName("directory_name", asn1.Name.load(signer.public_bytes()))]
            }),
            "signature": algorithm,
            "serial_number": 7,
            "att_cert_validity_period": {
                "not_before_time": self._at(self.begin_s), "not_after_time": self._at(self.end_s),
            },
            "attributes": [],
            "extensions": self._extensions(),
            **self.more,
        })  # fmt: skip
        if "attributes" not in self.more:
            info["attributes"] = cms.AttCertAttributes.load(self._attributes())
        signed = info.dump(force=True)
        key = self.signer.key
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        signature = key.sign(signed + (b"x" if self.spoil else b""), ec.ECDSA(getattr(hashes, self.digest.upper())()))
        return cms.AttributeCertificateV2({"ac_info": info, "signature_algorithm": algorithm, "signature": signature})

    def _at(self, offset_s: int) -> datetime:
        return datetime.fromtimestamp(self.now_ms // 1000 + offset_s, UTC)

    def _attributes(self) -> bytes:
        values = b"".join(core.OctetString(fqan.encode()).dump() for fqan in self.fqans)
        authority = core.IA5String(self.authority).contents
        uri = der(0xA0, der(0x86, authority))
        syntax = der(0x30, uri + der(0x30, values))
        return der(0x30, der(0x30, core.ObjectIdentifier(FQANS).dump() + der(0x31, syntax)))

    def _extensions(self) -> list[dict[str, Any]]:
        carried = self.carried if self.carried is not None else [self.signer.certificate]
        certificates = [[asn1.Certificate.load(cert.public_bytes(Encoding.DER)) for cert in carried]]
        told: list[tuple[str, bool, bytes]] = [
            (CERTIFICATES, False, core.SequenceOf(certificates, spec=_Certificates).dump())
        ]
        if self.targets:
            names = [
                _TargetName("name", asn1.GeneralName("uniform_resource_identifier", each)) for each in self.targets
            ]
            told.append((TARGETS, True, core.SequenceOf([names], spec=_TargetNames).dump()))
        if self.critical:
            told.append((self.critical, True, b"\x05\x00"))
        return [
            {"extn_id": oid, "critical": critical, "extn_value": core.ParsableOctetString(value)}
            for oid, critical, value in told
        ]


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    head = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2)
    return bytes([tag]) + head + content


def carrying(user: Issued, now_ms: int, *acs: cms.AttributeCertificateV2, raw: bytes = b"") -> Issued:
    """A proxy of the user with these ACs in it; `raw`: with these bytes in their place."""
    template = make_proxy(user, now_ms)  # type: ignore[arg-type]
    old = template.certificate
    builder = x509.CertificateBuilder(
        issuer_name=old.issuer,
        subject_name=name_from_dn(f"{user.dn}/CN=1"),
        public_key=old.public_key(),
        serial_number=1,
        not_valid_before=old.not_valid_before_utc,
        not_valid_after=old.not_valid_after_utc,
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    value = raw or core.SequenceOf([list(acs)], spec=_Acs).dump()
    builder = builder.add_extension(x509.UnrecognizedExtension(VOMS_ATTRIBUTES, value), critical=False)
    return Issued((builder.sign(user.key, hashes.SHA256()), *user.chain), template.key)
