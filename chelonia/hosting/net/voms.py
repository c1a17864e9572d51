"""VOMS attributes: the groups that an attribute certificate (AC) in a proxy gives its holder, once all is verified.

An AC counts when it is about this chain's end entity, valid now, and meant for this host. The `.lsc` files of its
organisation must name its signer, whose certificate is good by the trust directory. Any failure becomes a reason and
counts for nothing: the holder keeps the identity, without groups.
Source: RFC 5755 (AC profile); the VOMS AC format (attributes and extensions below 1.3.6.1.4.1.8005.100.100).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asn1crypto import cms, core
from asn1crypto import x509 as asn1
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.hosting.net.identity import (
    FOREVER,
    VOMS_ATTRIBUTES,
    Attested,
    Chain,
    canonical_dn,
    check_validity,
    has_issued,
    instant_ms,
    is_ca,
    load_certificate,
    proxy_language,
    render_dn,
    subject_dn,
)

if TYPE_CHECKING:
    from chelonia.hosting.net.tls import Trust

FQANS: Final = "1.3.6.1.4.1.8005.100.100.4"
CERTIFICATES: Final = "1.3.6.1.4.1.8005.100.100.10"
TARGETS: Final = "2.5.29.55"
KNOWN: Final = frozenset({CERTIFICATES, TARGETS, "2.5.29.35", "2.5.29.56", "1.3.6.1.4.1.8005.100.100.11"})
"""Extensions that are understood, or may be passed over: issuer's key, no revocation, generic attributes."""
HASHES: Final[dict[str, hashes.HashAlgorithm]] = {
    "sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512(),
}  # fmt: skip
AC_BYTES_MAX: Final = 256 * 1024
ACS_MAX, FQANS_MAX, CHAIN_MAX, LSC_FILES_MAX, LSC_BYTES_MAX = 16, 256, 8, 256, 64 * 1024
"""ACs of one proxy, groups of each, certificates of a signer's chain, files of one organisation, bytes of each."""

_VO: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NEXT_CHAIN: Final = "next chain"
_EMPTY: Final = re.compile(r"/(Role|Capability)=NULL(?=/|\Z)")


class _Acs(core.SequenceOf):  # type: ignore[misc] # asn1crypto has no types
    _child_spec = cms.AttributeCertificateV2


class _Certificates(core.SequenceOf):  # type: ignore[misc]
    _child_spec = asn1.Certificate


class _TargetName(core.Choice):  # type: ignore[misc]
    _alternatives = (("name", asn1.GeneralName, {"explicit": 0}), ("group", asn1.GeneralName, {"explicit": 1}))


class _TargetNames(core.SequenceOf):  # type: ignore[misc]
    _child_spec = _TargetName


class Voms:
    """Verifies attribute certificates."""

    def __init__(self, directory: Path | None, trust: Callable[[], Trust], hosts: Callable[[], Sequence[str]]) -> None:
        """`directory`: the `.lsc` files, in a directory for each organisation; `hosts`: names of this host."""
        self._directory = directory
        self._trust = trust
        self._hosts = hosts

    def verify(self, chain: Chain, now_ms: Ms) -> Attested:
        """Return the groups that the first certificate with ACs in a verified chain gives its holder."""
        found: dict[str, None] = {}
        until_ms, reasons = FOREVER, []
        try:
            acs = _acs(chain)
        except Exception as error:  # of any kind: a peer wrote it, and it counts for nothing
            return Attested(reasons=(f"it cannot be read: {_reason_of(error)}",))
        entity = next(cert for cert in chain if proxy_language(cert) is None)
        for ac in acs:
            try:
                attributes, end_ms = self._one(ac, entity, now_ms)
            except Exception as error:
                reasons.append(_reason_of(error))
                continue
            found |= dict.fromkeys(attributes)
            until_ms = min(until_ms, end_ms)
        return Attested(tuple(found), until_ms, tuple(reasons))

    def _one(self, ac: cms.AttributeCertificateV2, entity: x509.Certificate, now_ms: Ms) -> tuple[list[str], Ms]:
        """Return the groups that one AC gives its holder, and their end. Raises: UNTRUSTED with the reason."""
        info = ac["ac_info"]
        if info["version"].native != "v2":
            raise _refused("it is of no version that RFC 5755 knows")
        _check_holder(info["holder"], entity)
        begin, end = (info["att_cert_validity_period"][name].native for name in ("not_before_time", "not_after_time"))
        if not instant_ms(begin) <= now_ms < instant_ms(end):
            raise _refused(f"it is valid from {begin:%Y-%m-%dT%H:%M:%SZ} to {end:%Y-%m-%dT%H:%M:%SZ}, not now")
        extensions = {each["extn_id"].dotted: each for each in info["extensions"]}
        unknown = [oid for oid, each in extensions.items() if each["critical"].native and oid not in KNOWN]
        if unknown:
            raise _refused(f"its critical extension {unknown[0]} is not known here")
        if TARGETS in extensions:
            self._check_targets(extensions[TARGETS]["extn_value"].contents)
        vo, fqans = _groups(info)
        if CERTIFICATES not in extensions:
            raise _refused("it does not carry its signer's certificate")
        given = _certificates(extensions[CERTIFICATES]["extn_value"].contents)
        signers, crl_end_ms = self._chain(given, now_ms)
        _check_signature(ac, signers[0])
        self._check_lsc(vo, signers)
        return fqans, min(instant_ms(end), crl_end_ms, *(instant_ms(cert.not_valid_after_utc) for cert in signers))

    def _check_targets(self, encoded: bytes) -> None:
        names = [
            target.chosen.chosen.native.lower()
            for targets in core.SequenceOf.load(encoded, strict=True, spec=_TargetNames)
            for target in targets
            if target.chosen.name in ("uniform_resource_identifier", "dns_name")
        ]
        hosts = {host.lower() for host in self._hosts()}
        if not {name.rpartition("://")[2] for name in names} & hosts:
            raise _refused(f"it is meant for {', '.join(names) or 'nobody'}, this is {', '.join(sorted(hosts))}")

    def _chain(self, given: list[x509.Certificate], now_ms: Ms) -> tuple[list[x509.Certificate], Ms]:
        """Return the signer's certificate and those above it, up to a trusted one, and the end of the first CRL relied
        on. Raises: UNTRUSTED, EXPIRED."""
        trust, chain = self._trust(), given[:1]
        while chain[-1].subject != chain[-1].issuer:
            above = (*given[1:], *trust.cas)
            issuer = next((cert for cert in above if is_ca(cert) and has_issued(cert, chain[-1])), None)
            if issuer is None or len(chain) >= CHAIN_MAX:
                raise _refused(f"the CA {render_dn(chain[-1].issuer)} of its signer's chain is not trusted here")
            chain.append(issuer)
        if is_ca(chain[0]) or proxy_language(chain[0]) is not None:
            raise _refused("its signer is no host or service")
        check_validity(chain, now_ms)
        return chain, trust.check(chain, now_ms)

    def _check_lsc(self, vo: str, signers: list[x509.Certificate]) -> None:
        """Refuse a signer that no `.lsc` file names, by its DN and those above. Raises: UNTRUSTED."""
        names = [subject_dn(signers[0]), *(render_dn(cert.issuer) for cert in signers)]
        chains = [chain for path in self._lsc_files(vo) for chain in read_lsc(path)]
        if not any(len(chain) >= 2 and names[: len(chain)] == chain for chain in chains):
            where = self._directory / vo if self._directory else "no directory ([tls] voms_dir)"
            raise _refused(f"no .lsc file in {where} names {names[0]} of {names[1]}")

    def _lsc_files(self, vo: str) -> list[Path]:
        if self._directory is None:
            return []
        try:
            return sorted((self._directory / vo).glob("*.lsc"))[:LSC_FILES_MAX]
        except OSError:
            return []


def read_lsc(path: Path) -> list[list[str]]:
    """Return the chains that a file names: DNs, the signer's first. A bad DN, or a missing file, names nobody."""
    try:
        text = path.read_bytes()[:LSC_BYTES_MAX].decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    chains: list[list[str]] = [[]]
    for line in map(str.strip, text.splitlines()):
        if _NEXT_CHAIN in line.lower():
            chains.append([])
        elif line and not line.startswith("#"):
            try:
                chains[-1].append(canonical_dn(line))
            except CheloniaError:
                return []
    return [chain for chain in chains if chain]


def _acs(chain: Chain) -> list[cms.AttributeCertificateV2]:
    """Return the ACs of the first certificate that carries any. Raises: ValueError."""
    for cert in chain:
        found = next((each for each in cert.extensions if each.oid == VOMS_ATTRIBUTES), None)
        if found is None:
            continue
        assert isinstance(found.value, x509.UnrecognizedExtension)
        encoded = found.value.value
        if len(encoded) > AC_BYTES_MAX:
            raise ValueError(f"more than {AC_BYTES_MAX} bytes")
        acs = [ac for group in core.SequenceOf.load(encoded, strict=True, spec=_Acs) for ac in group]
        if len(acs) > ACS_MAX:
            raise ValueError(f"more than {ACS_MAX}")
        return acs
    return []


def _check_holder(holder: cms.Holder, entity: x509.Certificate) -> None:
    """Refuse an AC that is about another certificate: issuer and serial number name it. Raises: UNTRUSTED."""
    base = holder["base_certificate_id"]
    if base.native is None:
        raise _refused("it does not name its holder's certificate")
    names = [each.chosen for each in base["issuer"] if each.name == "directory_name"]
    issuer = asn1.Name.load(entity.issuer.public_bytes())
    if names != [issuer] or base["serial"].native != entity.serial_number:
        raise _refused("its holder is another certificate")


def _groups(info: cms.AttributeCertificateInfoV2) -> tuple[str, list[str]]:
    """Return the organisation, and the groups and roles in it without NULL parts. Raises: UNTRUSTED."""
    attributes = [each for each in info["attributes"] if each["type"].dotted == FQANS]
    sets = [core.SetOf.load(each["values"].dump(), strict=True, spec=cms.IetfAttrSyntax) for each in attributes]
    syntaxes = [syntax for each in sets for syntax in each]
    if len(syntaxes) != 1:
        raise _refused("it has no list of groups, or several")
    uris = [name.native for name in syntaxes[0]["policy_authority"] if name.name == "uniform_resource_identifier"]
    vo = str(uris[0]).partition("://")[0] if uris else ""
    fqans = [bytes(value.chosen.contents).decode("utf-8") for value in syntaxes[0]["values"]]
    if not _VO.fullmatch(vo):
        raise _refused("it does not say of which organisation it is")
    if len(fqans) > FQANS_MAX:
        raise _refused(f"it has more than {FQANS_MAX} groups")
    for fqan in fqans:
        if not (fqan == f"/{vo}" or fqan.startswith(f"/{vo}/")) or not fqan.isprintable():
            raise _refused(f"its group {fqan[:80]!a} is not of the organisation {vo}")
    return vo, [_EMPTY.sub("", fqan) for fqan in fqans]


def _certificates(encoded: bytes) -> list[x509.Certificate]:
    """Return the certificates that the AC carries, its signer's first. Raises: UNTRUSTED."""
    groups = core.SequenceOf.load(encoded, strict=True, spec=_Certificates)
    given = [cert for group in groups for cert in group][:CHAIN_MAX]
    if not given:
        raise _refused("it does not carry its signer's certificate")
    return [load_certificate(cert.dump()) for cert in given]


def _check_signature(ac: cms.AttributeCertificateV2, signer: x509.Certificate) -> None:
    info = ac["ac_info"]
    issuer = info["issuer"]
    names = issuer.chosen["issuer_name"] if issuer.name == "v2_form" else issuer.chosen
    if [each.chosen for each in names] != [asn1.Name.load(signer.subject.public_bytes())]:
        raise _refused("its issuer is not whose certificate it carries")
    algorithm = ac["signature_algorithm"]
    if algorithm.dump() != info["signature"].dump():
        raise _refused("it names two algorithms of its signature")
    digest = HASHES.get(algorithm.hash_algo)
    if digest is None:
        raise _refused(f"it is signed with {algorithm.hash_algo}; taken are {', '.join(HASHES)}")
    key, signature, signed = signer.public_key(), ac["signature"].native, info.dump()
    try:
        if isinstance(key, rsa.RSAPublicKey) and algorithm.signature_algo == "rsassa_pkcs1v15":
            key.verify(signature, signed, padding.PKCS1v15(), digest)
        elif isinstance(key, ec.EllipticCurvePublicKey) and algorithm.signature_algo == "ecdsa":
            key.verify(signature, signed, ec.ECDSA(digest))
        else:
            raise _refused("its signature is of another algorithm than its signer's key")
    except InvalidSignature:
        raise _refused("its signature is wrong") from None


def _reason_of(error: Exception) -> str:
    return error.cause if isinstance(error, CheloniaError) else str(error).partition("\n")[0][:200]


def _refused(cause: str) -> CheloniaError:
    return CheloniaError(Kind.UNTRUSTED, "voms", cause=cause)
