# What a person runs in a checkout. The environment is made on first use, from environment.cpu.lock (tools/environment.sh).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help env demo test lint

# A CPU rank's settings (docs/upstream.md): page faults otherwise cost most of a step's time, and two OpenMP threads on
# two busy cores are slower than one. Tests are about the CPU, whatever the machine has.
export MALLOC_MMAP_THRESHOLD_ := 4000000000
export MALLOC_TRIM_THRESHOLD_ := 4000000000
export OMP_NUM_THREADS := 1
test: export CUDA_VISIBLE_DEVICES :=

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 8

env: ## make the environment if needed; the last line is the path of its Python
	@./tools/environment.sh

demo: ## the whole story on a CPU; options in ARGS, such as ARGS='--quick'
	@exec ./bin/el demo $(ARGS)

test: ## lint, then the fast tests, whatever lint says; options for pytest in ARGS
	@failed=0; $(MAKE) --no-print-directory lint || failed=1; \
	python="$$(./tools/environment.sh)"; "$$python" -m pytest $(ARGS) || failed=1; \
	exit "$$failed"

lint: ## style, types, imports between modules, shell scripts, locks
	@python="$$(./tools/environment.sh)"; lint="$$(./tools/environment.sh lint)"; tools="$${lint%/python}"; failed=; \
	check() { "$$@" || failed="$$failed $${1##*/}"; }; \
	check "$$tools/ruff" check; \
	check "$$tools/ruff" format --check; \
	check "$$tools/mypy" --strict; \
	check "$$tools/lint-imports" --no-logo; \
	check "$$tools/shellcheck" bin/el tools/*.sh .ci/run deploy/slurm/*.sbatch; \
	check "$$python" entrypoint.py lock check; \
	if [ -n "$$failed" ]; then printf 'lint failed:%s\n' "$$failed" >&2; exit 1; fi
