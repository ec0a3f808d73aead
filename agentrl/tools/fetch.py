"""`fetch`: a page of the public web as text, and nothing of any other network.

    URL checked -> name resolved, every address checked -> connected to those -> redirect? again

Whoever writes the URL is the policy, or a page that it has read. So only `http` and `https` on
their own ports are spoken, no name or number may lead to an address that is not public (this host,
the machines beside it, the cloud's metadata), and what was checked is what is connected to: the
name is not looked up a second time. Each redirect is checked like the first URL. Proxies and
credentials of this process are not used. Sizes count after decompression.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import aiohttp
import anyio.to_thread
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agentrl.tools.tool import ToolError, tool

__all__ = ["MAX_BYTES", "MAX_REDIRECTS", "PublicResolver", "fetch", "is_public", "require_public"]

#: Bytes of a page that are read; more is cut off.
MAX_BYTES = 512 * 1024
MAX_REDIRECTS = 5
#: Seconds of one request.
TIMEOUT_S = 20.0

_PORTS = {"http": 80, "https": 443}
#: Addresses in which another one hides: what it says is checked as well.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: What this Python takes for global and is not, and addresses that clouds give to their own hosts.
_INSIDE = [
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "168.63.129.16/32",
        "fec0::/10",
        "64:ff9b:1::/48",
    )
]
#: The low half of an address that carries an IPv4 one (ISATAP): 0000:5efe or 0200:5efe.
_ISATAP = (0x00005EFE, 0x02005EFE)
_TEXT = re.compile(r"^(text/|application/(json|xml|xhtml\+xml))")
_UNSEEN = re.compile(r"<(script|style|noscript)\b.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)", re.S | re.I)
_TAG = re.compile(r"<[^<>]*>")
_NUMERIC = re.compile(r"[0-9.]*|0[xX].*")
#: Charsets that are no encoding of text, or are made to be slow.
_NO_CHARSET = re.compile(r"idna|punycode|undefined|.*escape.*", re.I)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@tool(timeout_s=4 * TIMEOUT_S, max_output_bytes=16_384, parallel=True, max_concurrency=16)
async def fetch(url: str) -> str:
    """Read a page of the web as text.

    Args:
        url: where it is, as in https://example.org/page
    """
    return await read_page(url)


async def read_page(url: str) -> str:
    """The text of a public page. Raises ToolError, in words for the model, where there is none."""
    connector = aiohttp.TCPConnector(resolver=PublicResolver(), limit=4)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=jar, trust_env=False
    ) as session:
        target = require_public(url)
        for _ in range(MAX_REDIRECTS + 1):
            try:
                async with session.get(target, allow_redirects=False) as answer:
                    if answer.status not in (301, 302, 303, 307, 308):
                        return await _read(answer)
                    location = answer.headers.get("Location", "")
            except TimeoutError:
                raise ToolError(f"{target.host} did not answer within {TIMEOUT_S:g} s") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise ToolError(f"{target.host} cannot be read: {_words(error)}") from None
            target = require_public(_joined(target, location))
    raise ToolError(f"more than {MAX_REDIRECTS} redirects")


def require_public(url: "str | URL") -> URL:
    """The URL, if it may be asked for as far as it can be known before its name is resolved. Raises
    ToolError with the reason."""
    try:
        parsed = URL(url) if isinstance(url, str) else url
        host, port = parsed.host, parsed.port
    except (ValueError, TypeError, UnicodeError):
        raise ToolError("that is no URL") from None
    if parsed.scheme not in _PORTS:
        raise ToolError("a URL begins with http:// or https://")
    if not host:
        raise ToolError("the URL names no host")
    if parsed.user is not None or parsed.password is not None:
        raise ToolError("a URL with a user or a password is not fetched")
    if port != _PORTS[parsed.scheme]:
        raise ToolError(f"only the ports {sorted(_PORTS.values())} are fetched from, not {port}")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        if _NUMERIC.fullmatch(host):
            raise ToolError(f"{host} is no name, and no address as they are written") from None
        return parsed  # a name: what it leads to is checked by the resolver
    if "%" in host or not is_public(address):
        raise ToolError(f"{host} is no public address")
    return parsed


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet, whatever it is wrapped in."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if not all(is_public(hidden) for hidden in inner if hidden is not None):
            return False
    if any(address in network for network in _INSIDE if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class PublicResolver(AbstractResolver):
    """Names to addresses, all of which must be public; one that is not refuses the name."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """See aiohttp. Raises OSError."""
        try:
            found = await self.look_up(host, port, family)
        except UnicodeError:  # of a label that is empty or too long
            raise OSError(f"{host} is no name of a host") from None
        results = []
        for kind, _, protocol, _, place in found:
            text = str(place[0])
            if "%" in text or not is_public(ipaddress.ip_address(text)):
                raise OSError(f"{host} is no public host")
            results.append(
                ResolveResult(
                    hostname=host,
                    host=text,
                    port=port,
                    family=kind,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST,
                )
            )
        if not results:
            raise OSError(f"{host} has no address")
        return results

    async def look_up(self, host: str, port: int, family: socket.AddressFamily) -> list[Any]:
        """What the system says of a name."""
        loop = asyncio.get_running_loop()
        return list(await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM))

    async def close(self) -> None:
        """Nothing is held."""


async def _read(answer: aiohttp.ClientResponse) -> str:
    if answer.status != 200:
        raise ToolError(f"{answer.url.host} answers {answer.status}")
    if not _TEXT.match(answer.content_type):
        raise ToolError(f"the page is {answer.content_type}, not text")
    body = b"".join([chunk async for chunk in _up_to(answer, MAX_BYTES)])
    is_html = "html" in answer.content_type
    return await anyio.to_thread.run_sync(_text, body, answer.charset or "utf-8", is_html)


def _text(body: bytes, charset: str, is_html: bool) -> str:
    """A page as text. Runs in a thread: a large one would hold up every other episode."""
    try:
        text = body.decode("utf-8" if _NO_CHARSET.fullmatch(charset) else charset, "replace")
    except (LookupError, ValueError):  # a charset that nobody knows
        text = body.decode("utf-8", "replace")
    return _readable(text) if is_html else text


async def _up_to(answer: aiohttp.ClientResponse, num_bytes: int) -> AsyncIterator[bytes]:
    async for chunk in answer.content.iter_chunked(64 * 1024):
        yield chunk[:num_bytes]
        num_bytes -= len(chunk)
        if num_bytes <= 0:
            return


def _readable(html: str) -> str:
    """The words of a page, roughly as they are shown."""
    text = unescape(_TAG.sub("\n", _UNSEEN.sub("", html)))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def _joined(base: URL, location: str) -> URL:
    try:
        return base.join(URL(location))
    except (ValueError, TypeError, UnicodeError):
        raise ToolError(f"{base.host} leads to what is no URL") from None


def _words(error: Exception) -> str:
    """An error on one line, without what a connector adds to it."""
    inner = getattr(error, "os_error", None) or error
    return " ".join(str(inner).split())[:200] or type(error).__name__
