# The commands of this repository; `make` alone lists them.
#
# Every target works on a fresh machine with Rust, and installs what it lacks where it can
# (scripts/install-servers.sh). Options for a command go into ARGS: make demo ARGS="--help".

.DEFAULT_GOAL := help
SHELL := /bin/bash

MINUTES ?= 10
DAYS ?= 365
ROWS_A_DAY ?= 2000
SEEDS ?= 10000
SECONDS_PER_TARGET ?= 60
FUZZ_DIR := crates/pgoutput-parser/fuzz

.PHONY: help demo build test test-all lint lint-deploy docs deny bench bench-peers sim soak fuzz-operations year smoke-gcp fuzz mutants clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The everyday build, because it is ready in half the time of a release build, and make test goes on with it.
demo: ## Postgres, Pub/Sub, producer, relay and consumer: a kill, an outage and a bad row, and nothing lost
	@scripts/install-servers.sh --demo-only
	cargo run -p walrelay -- demo $(ARGS)

build: ## The release binary: target/release/walrelay
	cargo build --release -p walrelay --bin walrelay

test: ## The tests on the newest Postgres, and a core set on each other version
	@scripts/test.sh $(ARGS)

test-all: ## Every test, also the long ones, on every Postgres version that can be had
	@scripts/test.sh --all $(ARGS)

lint: ## Formatting, clippy and rustdoc without warnings, the rules of tests/tidy
	cargo fmt --all --check
	cargo fmt --manifest-path bench/peers/Cargo.toml --check
	scripts/tidy.sh
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

lint-deploy: ## Charts, manifests, rules, dashboards, workflows, scripts; skips what it cannot install
	@scripts/lint-deploy.sh

docs: ## The book in target/book; its links, headings and spelling; skips what it cannot install
	@scripts/docs.sh

deny: ## Advisories, licences and sources of the dependencies (needs cargo-deny)
	cargo deny check

bench: ## Throughput, latency, memory; tables, and JSON in bench/results/; quick: make bench QUICK=1
	@scripts/install-servers.sh --demo-only
	cargo build --profile dist -p walrelay -p walrelay-bench --bins
	$${CARGO_TARGET_DIR:-target}/dist/walrelay-bench --size $(if $(QUICK),quick,full) $(ARGS)

bench-peers: ## Beside Debezium, Watermill and Google's subscribers; quick: make bench-peers QUICK=1
	@scripts/install-servers.sh --demo-only
	@scripts/install-peers.sh
	@scripts/install-clients.sh --consumers
	cargo build --profile dist -p walrelay --bin walrelay
	cargo build --profile dist --locked --manifest-path bench/peers/Cargo.toml --target-dir $${CARGO_TARGET_DIR:-target}
	$${CARGO_TARGET_DIR:-target}/dist/walrelay-bench-peers --size $(if $(QUICK),quick,full) $(ARGS)

sim: ## The simulation: make sim SEEDS=100000 for many, SEED=17 make sim for one
	WALRELAY_SIM_SEEDS=$(SEEDS) WALRELAY_SIM_SEED=$(SEED) cargo test --release -p walrelay-simulation --test simulation -- $(ARGS)

soak: ## The crash suite again and again: make soak MINUTES=60
	@scripts/install-servers.sh
	cargo build -p walrelay --bin walrelay
	WALRELAY_SOAK_MINUTES=$(MINUTES) cargo run -q -p walrelay-testkit --bin with-servers -- \
	  cargo test -p walrelay-tests --test crash -- --ignored --nocapture soak

fuzz-operations: ## Random commands of an operator, killed at random: make fuzz-operations SEED=7 MINUTES=60
	@scripts/install-servers.sh
	cargo build -p walrelay --bin walrelay
	WALRELAY_FUZZ_SEED=$(or $(SEED),1) WALRELAY_SOAK_MINUTES=$(MINUTES) cargo run -q -p walrelay-testkit --bin with-servers -- \
	  cargo test -p walrelay-tests --test crash -- --ignored --nocapture fuzz_commands

year: ## A year of retention on a moved clock (needs Debian's faketime); quick: make year DAYS=185 ROWS_A_DAY=200
	@scripts/install-servers.sh --demo-only
	cargo build --workspace --bins
	WALRELAY_DAYS=$(DAYS) WALRELAY_ROWS_A_DAY=$(ROWS_A_DAY) cargo test --workspace --test e2e -- --ignored --nocapture in_a_year

# The binary of a release: make smoke-gcp PROJECT=my-project WALRELAY_BIN=/path/to/walrelay
smoke-gcp: ## Ten minutes against Google's Pub/Sub with your credentials: make smoke-gcp PROJECT=my-project
	@test -n "$(PROJECT)" || { echo "name a project: make smoke-gcp PROJECT=my-project" >&2; exit 2; }
	@scripts/install-servers.sh --demo-only
	$(if $(WALRELAY_BIN),,cargo build --release -p walrelay --bin walrelay)
	WALRELAY_BIN=$(or $(WALRELAY_BIN),$${CARGO_TARGET_DIR:-target}/release/walrelay) \
	  cargo run -q -p walrelay-tests --bin smoke-gcp -- "$(PROJECT)" "$$((60 * $(MINUTES)))"

fuzz: ## The decoder's fuzz targets, a minute each (needs cargo-fuzz and a nightly toolchain)
	@for target in $$(cargo fuzz list --fuzz-dir $(FUZZ_DIR)); do \
	  echo "fuzz $$target"; \
	  cargo +nightly fuzz run --fuzz-dir $(FUZZ_DIR) $$target -- \
	    -max_total_time=$(SECONDS_PER_TARGET) || exit 1; \
	done

mutants: ## Changes of the code that no test notices (needs cargo-mutants; hours): make mutants ARGS=core
	@scripts/mutants.sh $(ARGS)

clean: ## Remove build results, installed servers and installed tools
	cargo clean
	rm -rf .servers .tools
