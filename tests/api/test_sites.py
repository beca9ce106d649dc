"""What is told of a request's origin, and which names are ours."""

from __future__ import annotations

import psutil
import pytest
from starlette.datastructures import Headers

from chorus.api.server.sites import OwnNames, is_foreign, parse_host


@pytest.mark.parametrize(
    ("header", "parsed"),
    [
        ("Localhost:8100", ("localhost", 8100)),
        ("studio.local.", ("studio.local", None)),
        ("[::1]:80", ("::1", 80)),
        ("10.0.0.1", ("10.0.0.1", None)),
        ("", None),
        ("a:b", None),
        ("[::1", None),
        ("::1", None),
        ("a:1:2", None),
    ],
)
def test_a_host_is_a_name_or_an_address_and_a_port(header: str, parsed: tuple[str, int | None] | None) -> None:
    assert parse_host(header) == parsed


def test_every_address_of_an_interface_is_ours() -> None:
    names = OwnNames(())
    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family != -1]
    addresses = [text.partition("%")[0] for text in found if "." in text or "::" in text]
    assert addresses
    assert all(names.has(address) for address in addresses)


def test_names_can_be_added_and_the_check_be_switched_off() -> None:
    assert not OwnNames(()).has("chat.example")
    assert OwnNames(["Chat.example"]).has("chat.example")
    assert OwnNames(["*"]).has("anything.example")


@pytest.mark.parametrize(
    ("headers", "origins", "foreign"),
    [
        ({}, [], False),
        ({"host": "x:1", "origin": "http://x:1"}, [], False),
        ({"host": "x", "origin": "https://x"}, [], False),
        ({"host": "x:1", "origin": "http://x"}, [], True),
        ({"host": "x:1", "origin": "http://x:99999"}, [], True),
        ({"host": "x", "origin": "null"}, [], True),
        ({"host": "x", "origin": "app://x"}, [], True),
        ({"host": "x", "origin": "https://chat.example"}, [], True),
        (
            {"host": "x", "origin": "https://chat.example", "sec-fetch-site": "cross-site"},
            ["https://chat.example"],
            False,
        ),
        ({"host": "x", "origin": "https://other.example"}, ["*"], False),
        ({"sec-fetch-site": "cross-site"}, ["https://chat.example"], True),
        ({"sec-fetch-site": "cross-site"}, ["*"], False),
        ({"sec-fetch-site": "none"}, [], False),
        ({"sec-fetch-site": "same-site"}, [], False),
    ],
)
def test_a_request_is_foreign_by_what_the_browser_says_of_its_page(
    headers: dict[str, str], origins: list[str], foreign: bool
) -> None:
    assert is_foreign("POST", "/v1/models", Headers(headers), origins) == foreign
