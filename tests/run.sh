#!/usr/bin/env bash
# The tests, quick ones first. Each part says what it ran; a part that cannot run here says why, and fails where
# TWOSPEED_REQUIRE_REAL says that it must run.
#   usage: tests/run.sh [fast]     fast: without the real models
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH= TWOSPEED_HOME="${TWOSPEED_HOME:-}"
[ -n "$TWOSPEED_HOME" ] || unset TWOSPEED_HOME

part() { printf '\n== %s\n' "$*"; }

part "lint: ruff"
ruff check .
ruff format --check --quiet .
part "types: mypy --strict"
MYPYPATH=server mypy -p twospeed
part "rooms: import-linter"
lint-imports --no-cache
part "tests: everything but the real models"
python -m pytest -q -m "not real"
if [ "${1:-}" = fast ]; then exit 0; fi
part "real models: fetch what is missing"
twospeed pull tiny fast smart
part "real models: tests"
python -m pytest -q -m real
