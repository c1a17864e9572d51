"""The verb `s3`: access keys, and configuration for programs that speak S3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn, Ms
from chelonia.core.names import parse_ln
from chelonia.core.ports.access_keys import LINK_PREFIX, NewKey
from chelonia.core.rights.scopes import ADDING, CHANGING, READING, Scope, Scopes, narrowed_to
from chelonia.core.timing.clock import stamp
from chelonia.hosting.net.clock import SystemClock
from chelonia_clients.arguments import Arguments, UsageError, parse_duration
from chelonia_clients.client import new_call
from chelonia_clients.connect import home
from chelonia_clients.output import table
from chelonia_clients.session import Session
from chelonia_clients.settings import checked_url, toml_path

ONLY: Final = {"read": READING, "upload": (*READING, *ADDING), "write": (*READING, *CHANGING)}
"""Rights that a key may be narrowed to."""
VOID: Final = "void"
"""State of a key or link that is refused, though it has not expired."""
PORT_AFTER_BARTENDER: Final = 7
"""Port of the S3 door by `cheloniad init`, counted from the Bartender's."""


async def s3(session: Session, arguments: Arguments) -> None:
    """Manage one's access keys, or print configurations of programs that speak S3 (`s3`)."""
    match tuple(arguments.operands):
        case ("key", "create"):
            await _create(session, arguments, "")
        case ("configure", *tools):
            _configure(session, arguments, tools)
        case words:
            await s3_keys(session, arguments, words)


async def s3_keys(session: Session, arguments: Arguments, words: Sequence[str]) -> None:
    """Create, list or revoke keys, one's own or as an administrator (`s3 key ...`)."""
    match tuple(words):
        case ("key", "create", dn):
            await _create(session, arguments, dn)
        case ("key" | "keys", "list"):
            await _list(session)
        case ("key", "revoke", key_id):
            await session.keys().revoke(new_call(), key_id)
            session.out.write(f"revoked {key_id}: what it signs is refused within some seconds")
            session.out.result(id=key_id, status="revoked")
        case _:
            raise UsageError(f"s3 {' '.join(words)}: no such command, or the wrong number of arguments")


async def _create(session: Session, arguments: Arguments, dn: str) -> None:
    lasts = parse_duration(arguments.value("--for")) if arguments.has("--for") else 0
    expires = Ms(SystemClock().now_ms() + lasts if lasts else 0)
    new = NewKey(Dn(dn), expires, arguments.value("--note") or "", _scopes(session, arguments))
    issued = await session.keys().create(new_call(), new)
    key, out = issued.key, session.out
    if key.scopes != new.scopes:
        await session.keys().revoke(new_call(), key.id)
        raise CheloniaError(Kind.NOT_SUPPORTED, "createKey", key.dn, "this Bartender is too old to narrow a key")
    out.write(f"AWS_ACCESS_KEY_ID={key.id}", f"AWS_SECRET_ACCESS_KEY={issued.secret}")
    narrowed = f", for {narrowed_to(key.scopes)} alone" if key.scopes else ""
    out.notify(f"a key of {key.dn}, expires: {_expiry(key.expires_ms)}{narrowed}; its secret is not shown again")
    out.result(id=key.id, secret=issued.secret, dn=key.dn, expires_ms=key.expires_ms, note=key.note,
               only=narrowed_to(key.scopes))  # fmt: skip


def _scopes(session: Session, arguments: Arguments) -> Scopes:
    if not (arguments.has("--only") or arguments.has("--in")):
        return ()
    only = arguments.value("--only") or "write"
    if only not in ONLY:
        raise UsageError(f"--only takes {', '.join(ONLY)}, not {only!r}")
    place = parse_ln(session.ln(arguments.value("--in").rstrip("/") or "/"))
    if place.start != ROOT:
        raise UsageError("--in takes a name that begins at the root")
    return (Scope(ONLY[only], place.parts),)


async def _list(session: Session) -> None:
    keys = [key for key in await session.keys().list(new_call()) if not key.id.startswith(LINK_PREFIX)]
    rows: list[tuple[str, ...]] = [("KEY", "CREATED", "EXPIRES", "ONLY", "NOTE", "DN")]
    for key in keys:
        expires = VOID if key.void else _expiry(key.expires_ms)
        rows.append((key.id, stamp(key.created_ms), expires, narrowed_to(key.scopes), key.note, key.dn))
        session.out.result(
            id=key.id, dn=key.dn, created_ms=key.created_ms, expires_ms=key.expires_ms, note=key.note,
            only=narrowed_to(key.scopes), void=key.void,
        )  # fmt: skip
    session.out.write(*table(rows))


def _expiry(expires_ms: Ms) -> str:
    return stamp(expires_ms) if expires_ms else "never"


# --- other programs ------------------------------------------------------------------------------------------------

SNIPPETS: Final = {
    "aws": (
        "aws: ~/.aws/config; then `aws s3 ls`",
        "[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\nregion = us-east-1\n"
        "endpoint_url = {url}\nca_bundle = {ca}\ns3 =\n  addressing_style = path\n  signature_version = s3v4",
    ),
    "boto3": (
        "boto3",
        "import boto3\nfrom botocore.config import Config\n"
        's3 = boto3.client("s3", endpoint_url="{url}", verify="{ca}",\n'
        '    aws_access_key_id="{id}", aws_secret_access_key="{secret}", region_name="us-east-1",\n'
        '    config=Config(signature_version="s3v4", s3={{"addressing_style": "path"}}))',
    ),
    "rclone": (
        "rclone: ~/.config/rclone/rclone.conf; then `rclone --ca-cert {ca} ls chelonia:bucket`",
        "[chelonia]\ntype = s3\nprovider = Other\naccess_key_id = {id}\nsecret_access_key = {secret}\n"
        "endpoint = {url}\nregion = us-east-1\nforce_path_style = true\nlist_url_encode = true",
    ),
    "s3cmd": (
        "s3cmd: ~/.s3cfg; then `s3cmd ls`",
        "[default]\naccess_key = {id}\nsecret_key = {secret}\nhost_base = {host}\nhost_bucket = {host}\n"
        "bucket_location = us-east-1\nuse_https = True\nca_certs_file = {ca}\nsignature_v2 = False",
    ),
    "s5cmd": (
        "s5cmd: the environment; then `s5cmd ls`",
        "export AWS_ACCESS_KEY_ID={id} AWS_SECRET_ACCESS_KEY={secret} AWS_REGION=us-east-1\n"
        "export S3_ENDPOINT_URL={url} AWS_CA_BUNDLE={ca}",
    ),
}
"""For each program: the place of its configuration, and the text for it."""


def _configure(session: Session, arguments: Arguments, tools: Sequence[str]) -> None:
    """Print configurations (`s3 configure`); a secret is taken from the environment alone, if it is there."""
    unknown = [tool for tool in tools if tool not in SNIPPETS]
    if unknown:
        raise UsageError(f"s3 configure knows {' '.join(SNIPPETS)}, not {' '.join(unknown)!r}")
    environ, files = session.environ, session.settings().files
    given = arguments.has("--endpoint")
    url = checked_url(arguments.value("--endpoint"), "--endpoint") if given else _endpoint(session)
    # Each cluster has a file of its own, as other programs use those of the others. A host may have several clusters.
    name = f"ca-{re.sub('[^A-Za-z0-9.]', '-', urlsplit(url).netloc)}.pem"
    made = (toml_path(environ, home()) or Path.cwd() / "client.toml").with_name(name)
    values = {
        "url": url,
        "host": urlsplit(url).netloc,
        "id": environ.get("AWS_ACCESS_KEY_ID", "<id of `chelonia s3 key create`>"),
        "secret": environ.get("AWS_SECRET_ACCESS_KEY", "<its secret>"),
        "ca": str(files.ca_file or made),
    }
    if "AWS_SECRET_ACCESS_KEY" not in environ:
        session.out.notify("no key is in the environment; `export $(chelonia s3 key create)` puts a new one there")
    if environ.get("AWS_CA_BUNDLE", values["ca"]) != values["ca"]:
        session.out.write("# unset AWS_CA_BUNDLE: aws prefers it to ca_bundle, and rclone does not work with it", "")
    if values["ca"] == str(made):
        where = files.ca_dir or "/etc/grid-security/certificates"
        session.out.write(f"# first: mkdir -p {made.parent} && cat {where}/*.0 > {made}", "")
    for tool in tools or SNIPPETS:
        head, text = SNIPPETS[tool]
        session.out.write(f"# {head.format(**values)}", *text.format(**values).split("\n"), "")
        session.out.result(tool=tool, text=text.format(**values))


def _endpoint(session: Session) -> str:
    """The URL of the S3 door by a cluster file, or where `cheloniad init` puts it."""
    settings = session.settings()
    if settings.s3:
        return settings.s3[0]
    bartender = urlsplit(settings.bartender_urls()[0])
    host = bartender.hostname or ""
    port = (bartender.port or 60_000) + PORT_AFTER_BARTENDER
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"
