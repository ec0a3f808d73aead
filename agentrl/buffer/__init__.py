"""The buffer: groups from minting to their fate, durable at every step."""

from agentrl.buffer.audit import AuditReport, audit
from agentrl.buffer.core import BufferCore
from agentrl.buffer.server import run_buffer
from agentrl.buffer.settings import BufferSettings

__all__ = ["AuditReport", "BufferCore", "BufferSettings", "audit", "run_buffer"]
