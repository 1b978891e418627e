# Corral. `make demo` shows it at work; `make test` runs all that CI runs.
VENV := .venv
BIN := $(VENV)/bin
LOCK := uv pip compile --quiet --no-header --no-annotate --generate-hashes --no-emit-index-url \
	--no-emit-find-links --python-version 3.11

.PHONY: setup demo test check lint bench bench-short lock clean

setup:
	@scripts/setup

demo: setup
	@scripts/demo

test: setup lint
	$(BIN)/pytest

check: setup lint
	$(BIN)/pytest -q tests/unit

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

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
