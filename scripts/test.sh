#!/usr/bin/env bash
# Runs every test with the servers that the tests share; arguments go to the test runner.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests of the real binary find it beside themselves, but do not build it. Built together with the
# tests, everything has one set of features and is compiled once.
cargo build --workspace --bins --tests
# Clients that scripts/install-servers.sh has installed.
python="$PWD/.servers/clients/python/bin/python"
if [ -z "${WALRELAY_TEST_PYTHON:-}" ] && [ -x "$python" ]; then export WALRELAY_TEST_PYTHON=$python; fi

with_servers="${CARGO_TARGET_DIR:-target}/debug/with-servers"

if cargo nextest --version >/dev/null 2>&1; then
  # First, so that the summary of all other tests stands last. nextest runs no doctests.
  cargo test -q --workspace --doc
  exec "$with_servers" cargo nextest run --workspace --no-fail-fast "$@"
else
  echo "test: cargo-nextest is not installed; running cargo test" >&2
  exec "$with_servers" cargo test --workspace --no-fail-fast "$@"
fi
