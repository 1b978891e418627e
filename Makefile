# Corral. `make demo` shows it at work; `make test` runs all that CI runs.
VENV := .venv
BIN := $(VENV)/bin
LANES := --numprocesses 2 --dist loadfile
LOCK := uv pip compile --quiet --no-header --no-annotate --generate-hashes --no-emit-index-url \
	--no-emit-find-links --python-version 3.11

.PHONY: setup demo test test-all removals conformance check lint style types units bench bench-short lock clean

setup:
	@scripts/setup

demo: setup
	@scripts/demo

# Two files of tests side by side, each with a daemon of its own: one alone leaves half of two processors idle.
test: setup lint
	@tests/conformance/setup
	$(BIN)/pytest $(LANES)

# The same, with each operation cut at every one of its steps, and with every defence taken away once: hours.
test-all: setup lint
	@tests/conformance/setup
	CORRAL_POINTS=all $(BIN)/pytest $(LANES)
	$(BIN)/pytest -p no:cacheprovider tests/removals/carry_out.py

# Each attack of `corral self-test` succeeds on a copy of src without the defence that stops it: a quarter of an hour. ONLY=WORDS
# takes those defences whose words these are, as pytest's -k.
removals: setup
	$(BIN)/pytest -p no:cacheprovider tests/removals/carry_out.py -k "$(ONLY)"

# E2B's own SDKs, and what is built on them, against a daemon of this tree; SUITE=PATH: the suites of an E2B checkout at PATH.
conformance: setup
ifdef SUITE
	@tests/conformance/suite $(SUITE)
else
	@tests/conformance/setup
	$(BIN)/pytest -q tests/conformance
	$(BIN)/python tests/conformance/frameworks.py install
	@tests/conformance/e2b_daemon $(BIN)/python tests/conformance/frameworks.py try
endif

# Types and unit tests take as long as each other: side by side.
check: setup style
	@$(MAKE) --no-print-directory -j2 --output-sync=target types units

lint: style types

style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types:
	$(BIN)/mypy

units:
	$(BIN)/pytest -q tests/unit

bench:
	@scripts/setup --bench
	$(BIN)/python -m bench

bench-short:
	@scripts/setup --bench
	$(BIN)/python -m bench --short

# Needs uv, which asks the package index that it is set up for.
lock:
	$(LOCK) -o requirements.lock pyproject.toml
	$(LOCK) --extra dev -o requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
