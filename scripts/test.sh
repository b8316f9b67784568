#!/usr/bin/env bash
# Runs the tests with the servers that they need.
#
#   scripts/test.sh [ARGUMENT…]        every test but the long ones on the newest version of Postgres, and
#                                      the core set on each other version; arguments go to cargo-nextest
#   scripts/test.sh --all [ARGUMENT…]  every test on every version
#
# .config/nextest.toml has the core set and the list of the long tests. The time of each test is in
# target/nextest/*/junit.xml.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/tools.sh

profiles=(core default)
if [ "${1:-}" = --all ]; then
  profiles=(all all)
  export WALRELAY_SIM_SEEDS="${WALRELAY_SIM_SEEDS:-2400}" WALRELAY_LONG=1
  shift
fi

# Servers and clients are downloaded while the compiler works.
{ scripts/install-servers.sh && scripts/install-clients.sh; } &
installing=$!
# Tests of the real binary find it beside themselves, but do not build it. Built together with the
# tests, everything has one set of features and is compiled once.
cargo build --workspace --bins --tests
wait "$installing"

# Clients that have been installed.
python="$PWD/.servers/clients/python/bin/python"
if [ -z "${WALRELAY_TEST_PYTHON:-}" ] && [ -x "$python" ]; then export WALRELAY_TEST_PYTHON=$python; fi

with_servers="${CARGO_TARGET_DIR:-target}/debug/with-servers"

if ! obtain cargo-nextest; then
  echo "test: $reason; running cargo test, on the newest version of Postgres only" >&2
  exec "$with_servers" cargo test --workspace --no-fail-fast "$@"
fi

# Most tests wait for servers and processes. with-servers starts a server per thread.
export NEXTEST_TEST_THREADS="${NEXTEST_TEST_THREADS:-$((4 * $(getconf _NPROCESSORS_ONLN)))}"
log=$(mktemp)
doctests=$(mktemp)
in_memory=
trap 'rm -rf "$log" "$doctests" $in_memory' EXIT
# Creating files on a disk is a third of the processor time of the servers, so their data is in memory
# where 8 GiB are free.
available() { awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null; }
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ "$(available)" -ge 8 ]; then
  in_memory=$(mktemp -d /dev/shm/walrelay-XXXXXX)
  chmod 1777 "$in_memory"
  export TMPDIR=$in_memory
fi
status=0

# run PROFILE [ARGUMENT…]
run() {
  "$with_servers" cargo nextest run --workspace --no-fail-fast --profile "$@" 2>&1 | tee -a "$log" || status=$?
  # with-servers lists what was skipped only after the summary.
}

# nextest runs no doctests. They wait for nothing, so they run beside the first tests.
cargo test -q --workspace --doc >"$doctests" 2>&1 &
documented=$!
# A workspace of its own, which only the long run builds.
if [ "${profiles[1]}" = all ]; then
  "$with_servers" cargo test -q --locked --manifest-path bench/peers/Cargo.toml \
    --target-dir "${CARGO_TARGET_DIR:-target}" || status=$?
fi
versions=$("$with_servers" --versions)
newest=${versions##* }
for version in $versions; do
  [ "$version" = "$newest" ] || WALRELAY_TEST_POSTGRES=$version run "${profiles[0]}" "$@"
done
WALRELAY_TEST_POSTGRES=$newest run "${profiles[1]}" "$@"
wait "$documented" || status=$?
cat "$doctests"

echo
echo "test: Postgres $versions; the summaries of all runs:"
sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -E '^ *(Summary|FAIL|TIMEOUT|SIG|LEAK-FAIL) \['
exit "$status"
