# Chelonia's tasks. `make` alone lists them.
#
# Nothing here needs activating an environment: everything runs out of .venv, which is brought up to date first whenever
# setup.py, pyproject.toml, constraints.txt or the scripts have changed.

SHELL := /bin/sh
BIN := .venv/bin
PY := $(BIN)/python

# What `make check` looks at; fuse/ where there is one.
SHIPPED := chelonia clients/chelonia_clients $(wildcard fuse/chelonia_fuse)
SOURCES := setup.py chelonia clients tests $(wildcard fuse bench demo)

INSTALL_INPUTS := setup.py pyproject.toml constraints.txt scripts/install scripts/system-packages \
	$(wildcard fuse/chelonia_fuse/__init__.py)

SEEDS ?= 1..200
ARGS ?=
# Processes that run tests, a file at a time; the first begins with the real clusters, which mostly wait. 0: all in one.
JOBS ?= 3

.DEFAULT_GOAL := help
.PHONY: help install install-test demo test check format ratchet sim replicas honest powercut upgrade hosts grid conform conform-s3 s3-clients s3-faults doors mounted browser check-history bench deb constraints clean
# Both stamps write the same environment; and checks before tests, even under -j.
.NOTPARALLEL:

help: ## list the tasks
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-14s %s\n", $$1, $$2}'

install: .venv/.installed ## make .venv/bin/chelonia and .venv/bin/cheloniad, with all they need

install-test: .venv/.installed-test ## the same, and what checks and tests need

demo: .venv/.installed ## start a cluster, fill it, damage it, watch it heal (FULL=1: the paper's sizes)
	$(PY) demo/run.py $(ARGS)

test: check ## all checks, then all tests (ARGS: for pytest; JOBS: processes)
	$(PY) -m pytest --numprocesses $(JOBS) --dist loadscope --no-loadscope-reorder --durations 15 $(ARGS)

check: .venv/.installed-test ## format, lint, types, import law, sizes
	$(PY) -m ruff format --check --quiet $(SOURCES) || { $(PY) -m ruff format --diff --quiet $(SOURCES); exit 1; }
	$(PY) -m ruff check --quiet $(SOURCES)
	$(PY) -m mypy --strict $(SHIPPED)
	$(BIN)/lint-imports --no-cache
	$(PY) tests/unit/test_size_ratchet.py check

format: .venv/.installed-test ## format the code and repair what the linter can
	$(PY) -m ruff format $(SOURCES)
	$(PY) -m ruff check --fix $(SOURCES)

ratchet: .venv/.installed-test ## tighten the size ratchet to what the code has reached
	$(PY) tests/unit/test_size_ratchet.py tighten

sim: .venv/.installed-test ## simulate whole clusters under seeds, going on where it was (SEEDS=1..200; ARGS: scenarios, --again ...)
	$(PY) -m tests.sim.campaign $(SEEDS) $(ARGS)

replicas: .venv/.installed-test ## kill, freeze and wipe replicas of the A-Hash under writers (ARGS: --kills 20 --stops 10 --hunt 0, --soak 60, --soak 10 --spin 40 --changes-max 1, or --soak 1 --starve 300 900 --waited-max 15)
	$(PY) -m tests.cluster.replicas $(ARGS)

honest: .venv/.installed-test ## damage replicas in 23 ways, to one, two and all copies, at four sizes: is what is said of health what a reader gets? (10 minutes)
	$(PY) -m pytest tests/cluster/test_honest_health.py -m "long or not long" --durations 8 $(ARGS)

powercut: .venv/.installed-test ## cut the power of real daemons under writers, on file systems that forget; as root (ARGS: --cuts 200 --seed 1)
	$(PY) -m tests.cluster.powercut $(ARGS)

upgrade: .venv/.installed-test ## replace the nodes of a cluster of another revision by this tree's, one by one, under writers (FROM=revision; ARGS: --seed 1)
	$(PY) -m tests.cluster.upgrade $(FROM) $(ARGS)

hosts: .venv/.installed-test ## hosts as network namespaces, set up by the operator's page; cut them off under writers; as root (ARGS: --rounds 2)
	$(PY) -m tests.cluster.hosts $(ARGS)

conform: .venv/.installed-test ## run clients of others at the plain door, write docs/conform.md; as root (ARGS: names of clients: no table)
	$(PY) -m tests.conform.clients $(ARGS)

mounted: .venv/.installed-test ## run suites and programs of others on a mount, some while nodes die; as root (PJDFSTEST, FSX: see the module; ARGS: names --minutes 10 --entries 100000)
	$(PY) -m tests.conform.mounted $(ARGS)

browser: .venv/.installed-test ## look at the page by share links and certificates in a real Chromium (chromium, chromium-driver, libnss3-tools)
	$(PY) -m tests.conform.browser

conform-s3: .venv/.installed-test ## run ceph/s3-tests (S3_TESTS: a checkout) against a cluster; what passed once must pass (ARGS: --all)
	$(PY) -m tests.conform.s3_tests $(ARGS)

s3-clients: .venv/.installed-test ## run clients of others at the S3 door, write docs/conform.md; as root (ARGS: names of clients: no table)
	$(PY) -m tests.conform.s3_clients $(ARGS)

s3-faults: .venv/.installed-test ## kill and freeze a Shepherd, a front end and the master of the A-Hash under boto3 (ARGS: --rounds 3 --threads 8)
	$(PY) -m tests.cluster.s3_faults $(ARGS)

doors: .venv/.installed-test ## write, read, move and list by every door at once while nodes die, against a model (ARGS: --seconds 300 --threads 5)
	$(PY) -m tests.cluster.every_door $(ARGS)

grid: .venv/.installed-test ## run grid jobs on Debian's A-REX while nodes die; as root (ARGS: --jobs 20 --rounds quiet)
	$(PY) -m tests.cluster.grid $(ARGS)

check-history: .venv/.installed-test ## record an A-Hash under faults and check it for linearizability; needs Go (ARGS)
	$(PY) -m tests.history.run $(ARGS)

bench: .venv/.installed ## measure; figures as JSON (ARGS: which, and how)
	$(PY) bench/run.py $(ARGS)

deb: .venv/.installed ## build a Debian package of client and node, in build/
	scripts/build-deb $(PY)

constraints: ## pin the newest releases that setup.py admits
	scripts/write-constraints

clean: ## remove what make has made, the environment too
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: $(INSTALL_INPUTS)
	@scripts/install server
	@touch $@

.venv/.installed-test: $(INSTALL_INPUTS)
	@scripts/install test
	@touch .venv/.installed $@
