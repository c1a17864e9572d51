"""`chelonia doctor` and `chelonia whoami`: the settings in use, those passed over and why, and a cure for each problem.

The doctor checks everything even when the first thing is wrong, and exits with 0 only when all is well.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from chelonia.core.errors import CheloniaError, ExitCode, Kind
from chelonia.core.ids import Ms
from chelonia.core.timing.clock import stamp
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.credentials import CURE, Credential, explain_file, find_cas, find_credential
from chelonia.hosting.net.http_client import HttpClient, Sending
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote_bartender, remote_files
from chelonia.hosting.net.tls import DAY_MS, UNLIMITED, TlsSettings, Trust, load_trust
from chelonia_clients.arguments import Arguments
from chelonia_clients.client import Client
from chelonia_clients.connect import ask_password, find, open_http, surroundings
from chelonia_clients.session import Session
from chelonia_clients.settings import Settings
from chelonia_clients.verdict import CLOCK_S_MAX, ahead_s

DAYS_LEFT_MIN: Final = 7.0
PROXY_HOURS_LEFT_MIN: Final = 1.0
SLOW_MS: Final = 2_000.0
"""Time of a `stat` of one name above which a note is given."""
REVOKED: Final = "a new certificate, with a new key: yours from your CA; where it is that host's, its keeper's to bring"


@dataclass(slots=True)
class DoctorReport:
    """The findings: `ok` lines and problems with their cures, in the order of the checks."""

    session: Session
    problems: int = 0

    def good(self, topic: str, text: str) -> None:
        """Report a check that passed."""
        self.session.out.write(f"[ok]      {topic}: {text}")
        self.session.out.result(topic=topic, text=text)

    def note(self, topic: str, text: str) -> None:
        """Report a fact that is no problem."""
        self.session.out.write(f"[note]    {topic}: {text}")
        self.session.out.result(topic=topic, text=text, note=True)

    def bad(self, topic: str, text: str, cure: str) -> None:
        """Report a problem and its cure."""
        out = self.session.out
        out.write(f"[problem] {topic}: {text}")
        if cure:
            out.write(f"          cure: {cure}")
        if out.as_json:
            out.results.append({"ok": False, "topic": topic, "text": text, "cure": cure})
        out.exit_code = out.exit_code or int(ExitCode.OTHER)
        self.problems += 1


async def doctor(session: Session, _arguments: Arguments) -> None:
    """Check certificates, clock and Bartenders, and print cures (`doctor`)."""
    report = DoctorReport(session)
    try:
        settings = session.settings()
    except CheloniaError as error:
        report.bad("settings", f"{error.subject}: {error.cause}".lstrip(": "), "correct that file or variable")
        return
    urls, found = _look_at_settings(report, settings), _look_at_cas(report, settings)
    credential = _look_at_credential(report, settings)
    if found is not None:
        cas, trust = found
        if credential is not None:
            _look_at_chain(report, credential, trust)
        await _look_at_bartenders(report, urls, cas if credential is None else credential.settings(cas))
    session.out.write("All is well." if not report.problems else f"{report.problems} problem(s) found.")


def _look_at_settings(report: DoctorReport, settings: Settings) -> tuple[str, ...]:
    try:
        urls = settings.bartender_urls()
    except CheloniaError as error:
        report.bad("Bartender", error.cause, "chelonia setup NAME --bartender https://host:port/Bartender")
        return ()
    report.good("Bartender", f"{' '.join(urls)} (from {settings.origins['bartender']})")
    return urls


def _look_at_cas(report: DoctorReport, settings: Settings) -> tuple[TlsSettings, Trust] | None:
    try:
        cas = find_cas(settings.files, surroundings(report.session.environ))
        trust = load_trust(cas)
    except CheloniaError as error:
        report.bad(
            "CAs",
            f"{error.subject}: {error.cause}".lstrip(": "),
            "put that cluster's CAs there, or name where they are: export X509_CERT_DIR=<directory>",
        )
        return None
    where = cas.ca_dir or cas.ca_file
    crls = [crl for group in trust.crls.values() for crl in group]
    report.good("CAs", f"{len(trust.cas)} in {where}, {len(crls)} CRLs, {len(trust.policies)} signing policies")
    for ca, problem in sorted(trust.problems.items()):
        report.bad("CAs", f"everything by {ca} is refused: {problem}", "repair or remove that file")
    for ca in trust.unlimited:
        report.note("CAs", f"{ca}: {UNLIMITED}")
    now = _now()
    for crl in sorted(crls, key=lambda each: each.source):
        if crl.next_update_ms <= now:
            report.bad(
                "CRL",
                f"{crl.source} has expired, which refuses its whole CA",
                "run fetch-crl, or take over the new one of a CA of your own (`cheloniad ca crl`)",
            )
    if not crls:
        report.note("CRL", "there is none, so revoked certificates are not noticed; fetch-crl brings them")
    return cas, trust


def _look_at_credential(report: DoctorReport, settings: Settings) -> Credential | None:
    if settings.anonymous:
        report.note("credential", f"none is shown (from {settings.origins['credential']})")
        return None
    around = surroundings(report.session.environ)
    try:
        credential = find_credential(settings.files, around, _now(), ask_password)
    except CheloniaError as error:
        report.bad("credential", error.cause.removesuffix(f"; {CURE}"), f"{CURE}; --anonymous: none")
        return None
    for place in credential.passed_over:
        report.note("credential", f"passed over {place}")
    origin = settings.origins.get("credential", credential.origin)
    report.good("credential", f"{credential.dn} in {credential.cert} ({origin})")
    _look_at_end(report, credential)
    return credential


def _look_at_end(report: DoctorReport, credential: Credential) -> None:
    hours = (credential.not_after_ms - _now()) / 3_600_000
    least = PROXY_HOURS_LEFT_MIN if credential.is_proxy else DAYS_LEFT_MIN * 24
    left = f"{hours / 24:.1f} days left" if hours > 48 else f"{hours:.1f} hours left"
    if hours < least:
        cure = "make a new proxy" if credential.is_proxy else "ask your CA for a new certificate"
        report.bad("validity", left, cure)
    else:
        report.good("validity", left)


def _look_at_chain(report: DoctorReport, credential: Credential, trust: Trust) -> None:
    reasons = explain_file(credential.cert, trust, _now())
    for reason in reasons:
        cure = "install its CA into the CA directory, or use a certificate of a CA that is there"
        report.bad("chain", reason, REVOKED if "revoked" in reason else cure)
    if not reasons:
        report.good("chain", "accepted by these CAs, CRLs and signing policies")


async def _look_at_bartenders(report: DoctorReport, urls: Sequence[str], tls: TlsSettings) -> None:
    try:
        async with open_http(tls) as http:
            for url in urls:
                await _look_at_bartender(report, http, url)
    except CheloniaError as error:
        if not report.problems:  # else reported already: these files make no TLS
            report.bad("TLS", f"{error.subject}: {error.cause}".lstrip(": "), "correct what is named")


async def _look_at_bartender(report: DoctorReport, http: HttpClient, url: str) -> None:
    topic = f"Bartender {url}"
    host = urlsplit(url).hostname or ""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        report.bad(
            topic, f"the name {host} is not known: {error.strerror or error}", "correct the URL, or the resolver"
        )
        return
    started = time.monotonic()
    try:
        answer = await http.request(Sending("HEAD", url))
    except CheloniaError as error:
        report.bad(topic, error.cause or error.kind.value, cure_of(error))
        return
    _look_at_clock(report, topic, answer.headers)
    address = str(found[0][4][0])
    report.good(topic, f"reached at {address} in {_since(started):.0f} ms, TLS accepted on both sides")
    started = time.monotonic()
    try:
        link, once = Link(http, SystemClock(), SystemIds(), compact=http.compact), RetryLimits(retry_ms=0)
        ports = remote_bartender(link, (url,), once), remote_files(link, (url,), once)
        await Client(*ports, http, retry_ms=0).exists("/")
    except CheloniaError as error:
        report.bad(topic, f"stat / fails: {error.cause or error.kind.value}", cure_of(error))
        return
    took_ms = _since(started)
    report.good(topic, f"answers stat / in {took_ms:.0f} ms")
    if took_ms > SLOW_MS:
        report.note(topic, "that is slow: its machine or the network is busy; `chelonia admin status` may show why")


UNTRUSTED: Final = (
    ("port", "correct the URL: something other than a Bartender listens there"),
    ("peer refuses", "use a certificate whose CA that cluster trusts, or ask its keeper to install yours"),
    ("asks for", "show a certificate; those who have none are let in at a Bartender's port only"),
    ("revoked", REVOKED),
    ("not yet valid", "check the clock of this machine, which shows {now}: run an NTP service"),
    ("the CRL", "bring that CRL up to date where it lies: on this machine, or on that host (ask its keeper)"),
)
"""Words in a refusal, and its cure."""


def cure_of(error: CheloniaError) -> str:
    """Return the cure for a Bartender that cannot be reached or does not answer as one."""
    if error.kind is Kind.UNTRUSTED and (cure := next((cure for word, cure in UNTRUSTED if word in error.cause), "")):
        return cure.format(now=stamp(_now()))
    match error.kind:
        case Kind.UNTRUSTED | Kind.EXPIRED:
            return "install that cluster's CA into the CA directory, or ask its keeper for a valid certificate"
        case Kind.UNKNOWN_OPERATION | Kind.NOT_SUPPORTED | Kind.NOT_FOUND:
            return "correct the URL: another service answers there; a Bartender's ends in /Bartender"
        case Kind.NETWORK | Kind.TIMEOUT:
            return "check the URL and the firewall; see `chelonia doctor` on another machine, or ask its keeper"
        case _:
            return "ask the keeper of that cluster"


def _look_at_clock(report: DoctorReport, topic: str, headers: Mapping[str, str]) -> None:
    skew_s = ahead_s(headers, _now())
    if skew_s is None:
        report.note(topic, "sends no time, so the clocks were not compared")
        return
    if abs(skew_s) > CLOCK_S_MAX:
        way = "behind" if skew_s > 0 else "ahead of"
        report.bad("clock", f"this machine is {abs(skew_s):.0f} s {way} {topic}", "run an NTP service on both")
    else:
        report.good("clock", f"at most {abs(skew_s) + 1:.0f} s from {topic}")


def _since(started: float) -> float:
    return (time.monotonic() - started) * 1000


def _now() -> Ms:
    return SystemClock().now_ms()


async def whoami(session: Session, _arguments: Arguments) -> None:
    """Print which credential, CAs and Bartenders are used, and why (`whoami`)."""
    settings, out = session.settings(), session.out
    found = find(settings, session.environ)
    credential = found.credential
    facts: dict[str, object] = {
        "dn": credential.dn if credential else "ANONYMOUS",
        "credential": str(credential.cert) if credential else "",
        "origin": settings.origins.get("credential", credential.origin if credential else ""),
        "proxy": bool(credential and credential.is_proxy),
        "days_left": round((credential.not_after_ms - _now()) / DAY_MS, 2) if credential else None,
        "cas": str(found.tls.ca_dir or found.tls.ca_file),
        "bartenders": list(settings.bartenders),
        "bartenders_origin": settings.origins.get("bartender", ""),
        "replicas": settings.replicas,
        "passed_over": [str(place) for place in credential.passed_over] if credential else [],
    }
    out.result(**facts)
    _write_identity(out.write, facts)


def _write_identity(write: Callable[[str], None], facts: dict[str, object]) -> None:
    write(str(facts["dn"]))
    if facts["credential"]:
        kind = "proxy" if facts["proxy"] else "certificate"
        write(f"  {kind}: {facts['credential']} ({facts['origin']}), {facts['days_left']} days left")
    write(f"  CAs: {facts['cas']}")
    bartenders = facts["bartenders"]
    urls = " ".join(bartenders) if isinstance(bartenders, list) and bartenders else "none"
    write(f"  Bartenders: {urls} ({facts['bartenders_origin'] or 'none is named'})")
    write(f"  replicas: {facts['replicas']}")
    passed = facts["passed_over"]
    for place in passed if isinstance(passed, list) else ():
        write(f"  passed over: {place}")
