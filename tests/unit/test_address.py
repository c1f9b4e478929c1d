"""Addresses and keys that a person names."""

from __future__ import annotations

import pytest

from joulewise.address import check_address, server_of, words_of
from joulewise.errors import UserError


@pytest.mark.parametrize(
    ("url", "key", "told"),
    [
        ("localhost:8000", None, "--url localhost:8000: no address of a server; give one like"),
        ("http://h:port/v1", None, "--url http://h:port/v1: no address ("),
        ("http://name:word@h/v1", None, "--url: leave names"),
        ("http://h/v1?key=k", None, "--url: leave names"),
        ("http://h/v1#part", None, "--url: leave names"),
        ("http://h/v1", "two words", "the judge's key holds spaces"),
    ],
)
def test_what_cannot_be_one_is_refused(url: str, key: str | None, told: str) -> None:
    with pytest.raises(UserError) as refused:
        check_address(url, key, named="--url", whose="the judge's")
    assert str(refused.value).startswith(told)
    assert "name:word" not in str(refused.value)


def test_an_address_with_a_key_passes_and_tells_its_server() -> None:
    check_address("https://h:8443/v1", "sk-1", named="url", whose="the server's")
    assert server_of("https://h:8443/v1") == "https://h:8443"


def test_a_server_s_words_are_one_short_line_without_the_key() -> None:
    assert words_of("no\n such  model k-123 " + "x" * 300, "k-123") == ("no such model *** " + "x" * 300)[:200]
    assert words_of("3 < 4", None) == "3 < 4"
    assert words_of("\n<!DOCTYPE html>\n<p>k-123", "k-123") == "a web page"
