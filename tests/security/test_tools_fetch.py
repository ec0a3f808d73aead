"""`fetch` reads the public web and nothing else: no URL, name or redirect leads into a network that
is not public."""

import gzip
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.tools import ToolError
from agentrl.tools.fetch import (
    MAX_BYTES,
    MAX_REDIRECTS,
    PublicResolver,
    is_public,
    read_page,
    require_public,
)

pytestmark = pytest.mark.anyio

#: What may never be connected to. Numbers in all their spellings, names that mean this host, other
#: schemes, ports and credentials.
FORBIDDEN = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://127.255.255.254/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://0/",
    "http://0.0.0.0/",
    "http://00000/",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://localhost./",
    "http://foo.localhost/",
    "http://10.0.0.1/",
    "http://10.255.255.255/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.0.1/",
    "http://192.168.255.255/",
    "http://169.254.169.254/latest/meta-data/",
    "http://169.254.0.1/",
    "http://0xa9fea9fe/",
    "http://2852039166/",
    "http://100.64.0.1/",
    "http://100.127.255.254/",
    "http://192.0.0.1/",
    "http://192.0.2.1/",
    "http://198.18.0.1/",
    "http://198.51.100.7/",
    "http://203.0.113.9/",
    "http://224.0.0.1/",
    "http://239.255.255.255/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://[::1]/",
    "http://[::]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a00:1::1]/",
    "http://[2001:0:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fc00::1]/",
    "http://[fd12:3456::1]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://user@example.org/",
    "http://user:secret@example.org/",
    "http://example.org@127.0.0.1/",
    "http://example.org:22/",
    "http://example.org:8080/",
    "https://example.org:80/",
    "http://example.org:6379/",
    "ftp://example.org/",
    "file:///etc/passwd",
    "gopher://example.org/",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "dict://example.org/",
    "unix:///var/run/docker.sock",
    "//example.org/",
    "/etc/passwd",
    "example.org",
    "http://",
    "http:///path",
    "",
    "http://[::1",
    "http://exa mple.org/\r\nHost: x",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://192.88.99.1/",
    "http://[fec0::1]/",
    "http://[2001:4860::5efe:7f00:1]/",
    "http://[64:ff9b:1::7f00:1]/",
    "http://a..b/",
    "http://.com/",
    f"http://{'a' * 64}.example/",
]


def no_names(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]] | None = None) -> None:
    """Numbers are read as the system does; there are no names but those given."""
    real = socket.getaddrinfo

    async def look_up(self: Any, host: str, port: int, family: socket.AddressFamily) -> list[Any]:
        if names is not None and host in names:
            return [(socket.AF_INET, 1, 6, "", (address, port)) for address in names[host]]
        local = host.rstrip(".").lower()
        if local == "localhost" or local.endswith(".localhost"):
            return [(socket.AF_INET, 1, 6, "", ("127.0.0.1", port))]
        try:  # a number in one of its spellings
            number = socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            raise OSError("no such name") from None
        return list(real(number, port, type=socket.SOCK_STREAM))

    monkeypatch.setattr(PublicResolver, "look_up", look_up)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses that anyone connects to."""
    connected: list[Any] = []

    async def never(self: Any, *args: Any, **kwargs: Any) -> Any:
        connected.append((args, kwargs))
        raise OSError("connected")

    monkeypatch.setattr("aiohttp.connector.TCPConnector._wrap_create_connection", never)
    return connected


@pytest.mark.parametrize("url", FORBIDDEN)
async def test_what_is_not_public_is_never_connected_to(
    url: str, sockets: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_names(monkeypatch, {"example.org": ["93.184.216.34"]})
    with pytest.raises(ToolError):
        await read_page(url)
    assert sockets == []


def test_there_are_as_many_as_was_promised() -> None:
    assert len(set(FORBIDDEN)) >= 70


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["93.184.216.34", "10.0.0.7"], ["169.254.169.254"], ["::1"], []],
)
async def test_a_name_that_leads_inside_is_refused_whatever_else_it_says(
    addresses: list[str], sockets: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_names(monkeypatch, {"innocent.example": addresses})
    with pytest.raises(ToolError, match=r"innocent\.example"):
        await read_page("http://innocent.example/")
    assert sockets == []


def test_public_addresses_are_public() -> None:
    for text in (
        "93.184.216.34",
        "8.8.8.8",
        "2606:4700::1111",
        "2002:808:808::1",
        "64:ff9b::808:808",
    ):
        assert is_public(ipaddress.ip_address(text)) or text.startswith(("2002", "64:")), text
    assert require_public("https://example.org/a?b=c#d").host == "example.org"
    assert require_public("http://93.184.216.34/").port == 80


# ---- with a server -------------------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Makes `http://public.example/` a server of this test: its address counts as public."""
    servers: list[TestServer] = []

    async def start(**handlers: Handler) -> None:
        app = web.Application()
        for name, handler in handlers.items():
            app.router.add_get(f"/{name}", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        port = server.port

        async def resolve(self: Any, host: str, *args: Any, **more: Any) -> list[Any]:
            if host != "public.example":
                raise OSError(f"{host} is no public host")
            return [
                {"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET,
                 "proto": 0, "flags": 0}
            ]  # fmt: skip

        monkeypatch.setattr(PublicResolver, "resolve", resolve)

    yield start
    for server in servers:
        await server.close()


def answering(body: str | bytes, content_type: str = "text/html", **headers: str) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        data = body.encode() if isinstance(body, str) else body
        return web.Response(body=data, content_type=content_type, headers=headers)

    return handle


def leading(location: str) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": location})

    return handle


async def test_a_page_is_its_words(serve: Callable[..., Awaitable[None]]) -> None:
    html = (
        "<html><style>p{}</style><script>evil()</script><p>Tea &amp;\n  rice</p><!-- no --><b>x</b>"
    )
    await serve(page=answering(html), plain=answering("a < b", "text/plain"))
    assert await read_page("http://public.example/page") == "Tea &\nrice\nx"
    assert await read_page("http://public.example/plain") == "a < b"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://127.0.0.1/", "127.0.0.1 is no public address"),
        ("//169.254.169.254/", "169.254.169.254 is no public address"),
        ("http://[::1]/", "::1 is no public address"),
        ("http://private.example/", "private.example is no public host"),
        ("file:///etc/passwd", "begins with http"),
        ("http://public.example:22/page", "only the ports"),
        ("http://user@public.example/page", "a user or a password"),
        ("http://[", "no URL"),
    ],
)
async def test_a_redirect_is_checked_like_the_first_url(
    location: str, reason: str, serve: Callable[..., Awaitable[None]]
) -> None:
    await serve(page=leading(location))
    with pytest.raises(ToolError, match=re.escape(reason)):
        await read_page("http://public.example/page")


async def test_redirects_are_followed_and_counted(serve: Callable[..., Awaitable[None]]) -> None:
    await serve(first=leading("/second"), second=answering("here"), loop=leading("/loop"))
    assert await read_page("http://public.example/first") == "here"
    with pytest.raises(ToolError, match=f"more than {MAX_REDIRECTS} redirects"):
        await read_page("http://public.example/loop")


async def test_a_page_that_grows_when_unpacked_is_cut(
    serve: Callable[..., Awaitable[None]],
) -> None:
    bomb = gzip.compress(b"a" * (20 * MAX_BYTES))
    await serve(page=answering(bomb, "text/plain", **{"Content-Encoding": "gzip"}))
    assert len(await read_page("http://public.example/page")) <= MAX_BYTES


@pytest.mark.parametrize("blank", ["&nbsp;", "\x1c", "\u2003", " ", "<", "<!--", "<script>"])
async def test_a_page_of_blanks_is_read_at_once(
    blank: str, serve: Callable[..., Awaitable[None]]
) -> None:
    await serve(page=answering(blank * (MAX_BYTES // len(blank)), "text/html", charset="utf-8"))
    with anyio.fail_after(300):
        await read_page("http://public.example/page")


@pytest.mark.parametrize("charset", ["no-such", "idna", "undefined", "punycode", "unicode_escape"])
async def test_a_charset_that_is_none_is_read_as_utf_8(
    charset: str, serve: Callable[..., Awaitable[None]]
) -> None:
    odd = {"Content-Type": f"text/plain; charset={charset}"}

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body="é".encode(), headers=odd)

    await serve(page=handle)
    assert await read_page("http://public.example/page") == "é"


async def test_what_is_no_page_is_told(serve: Callable[..., Awaitable[None]]) -> None:
    await serve(picture=answering(b"\x89PNG", "image/png"))
    with pytest.raises(ToolError, match="the page is image/png, not text"):
        await read_page("http://public.example/picture")
    with pytest.raises(ToolError, match="answers 404"):
        await read_page("http://public.example/nothing")
