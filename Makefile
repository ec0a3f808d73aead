# One way to do each common thing. `make help` lists them.
VENV := .venv
BIN := $(VENV)/bin
export AGENTRL_VENV := $(VENV)
# PART=2/3 plays one of three parts of the files of tests.
export AGENTRL_TESTS_PART := $(PART)
# Two files of tests at once; what a file starts is shared by its tests, so one process plays a file.
JOBS := 2
# The order of the files is that of tests/session.py.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-runtime train quick touched test test-full test-loaded faults check warmstart bench lock flags clean

help:  ## list these targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make .venv ready to train, test and check (instant when it is)
	@scripts/setup.sh dev

setup-runtime:
	@scripts/setup.sh runtime

train: setup-runtime  ## train the default job: a search agent, on this machine
	$(BIN)/python train_async.py --async-buffer-size 4

quick: check  ## run the checks, and the unit and property tests that take a moment: three minutes
	$(PYTEST) tests/unit tests/property -m "not slow" --durations=5 --durations-min=5

touched: setup  ## run the tests that import what changed since a commit: make touched SINCE=abc1234
	@files=$$($(BIN)/python -m scripts.touched $(or $(SINCE),HEAD)) || exit 1; \
		if [ -z "$$files" ]; then echo "no test imports what changed"; else $(PYTEST) $$files; fi

test: setup  ## run the tests of the day (JOBS=2 files at once); after 78 minutes it ends and names what failed
	$(PYTEST) --session-timeout=4680

test-full: setup  ## run all tests, and every case of those of which a day plays a slice
	AGENTRL_TESTS=full $(PYTEST)

test-loaded: setup  ## run all tests beside 30 busy processes (LOAD=30 NICE=10); an hour
	$(BIN)/python scripts/loaded.py --load $(or $(LOAD),30) --nice $(or $(NICE),10) -- $(PYTEST)

faults: setup  ## end the processes of many runs in every way, thousands of times; hours
	rm -f build/faults.jsonl
	AGENTRL_FAULTS=$(or $(AGENTRL_FAULTS),full) $(BIN)/python -m pytest tests/faults; \
		result=$$?; $(BIN)/python -m tests.faults.results && exit $$result

check: setup  ## lint, format check, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

warmstart: setup  ## make a model like the one that the default job starts from, in build/warmstart
	$(BIN)/python -m scripts.default_job.build_tokenizer --output build/warmstart/tokenizer
	$(BIN)/python -m scripts.default_job.warmstart --tokenizer build/warmstart/tokenizer --output build/warmstart
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.default_job.evaluate --model build/warmstart/hf \
		--force-search --json build/warmstart/hf/scores.json
	$(BIN)/python -m scripts.default_job.model_card --model build/warmstart/hf

bench: setup  ## run a benchmark: make bench NAME=startup
	$(BIN)/python -m benchmarks.$(or $(NAME),startup)

lock: setup
	$(BIN)/python scripts/lock.py

flags: setup
	$(BIN)/python scripts/gen_flags.py
	$(BIN)/python -m scripts.from_slime
	$(BIN)/python -m scripts.from_peers
	$(BIN)/python -m scripts.reference
	$(BIN)/python -m scripts.slime_scripts.outcomes

clean:  ## remove caches and build products; runs/ and .venv stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path "./.venv*" -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
