# Two commands do everything on a bare machine (Python 3.11, gcc): `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
EXTRAS := dev,nvflare,postgres,sqlite,exact,monitor,web,frames,plots,docs
STAMP := $(VENV)/.installed
PYTEST := $(PY) -m pytest -q
OUT ?= runs/demo
export PYTHONWARNINGS ?= default
# Bytecode is written once and read by every process after, also where the caller's environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

UNIT := -m "not slow and not e2e and not paper"
E2E := -m "e2e and not slow" tests/e2e --ignore-glob='*/test_browser*.py'
NODE_EXTRAS := nvflare,exact,postgres,sqlite,monitor

.PHONY: odbc bench-user outputs pictures unit-papers golden lowest dist wheelhouse sbom demo test test-load docs-check test-all unit lint e2e browser screenshot papers papers-full bench docs setup report clean rehearsal

# make setup LOCKED=1 installs the versions of uv.lock: the ones that were tested together.
setup: $(STAMP)

$(STAMP): pyproject.toml papers/pyproject.toml Makefile
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --upgrade pip uv
	@test -z "$(LOCKED)" || $(BIN)/uv export --quiet --frozen --no-emit-project --no-hashes --all-extras --output-file $(VENV)/locked.txt
	@$(BIN)/uv pip install --quiet --python $(PY) $(if $(LOCKED),--constraint $(VENV)/locked.txt) -e ".[$(EXTRAS)]" -e papers || $(PY) -m pip install --quiet -e ".[$(EXTRAS)]" -e papers
	@$(BIN)/polyclinic warm
	@touch $(STAMP)

# The main job: hospitals learn phenotypes together; ends with the path of the report.
demo: setup
	@rm -rf $(OUT)
	@$(BIN)/polyclinic demo --out $(OUT) $(if $(DATA),--data $(DATA))

test: setup odbc lint unit-papers e2e browser docs-check

# Both stages in one run: the files are collected and the kernels are loaded once.
unit-papers: setup
	$(PYTEST) -n 2 --dist loadfile -m "not slow and not e2e"

# Unit and end-to-end stages on a busy machine, in another order each time: make test-load SEED=3 repeats an order.
SEED ?= $(shell date +%s)
test-load: setup
	@echo "test order: SEED=$(SEED)"
	$(PY) benchmarks/busy.py 8 $(PYTEST) --shuffle $(SEED) -n 2 --dist loadfile $(UNIT)
	$(PY) benchmarks/busy.py 8 $(PYTEST) --shuffle $(SEED) $(E2E)

lint: setup
	$(BIN)/ruff check src papers tests benchmarks examples
	$(BIN)/ruff format --check src papers tests benchmarks examples
	$(BIN)/mypy src/polyclinic papers/src/polyclinic_papers examples tests papers/tests
	$(BIN)/lint-imports --no-cache
	$(PY) benchmarks/plain.py

unit: setup
	$(PYTEST) -n 2 --dist loadfile $(UNIT)

e2e: setup
	$(PYTEST) $(E2E)

# An ODBC driver for its test: installed from Debian when missing and possible; the test skips with a reason where it is not.
odbc:
	@odbcinst -q -d -n SQLite3 >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq unixodbc libsqliteodbc >/dev/null; }; } || true

# A real browser and the report's font: installed from Debian when missing and possible; the tests skip with a reason where it is not.
browser: setup
	@{ command -v chromedriver && fc-list | grep -qi "inter[-/:]"; } >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver fonts-inter >/dev/null; }; } || true
	$(PYTEST) -m "e2e and not slow" tests/e2e/test_browser*.py

# The diagrams of the guide pages: each is drawn by a script, and a test compares the files.
pictures: setup
	@for s in architecture federation diagrams; do $(PY) docs/images/$$s.py; done

# What the code blocks of the tutorials print, written into the pages; and the notebooks, run again in place.
outputs: setup
	POLYCLINIC_WRITE_OUTPUTS=1 $(PYTEST) tests/test_docs.py -k tutorials
	$(PY) docs/notebooks/make.py

# The picture of the report in the README, from a run of the demo.
screenshot: setup
	@test -f $(OUT)/metrics.json || $(MAKE) demo
	@$(BIN)/polyclinic report $(OUT)
	@$(PY) docs/images/screenshot.py $(OUT)/report.html docs/images/report.png

papers: setup
	$(PYTEST) -n 2 -m "paper and not slow" $$(grep -rl --include='*.py' 'mark\.paper' tests) papers/tests

# Every experiment in full (hours; goes on where it was), and the page of results in the docs.
papers-full: setup
	$(BIN)/polyclinic papers run all
	$(BIN)/polyclinic papers report --to docs/papers/results.md

test-all: setup lint
	@command -v Rscript >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends r-base-core r-cran-reticulate >/dev/null; }; } || true
	$(PYTEST) -m ""

bench: setup
	@$(BIN)/uv pip install --quiet --python $(PY) -e ".[bench]" || $(PY) -m pip install --quiet -e ".[bench]"
	$(PY) benchmarks/goals.py
	$(PY) benchmarks/auc_coverage.py
	$(PY) benchmarks/run.py --cpu

docs: setup
	@$(BIN)/uv pip install --quiet --python $(PY) -e ".[docs]" || $(PY) -m pip install --quiet -e ".[docs]"
	$(PY) -m sphinx -W --keep-going -b html docs docs/_build/html

# Every page, link and docstring with warnings as errors; the examples of the gallery run in `make docs`.
docs-check: setup
	@rm -rf docs/reference/api docs/_build/check
	$(PY) -m sphinx -q -W --keep-going -b dummy -D sphinx_gallery_conf.plot_gallery=False docs docs/_build/check

# A coordinator and three hospitals as separate processes with mutual TLS on loopback; one study of each kind.
rehearsal: setup
	$(PY) examples/rehearsal/run.py runs/rehearsal

# Wheel and sdist; the wheel is installed in a bare environment and used without the source tree; then its parts list.
dist: setup
	@rm -rf dist/*.whl dist/*.tar.gz
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/uv build --quiet --out-dir dist papers
	$(PY) deploy/try_wheel.py dist
	$(MAKE) sbom

# CycloneDX: what a node with every extra it can need is made of, from an environment that holds nothing else.
sbom: setup
	@$(PY) deploy/sbom.py dist/polyclinic.cdx.json "$(NODE_EXTRAS)"

# Every wheel that a node needs, for a machine without a network: pip install --no-index --find-links wheelhouse 'polyclinic[...]'
wheelhouse: setup
	@rm -rf dist/wheelhouse
	@$(PY) -m pip wheel --quiet --wheel-dir dist/wheelhouse ".[$(NODE_EXTRAS)]"
	$(PY) deploy/try_wheelhouse.py dist/wheelhouse "$(NODE_EXTRAS)"

clean:
	rm -rf runs docs/_build .pytest_cache .mypy_cache .ruff_cache

# The bits of every method's result, against the recording (same processor and library versions only).
golden: setup
	$(PY) benchmarks/golden.py compare benchmarks/golden.json

# Would a test notice? 200 small faults in release gate, ledger and accountant, 300 in these with secure sums and the update (about an hour of processor).
mutants: setup
	$(PY) benchmarks/mutants.py --sample 200 --seed 1
	$(PY) benchmarks/mutants.py --sample 300 --seed 2 --guards

# The lowest versions that pyproject.toml allows, in an environment of their own, and what they break.
lowest: setup
	@rm -rf dist/lowest && $(BIN)/uv venv --quiet --python $(PYTHON) dist/lowest
	@$(BIN)/uv pip install --quiet --python dist/lowest/bin/python --resolution lowest-direct ".[$(NODE_EXTRAS),web,frames,plots]" ./papers
	@$(BIN)/uv pip install --quiet --python dist/lowest/bin/python pytest hypothesis pytest-timeout psutil httpx2
	PYTHONPATH=src:papers/src dist/lowest/bin/python -m pytest -q -m "not slow and not e2e and not paper" $(LOWEST)

LOWEST ?= tests/tensors tests/records/sites tests/records tests/protocol tests/privacy tests/methods tests/methods/similarity tests/methods/mixtures tests/web

# Seconds from command to answer, with what the time goes into. Another checkout runs in turn: make bench-user AGAINST=../older
bench-user: setup
	$(PY) benchmarks/waiting.py --profile $(if $(AGAINST),--against $(AGAINST))
