"""`train_async.py`, whose engines sample with the weights of LAG iterations ago.

    python -m benchmarks.lagged LAG [flags of train_async.py]

Nothing but the learner's command is another one: see `benchmarks.lagged_learner`. A lag of 0 is
the run as it is.
"""

import os
import sys
import time
from functools import partial
from typing import Any

import msgspec

from agentrl.algorithms.load import check_algorithm
from agentrl.cluster.host import ProcessOrder
from agentrl.cluster.launch import launch
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.own_ray import import_ray
from agentrl.cluster.spec import RunSpec
from agentrl.config.resolve import read
from agentrl.config.validate import validate
from agentrl.errors import AgentRLError
from benchmarks import ROOT

__all__ = ["lagged_order", "main"]


def lagged_order(order: ProcessOrder, lag: int) -> ProcessOrder:
    """The order of a learner with a lag; any other as it is."""
    if order.kind != "learner":
        return order
    words = order.argv[order.argv.index("agentrl.cluster.roles") + 1 :]
    argv = (sys.executable, "-m", "benchmarks.lagged_learner", str(lag), *words)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return msgspec.structs.replace(order, argv=argv, env={**order.env, "PYTHONPATH": path})


def _plan(lag: int, *words: Any) -> tuple[RunSpec, list[ProcessOrder]]:
    spec, orders = plan_processes(*words)
    return spec, [lagged_order(order, lag) for order in orders]


def main(argv: list[str]) -> int:
    """Run to the end; returns the exit code, as `train_async.py` has it."""
    began = time.monotonic()
    try:
        found = read(argv[1:], "train_async")
        for note in found.notes + validate(found.config, found.said):
            print(note, flush=True)
        check_algorithm(found.config, found.said)
    except AgentRLError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    import_ray()
    return launch(found.config, began, plan=partial(_plan, int(argv[0])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
