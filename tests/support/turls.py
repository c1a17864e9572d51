"""TURLs taken apart, as a Shepherd's HTTP listener does."""

from urllib.parse import parse_qs, urlsplit

from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import Turl
from chelonia.wire.tickets import TURL_PATH


def parse_turl(url: str) -> Turl:
    """The parts of `https://host:port/turl/<reference>?ticket=<ticket>`."""
    parts = urlsplit(url)
    assert parts.path.startswith(TURL_PATH), url
    (ticket,) = parse_qs(parts.query)["ticket"]
    return Turl(f"{parts.scheme}://{parts.netloc}", ReferenceId(parts.path.removeprefix(TURL_PATH)), ticket)
