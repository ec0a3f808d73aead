"""Train an agent synchronously: generate, train, push, again (the same parts as train_async.py)."""

import sys

try:
    from agentrl.cli.train import main
except ModuleNotFoundError as error:
    sys.exit(f"this Python lacks {error.name}: run `make setup`, then `source .venv/bin/activate`")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], program="train"))
