#!/usr/bin/env bash
# Runs the repository's own rules (tests/tidy), which need nothing but the standard library: seconds
# instead of a build of the workspace. `make test` runs them as well.
#
#   scripts/tidy.sh              # this checkout
#   scripts/tidy.sh /other/tree  # the rules of this checkout, applied to another one
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(mktemp -d)
trap 'rm -rf "$program"' EXIT
CARGO_MANIFEST_DIR="${1:-$PWD}/tests" \
  rustc --edition 2024 --test tests/tidy/main.rs --out-dir "$program"
RUST_BACKTRACE=0 "$program/main" --quiet
