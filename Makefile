PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test fuzz lint bench clean

demo: $(INSTALLED) ## set up, run the main job, end with a report to open
	$(BIN)/sidestep demo

test: $(INSTALLED) ## set up and run the tests
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

fuzz: $(INSTALLED) ## ten thousand odd inputs of every kind; counts in benchmarks/results/fuzz.md
	$(BIN)/python benchmarks/fuzz.py --again

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python benchmarks/rollout.py --quick --again

clean:
	rm -rf $(VENV) .pytest_cache .hypothesis .mypy_cache .ruff_cache

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || (echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)
