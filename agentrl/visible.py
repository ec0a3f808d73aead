"""Text of a model, tool, task or error, as a log, a report, a terminal and a page may show it.

Line breaks and tabs stay. Every other control, format, surrogate or separator character becomes
visible: ESC as the picture of ESC, the others by their code point. What comes out can move no
cursor, change no colour, turn no line around, and is legal in XML. An address is shown without the
credentials that may stand in it.

The message of an error is user code's too: it is asked for here, and may raise whatever it likes.
"""

import re
import unicodedata

__all__ = ["error_text", "message_of", "shown_url", "shown_urls", "visible"]

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: What has to be looked at: most text has none of it.
_SUSPECT = re.compile(r"[^\n\t\x20-\x7e]")
#: Host and port, as opposed to a password with a slash in it.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(:\d*)?")

#: What stands between two addresses in one text.
_BETWEEN = re.compile(r"(\s+|,(?=[A-Za-z][\w+.-]*://))")


def visible(text: str) -> str:
    """`text` with its hidden characters shown, line breaks and tabs apart."""
    return _SUSPECT.sub(lambda found: _shown(found[0]), text)


def error_text(error: BaseException) -> str:
    """Class and message of `error`, as in `KeyError: 'x'`."""
    name, message = type(error).__name__, _message(error)
    return _unreadable(error) if message is None else f"{name}: {message}"


def message_of(error: BaseException) -> str:
    """What `error` says, or that it cannot be read."""
    message = _message(error)
    return _unreadable(error) if message is None else message


def shown_url(url: str) -> str:
    """An address without user, password, query and fragment, where a secret may stand."""
    scheme, colon, rest = url.partition("://") if "://" in url else ("", "", url)
    return visible(scheme + colon + _without_credentials(rest))


def shown_urls(text: str) -> str:
    """`text` with each address in it as `shown_url` shows it."""
    return "".join(shown_url(w) if "://" in w else w for w in _BETWEEN.split(text))


def _without_credentials(rest: str) -> str:
    """Where it cannot be told what is a password, less is shown rather than more."""
    authority, slash, path = rest.partition("/")
    if (end := re.search("[?#]", authority)) and "@" in rest[end.start() :]:
        return "[hidden]"
    host = re.split("[?#]", authority, maxsplit=1)[0].rpartition("@")[2]
    if not _HOST.fullmatch(host) and "@" in path:
        return re.split("[?#]", path.rpartition("@")[2], maxsplit=1)[0]
    return host if end else host + slash + re.split("[?#]", path, maxsplit=1)[0]


def _message(error: BaseException) -> str | None:
    try:
        return "".join([str(error), ""])  # of a subclass of str, only its characters
    except BaseException:  # an error that cannot be read may not become another one
        return None


def _unreadable(error: BaseException) -> str:
    return f"{type(error).__name__} (its message cannot be read)"


def _shown(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if unicodedata.category(character) in _HIDDEN or code & 0xFFFE == 0xFFFE:
        return f"<U+{code:04X}>"
    return character
