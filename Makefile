# Every target sets up what it needs in .venv: Python >= 3.10 and make are enough.
# Another Python: make test PYTHON=python3.13 VENV=.venv313
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help demo test slow fuzz coverage check format site results bench clean

help:  ## print this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): about two minutes, and 5.5 GB for torch"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready  ## train a small model on digits: a table, curves and attention maps, in a minute
	$(BIN)/inline train

test: $(VENV)/.ready  ## run the tests in two processes, and list the skipped ones with their reasons
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --quiet -rs

slow: $(VENV)/.ready  ## run the slow tests: the largest models, all combinations of compiling and exporting, runs that are killed
	$(BIN)/python -m pytest --numprocesses 2 --quiet -rs --timeout 3600 -m slow

fuzz: $(VENV)/.ready  ## malformed inputs for all commands, for ten minutes (FUZZ_SECONDS=60, FUZZ_SEED=7); what fails is kept in build/fuzz
	$(BIN)/python -m tests.fuzz

coverage: $(VENV)/.ready  ## run the tests and report which lines they do not run
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --quiet --cov --cov-report term:skip-covered --cov-report html

check: $(VENV)/.ready  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready  ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: $(VENV)/.ready  ## build the documentation into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

results: $(VENV)/.ready  ## write docs/results.md and its figures again from the stored records
	$(BIN)/inline reproduce --from benchmarks/results/reproduce.json --out docs

bench: $(VENV)/.ready  ## measure speed and memory; writes benchmarks/results/
	for bench in layer models resolution stream dense export; do $(BIN)/inline bench $$bench --out benchmarks/results || exit 1; done

clean:  ## delete what the targets made, runs/ excepted
	rm -rf $(VENV) build dist site htmlcov .coverage .mypy_cache .pytest_cache .ruff_cache
