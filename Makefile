PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow test-documents fuzz lint bench docs clean

demo: $(INSTALLED) ## set up, run the main job, end with a report to open
	$(BIN)/sidestep demo

test: $(INSTALLED) ## set up and run the tests, but for the slow ones
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(INSTALLED) ## the slow ones: whole campaigns, plans, kills, the paper's experiments, odd inputs by the thousand
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow

test-documents: $(INSTALLED) ## the code of README, docs and notebooks
	$(BIN)/pytest -n 2 -m slow tests/test_documents.py

fuzz: $(INSTALLED) ## ten thousand odd inputs of every kind; counts in benchmarks/results/fuzz.md
	$(BIN)/python benchmarks/fuzz.py --again

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED) ## the documentation site, strictly: a warning fails; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(INSTALLED)
	$(BIN)/python benchmarks/rollout.py --quick --again

clean:
	rm -rf $(VENV) .pytest_cache .hypothesis .mypy_cache .ruff_cache

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || (echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)
