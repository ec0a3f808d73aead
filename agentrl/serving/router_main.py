"""Main module of the router process: sglang-router's own, with the key of the run.

The router takes its key from the command line, where other users may read it; here it comes from
the file that `KEY_FILE` names. Only `launch.router_command` runs this module.
"""

import sys

from sglang_router.launch_router import launch_router, parse_router_args

from agentrl.serving.key import key_of_this_process

__all__ = ["main"]


def main(argv: list[str]) -> None:
    """Route until SIGTERM."""
    settings = parse_router_args(argv)
    settings.api_key = key_of_this_process()
    launch_router(settings)


if __name__ == "__main__":
    main(sys.argv[1:])
