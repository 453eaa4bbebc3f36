# Two commands for users: `make demo` and `make test`. Each sets up everything it needs.
PY := .venv/bin/python

.PHONY: demo test slow test-all check fuzz setup bless
setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[rl,torch,nest,llm,dev]"
	touch .venv/ready

demo: .venv/ready
	$(PY) examples/reinforce.py

test: .venv/ready
	$(PY) -m pytest -n 2 --dist worksteal -m "not fuzz and not slow"

slow: .venv/ready
	$(PY) -m pytest -n 2 --dist worksteal -m "slow and not fuzz"

test-all: test slow

check: .venv/ready
	.venv/bin/ruff format --check src tests examples benchmarks
	.venv/bin/ruff check src tests examples benchmarks
	.venv/bin/pyright
	.venv/bin/lint-imports
	$(MAKE) test

fuzz: .venv/ready
	PROGRAMS=$(PROGRAMS) SEED=$(SEED) $(PY) -m pytest -n 2 --dist worksteal -m fuzz $(TESTS)

bless: .venv/ready
	RECURRA_BLESS=1 $(PY) -m pytest tests
