"""`python -m agentrl.cli`: the same as the console script `agentrl`."""

import sys

from agentrl.cli.main import main

sys.exit(main())
