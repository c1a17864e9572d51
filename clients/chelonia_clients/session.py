"""The session of one command: its options, its output, and a connection made when a verb first needs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia.core.values import replace
from chelonia.hosting.net.credential_files import CredentialFiles
from chelonia_clients.arguments import Arguments, UsageError, parse_rate
from chelonia_clients.choosing import Choice, is_pattern
from chelonia_clients.output import Output
from chelonia_clients.settings import Settings, Wish, parse_replicas, settle

if TYPE_CHECKING:
    from chelonia.core.ports.access_keys import AccessKeys
    from chelonia_clients.administrator import Administrator
    from chelonia_clients.client import Client, DirectoryEntry
    from chelonia_clients.watch import LinePrinter

REMOTE: Final = ("chelonia:", "arc:")
"""Prefixes of a Logical Name where local names are the rule."""


class Session:
    """The session that a verb's function gets."""

    def __init__(
        self, options: Arguments, out: Output, environ: Mapping[str, str], operands: Sequence[str] = ()
    ) -> None:
        """`operands`: those of the verb that may be names, whose URLs may name a Bartender. Raises: UsageError."""
        self.options = options
        self.out = out
        self.environ = environ
        self._wish = wish_of(options)
        self._client: Client | None = None
        self._administrator: Administrator | None = None
        self._printed: set[str] = set()
        for operand in operands:
            self._note_bartender(operand)

    def settings(self) -> Settings:
        """Decide where the cluster is and who the user is. Raises: BAD_CONFIG."""
        from chelonia_clients.connect import home

        return settle(self._wish, self.environ, home())

    def client(self) -> Client:
        """Return the connection, made once. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        if self._client is None:
            from chelonia_clients import connect

            settings = self.settings()
            if self.out.verbose:
                for topic, origin in settings.origins.items():
                    self.out.notify(f"{topic}: from {origin}")
                self.out.notify(f"Bartenders: {' '.join(settings.bartenders)}")
            self._client = connect.open_client(settings, self.environ, self._trace, self.out.notify)
            self._client.remark = self.remark
            self._client.http.loads = "chelonia.hosting.net.quick_bodies"
        return self._client

    def administrator(self) -> Administrator:
        """Return an administrator's ports over the same connections, made once; no Bartender need be known. Raises: as
        `client`."""
        if self._administrator is None:
            from chelonia_clients import connect

            settings = self.settings()
            without = not settings.bartenders and (settings.librarians or settings.ahashes)
            http = connect.open_http(connect.find(settings, self.environ).tls) if without else self.client().http
            self._administrator = connect.open_administrator(http, settings, self._trace, self.out.notify)
        return self._administrator

    def keys(self) -> AccessKeys:
        """Return the port of access keys, over the same connections. Raises: as `client`."""
        from chelonia_clients import connect

        return connect.open_keys(self.client().http, self.settings(), self._trace, self.out.notify)

    @property
    def bars(self) -> Output | None:
        """Output beside whose lines progress may be drawn; None: it may not."""
        return None if self.out.as_json or self.options.has("--no-progress") else self.out

    @property
    def _trace(self) -> LinePrinter | None:
        return self.out.notify if self.options.has("--trace") else None

    def remark(self, note: str) -> None:
        """Print a note of the cluster to the user, once."""
        if note and note not in self._printed:
            self._printed.add(note)
            self.out.notify(f"note: {note}")

    def as_administrator(self) -> None:
        """Use a cluster file's administrator from here on, unless the user has named another of its users."""
        if not self._wish.cluster_user and not self.environ.get("CHELONIA_CLUSTER_USER"):
            self._wish = replace(self._wish, cluster_user="admin")

    async def close(self) -> None:
        for opened in (self._client, self._administrator):
            if opened is not None:
                await opened.http.close()

    def ln(self, text: str) -> str:
        """Read a Logical Name as given: `/a/b`, `<GUID>/b`, `chelonia:/a/b` or `arc:///a/b[?BartenderURL=...]`.

        Returns: the name as the Bartender takes it, a trailing slash kept. Raises: BAD_NAME, UsageError.
        """
        name = self._from_url(text) if text.startswith(REMOTE) else text
        if not name:  # for a server it is the root, for a user an empty variable
            raise CheloniaError(Kind.BAD_NAME, subject=text or "''", cause="it is empty; the root is called /")
        parse_ln(name)
        return name

    async def expand(self, arguments: Arguments, patterns: str) -> Arguments:
        """Return the arguments with the fitting names in place of patterns; one that fits nothing is a failure.

        Args: `patterns`: "all" operands may be patterns, or all but the "last" of several.
        """
        texts = list(arguments.operands)
        kept = texts[-1:] if patterns == "last" and len(texts) > 1 else []
        found: list[str] = []
        for text in texts[: len(texts) - len(kept)] if patterns else ():
            if not is_pattern(text) or (patterns == "last" and not text.startswith(("/", *REMOTE))):
                found.append(text)
                continue
            from chelonia_clients.paths import expand

            mark = "chelonia:" if text.startswith(REMOTE) else ""
            with self.out.trying(ln=text):
                found += [mark + name for name in await expand(self.client(), [self.ln(text)])]
        return replace(arguments, operands=(*found, *kept)) if patterns else arguments

    def limit(self, arguments: Arguments) -> None:
        """Apply --limit to all transfers of this command. Raises: UsageError."""
        if arguments.has("--limit") and (rate := parse_rate(arguments.value("--limit"))):
            from chelonia_clients.throttle import limit

            limit(self.client(), rate)

    async def below(
        self, ln: str, entries: AsyncGenerator[DirectoryEntry, None]
    ) -> AsyncGenerator[DirectoryEntry, None]:
        """Yield the entries listed below a collection, and report each collection that the user may not read."""
        from chelonia_clients.client import unlisted

        async with aclosing(entries):
            async for entry in entries:
                name = f"{ln.rstrip('/')}/{entry.name}"
                if entry.closed and name not in self._printed:  # once, however often it is listed
                    self._printed.add(name)
                    self.out.failure(unlisted("list", name), ln=name)
                yield entry

    async def is_collection(self, ln: str) -> bool:
        """Whether a Logical Name leads to a collection; False for one that the user may not look at."""
        try:
            return await self.client().exists(ln.rstrip("/") or "/") == "collection"
        except CheloniaError as error:
            if error.kind is Kind.DENIED:
                return False
            raise

    def _from_url(self, text: str) -> str:
        if text.startswith("chelonia:") and not text.startswith("chelonia://"):
            return text.removeprefix("chelonia:")
        parts = _split(text)
        if parts.netloc:
            raise UsageError(f"{text}: a name has no host; write {parts.scheme}:///path and name the Bartender by -b")
        return unquote(parts.path, errors="surrogateescape")

    def _note_bartender(self, operand: str) -> None:
        """Apply the option of an `arc:` name before any connection is made; the first one given counts."""
        if operand.startswith("arc:") and not self._wish.bartenders:
            bartenders = tuple(parse_qs(_split(operand).query).get("BartenderURL", ()))
            self._wish = replace(self._wish, bartenders=bartenders)


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise UsageError(f"{text}: {error}") from None


def is_remote(text: str) -> bool:
    """Whether a name of `cp` is one in the cluster."""
    return text.startswith(REMOTE)


def wish_of(options: Arguments) -> Wish:
    """Return the wish that the options of a command line express."""

    def path(name: str) -> Path | None:
        return Path(options.value(name)).expanduser() if options.has(name) else None

    return Wish(
        bartenders=tuple(" ".join(options.flags.get("--bartender", ())).split()),
        librarians=tuple(" ".join(options.flags.get("--librarian", ())).split()),
        cluster=path("--cluster"),
        configuration=path("--config"),
        files=CredentialFiles(path("--proxy"), path("--cert"), path("--key"), path("--ca-dir"), path("--ca-file")),
        cluster_user=options.value("--as"),
        anonymous=options.has("--anonymous"),
        ahashes=tuple(" ".join(options.flags.get("--ahash", ())).split()),
    )


def replicas_of(session: Session, arguments: Arguments, operand: str = "") -> int | None:
    """Return the wanted copies by option, operand or settings; None: none of them says. Raises: BAD_CONFIG."""
    text, settings = arguments.value("--replicas") or operand, session.settings()
    if text:
        return parse_replicas(text, "--replicas")
    return settings.replicas if "replicas" in settings.origins else None


def parallel_of(arguments: Arguments, default: int) -> int:
    """Return how many files to move at a time. Raises: UsageError."""
    if not arguments.has("--parallel"):
        return default
    text = arguments.value("--parallel")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 64):
        raise UsageError(f"-j takes a number from 1 to 64, not {text!r}")
    return int(text)


def choice_of(arguments: Arguments) -> Choice:
    """Return the choice of --include and --exclude."""
    return Choice(arguments.flags.get("--include", ()), arguments.flags.get("--exclude", ()))
