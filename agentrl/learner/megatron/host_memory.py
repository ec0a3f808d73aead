"""Memory of the host: what a step frees stays with the process, for the next step.

A step on a CPU allocates tensors of tens of megabytes. The C library gives each back to the kernel
when it is freed, and every page of the next one is a fault: a seventh of a step's time was that.
"""

import ctypes
import logging

__all__ = ["keep_freed_memory"]

log = logging.getLogger(__name__)

#: Parameters of glibc's mallopt (malloc.h): the top of the heap is trimmed above this many bytes,
#: and larger allocations than this are mapped, each alone.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = 2**31 - 1, 2**28


def keep_freed_memory() -> bool:
    """Ask the C library to keep it; whether it does. Another one than glibc is left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    is_kept = all([mallopt(_TRIM_THRESHOLD, _NEVER), mallopt(_MMAP_THRESHOLD, _LARGEST)])
    log.debug("freed memory is %s", "kept" if is_kept else "given back")
    return is_kept
