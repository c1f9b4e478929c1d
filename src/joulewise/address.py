"""Address: what may be the base of a server's address and the key to it; and its words, wherever they are told."""

from __future__ import annotations

import urllib.parse

from joulewise.errors import UserError

EXAMPLE = "give one like http://localhost:8000/v1"


def check_address(url: str, key: str | None, *, named: str, whose: str) -> None:
    """Refuse what cannot be one.

    Args:
        url: the address.
        key: sent with requests; never shown.
        named: how a person names the address, such as ``--url``.
        whose: whose key it is, such as ``the judge's``.

    Raises:
        UserError: it cannot be an address, or a key.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError as error:
        raise UserError(f"{named} {url}: no address ({error}); {EXAMPLE}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{named} {url}: no address of a server; {EXAMPLE}")
    if parts.username is not None or parts.query or parts.fragment:
        raise UserError(f"{named}: leave names, passwords and queries out of the address; keys go in the environment")
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise UserError(f"{whose} key holds spaces or characters that no key has; set it anew")


def server_of(url: str) -> str:
    """Scheme, host and port: what a record may tell of an address."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def words_of(said: str, key: str | None) -> str:
    """A server's words on one short line, the key taken out; a page for browsers is only named."""
    if said.lstrip().startswith("<"):
        return "a web page"
    return " ".join((said.replace(key, "***") if key else said).split())[:200]
