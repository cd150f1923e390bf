# The two commands of the README, and what they are made of. Everything lives in .venv; nothing else is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test env dev lock clean

serve: env  ## install what is missing, fetch the models, serve them on 127.0.0.1:8000
	@exec $(BIN)/twospeed serve $(ARGS)

test: dev  ## lint, types, tests, tests on the real models
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/run.sh $(ARGS)

env: $(VENV)/.runtime
dev: $(VENV)/.dev

# uv comes from PATH, or into the environment by pip.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "twospeed needs Python 3.11 or newer; choose one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "twospeed compiles llama.cpp for this machine and needs a C++ compiler: apt install build-essential, or on macOS xcode-select --install"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	@touch $@

UV = $$(command -v uv || echo $(BIN)/uv)

$(VENV)/.runtime: $(VENV)/.made requirements.lock pyproject.toml
	@echo "Installing; llama.cpp is compiled for this CPU, which takes some minutes the first time."
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock
	@touch $@

WEEK_AGO = $$(date -u -d '7 days ago' +%F 2>/dev/null || date -u -v-7d +%F)
COMPILE = uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --exclude-newer $(WEEK_AGO)

lock:  ## renew the locks, with nothing younger than a week
	$(COMPILE) pyproject.toml -o requirements.lock
	$(COMPILE) pyproject.toml --group dev -o requirements-dev.lock
	echo uv | $(COMPILE) - -o requirements-uv.lock

clean:  ## remove the environment; models stay
	rm -rf $(VENV)
