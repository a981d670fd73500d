# Every target sets up what it needs: Python >= 3.10 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test slow check site results format bench clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): about two minutes, and 5.5 GB for torch"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready  ## train a small model on digits: a table, a curve, an attention picture, in a minute
	$(BIN)/inline train

test: $(VENV)/.ready  ## run the tests
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --quiet

slow: $(VENV)/.ready  ## the tests that take long: every published model exported
	$(BIN)/python -m pytest --numprocesses 2 --quiet -m slow

check: $(VENV)/.ready  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

site: $(VENV)/.ready  ## build the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

results: $(VENV)/.ready  ## docs/results.md and its figures, again from the stored records
	$(BIN)/inline reproduce --from benchmarks/results/reproduce.json --out docs

format: $(VENV)/.ready  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready  ## measure everything against its rivals; writes benchmarks/results/
	for bench in layer models resolution stream dense export; do $(BIN)/inline bench $$bench --out benchmarks/results || exit 1; done

clean:  ## take away what the targets made
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache
