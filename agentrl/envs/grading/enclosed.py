"""What stands between two marks of a text, in time linear in its length.

A regular expression such as `<answer>(.*?)</answer>` looks for the end again at each opening mark:
a text of many openings and no end, which a policy may write, takes time quadratic in its length.
"""

from collections.abc import Iterator

__all__ = ["enclosed", "last_enclosed"]


def enclosed(text: str, opening: str, closing: str) -> Iterator[str]:
    """What each pair of marks holds, from left to right: an opening, then the first closing after
    it. A further opening within a pair is text."""
    end = 0
    while (start := text.find(opening, end)) >= 0:
        start += len(opening)
        if (stop := text.find(closing, start)) < 0:
            return
        yield text[start:stop]
        end = stop + len(closing)


def last_enclosed(text: str, opening: str, closing: str) -> str | None:
    """What the last such pair holds, or None where there is none."""
    last = None
    for found in enclosed(text, opening, closing):
        last = found
    return last
