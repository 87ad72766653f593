# Every target sets up what it needs: .venv is made once, packages are installed again only when pyproject.toml changes.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
OUT    ?= audit
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS := 1
export MPLBACKEND := Agg

.PHONY: help install audit claims test lint bench notebooks docs clean

help:            ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "vflaudit needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)

# one stamp per extra, so that `make audit` does not install what only the tests need
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e .
	@touch $@
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e '.[$*]'
	@touch $@ $(VENV)/.installed

install: $(VENV)/.installed           ## the package and its command line in .venv

audit: install                        ## the default audit, ending in an HTML report
	$(BIN)/vflaudit run quick --out $(OUT) --jobs $(JOBS)

claims: install                       ## verdicts on the published claims
	$(BIN)/vflaudit claims --out claims --jobs $(JOBS)

lint: $(VENV)/.installed-test         ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint                            ## lint and all tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

bench: install                        ## benchmarks: ratios measured in one run
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

notebooks: $(VENV)/.installed-notebooks   ## run all notebooks in place
	for file in notebooks/*.ipynb; do $(BIN)/jupyter execute --inplace $$file || exit 1; done

docs: $(VENV)/.installed-docs         ## the documentation as a site in site/
	$(BIN)/mkdocs build --strict --quiet

clean:                                ## remove .venv and build products
	rm -rf $(VENV) build site *.egg-info
