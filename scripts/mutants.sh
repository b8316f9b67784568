#!/usr/bin/env bash
# Mutation testing: changes the code in every small way there is, and lists the changes that no test
# notices. Takes hours; docs/project/testing.md says what is to be expected of it.
#
#   scripts/mutants.sh                        everything
#   scripts/mutants.sh core -f '*/budget.rs'  one part, with further options of cargo-mutants
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo mutants --version >/dev/null 2>&1; then
  echo "mutants: cargo-mutants is not installed: cargo install cargo-mutants --locked" >&2
  exit 1
fi

# Seeds of the simulation for each change of the loop: what is not noticed in these is listed.
export WALRELAY_SIM_SEEDS=${WALRELAY_SIM_SEEDS:-400}

mkdir -p target/mutants

# Only the tests that are fast: each change is built and tested anew.
core() { nice cargo mutants --package walrelay-core --output target/mutants/core "$@"; }
parser() { nice cargo mutants --package pgoutput-parser --output target/mutants/parser "$@"; }
loop() {
  nice cargo mutants --package walrelay-relay --file 'crates/relay/src/stream/**' \
    --test-package walrelay-relay,walrelay-simulation --output target/mutants/loop "$@" \
    -- --lib --test it --test simulation
}

part=${1:-all}
shift || true
case $part in
  core | parser | loop) "$part" "$@" ;;
  all)
    # A part in which changes went unnoticed does not keep the others from being tried.
    status=0
    for each in core parser loop; do "$each" "$@" || status=$?; done
    exit "$status"
    ;;
  *)
    echo "mutants: $part is no part: core, parser or loop" >&2
    exit 2
    ;;
esac
