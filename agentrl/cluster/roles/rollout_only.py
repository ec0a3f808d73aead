"""The process that stands in the learner's place where nothing is trained."""

import logging
import os
import signal
import threading
from types import FrameType

import anyio

from agentrl.clock import MonotonicClock
from agentrl.cluster.layout import INCARNATION
from agentrl.cluster.roles.learner import engines_ready, router_settings
from agentrl.cluster.signals import exit_at_once
from agentrl.cluster.spec import RunSpec
from agentrl.learner.rollout_only import run_rollout_only
from agentrl.serving.key import read_key
from agentrl.serving.labels import LabelSink
from agentrl.serving.routing import RoutedWeightSink
from agentrl.wire.blocking import BlockingPeer

__all__ = ["main"]

_LOG = logging.getLogger(__name__)


def main(spec: RunSpec, name: str) -> None:
    """Take leases until the buffer has no more or SIGTERM asks for an early end."""
    stop = threading.Event()

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    anyio.run(engines_ready, spec)
    key, clock = read_key(spec.engine_key_file), MonotonicClock()
    sink = RoutedWeightSink(
        str(spec.router_url),
        spec.engines,
        lambda on_lost: LabelSink(
            spec.engines,
            timeout_s=spec.config.update_weights_timeout,
            on_lost=on_lost,
            clock=clock,
            key=key,
        ),
        key,
        **router_settings(spec.config),
    )
    connection = BlockingPeer(
        spec.buffer_address,
        role="learner",
        name=name,
        incarnation=os.environ.get(INCARNATION),
        keys=spec.peer_keys(),
        on_fenced=exit_at_once,
    )
    with connection as peer:
        end = run_rollout_only(spec.config, peer, sink, clock=clock, should_stop=stop.is_set)
    _LOG.info("%s ended: %s", name, end)
