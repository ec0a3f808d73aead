"""Train an agent asynchronously: `python train_async.py --async-buffer-size 4`."""

import sys

try:
    from agentrl.cli.train import main
except ModuleNotFoundError as error:
    sys.exit(f"this Python lacks {error.name}: run `make setup`, then `source .venv/bin/activate`")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], program="train_async"))
