#!/usr/bin/env bash
# The steps of the release workflow, so that each can be tried on any machine.
#
#   scripts/release.sh version v0.1.0         fails unless the tag is the version of the workspace
#   scripts/release.sh archive TARGET         an archive with the binary, manual pages and completions
#   scripts/release.sh sbom                   the components of the binary, as CycloneDX
#   scripts/release.sh checksums              SHA256SUMS over everything in target/release-files
#   scripts/release.sh image-context v0.1.0   target/image, from the archives in target/archives
#   scripts/release.sh notes                  the entry of the version in CHANGELOG.md
#   scripts/release.sh formula BASE_URL       the Homebrew formula, from its template and SHA256SUMS
set -euo pipefail
cd "$(dirname "$0")/.."

files=target/release-files
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)

sha256() { if type -P sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }

check_version() {
  [ "$1" = "v$version" ] || { echo "the tag is $1, and Cargo.toml has $version" >&2; exit 1; }
  grep -q "^## \[\?$version" CHANGELOG.md || { echo "CHANGELOG.md has no entry $version" >&2; exit 1; }
  grep -q "^version: $version$" deploy/helm/walrelay/Chart.yaml || { echo "Chart.yaml is not $version" >&2; exit 1; }
}

# Static on Linux, as in the Dockerfile; macOS has no static libc.
archive() {
  local target=$1 name="walrelay-$version-$1"
  local binary=target/$target/dist/walrelay
  local flags="-C strip=symbols"
  case "$target" in
    *linux*) flags="-C target-feature=+crt-static $flags --cfg getrandom_backend=\"linux_getrandom\"" ;;
  esac
  RUSTFLAGS="$flags" cargo build --locked --profile dist --package walrelay --bin walrelay --target "$target"
  rm -rf "target/$name"
  mkdir -p "target/$name/completions" "$files"
  cp "$binary" LICENSE README.md CHANGELOG.md "target/$name/"
  # A binary for another processor does not run here.
  if "$binary" --version; then
    "$binary" man "target/$name/man"
    for shell in bash zsh fish; do "$binary" completions "$shell" >"target/$name/completions/walrelay.$shell"; done
  fi
  tar -C target -czf "$files/$name.tar.gz" "$name"
}

sbom() {
  mkdir -p "$files"
  cargo cyclonedx --manifest-path crates/walrelay/Cargo.toml --format json --override-filename walrelay.cdx
  mv crates/walrelay/walrelay.cdx.json "$files/walrelay-$version.cdx.json"
  # It writes one file for each member of the workspace.
  find crates tests bench -name walrelay.cdx.json -delete
}

checksums() { (cd "$files" && rm -f SHA256SUMS && sha256 -- * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS); }

notes() {
  awk -v version="$version" '/^## / { is_entry = index($0, version) } is_entry && !/^## /' CHANGELOG.md
}

image_context() {
  check_version "$1"
  local pair
  for pair in amd64:x86_64 arm64:aarch64; do
    local name="walrelay-$version-${pair#*:}-unknown-linux-gnu"
    mkdir -p "target/image/linux-${pair%:*}"
    tar -xzf "target/archives/$name.tar.gz" -C "target/image/linux-${pair%:*}" --strip-components=1 "$name/walrelay"
  done
  cp /etc/ssl/certs/ca-certificates.crt target/image/
}

formula() {
  local text base=$1
  text=$(<deploy/homebrew/walrelay.rb.template)
  text=${text//@VERSION@/$version}
  text=${text//@BASE_URL@/$base}
  local target sum
  for target in aarch64-apple-darwin x86_64-apple-darwin aarch64-unknown-linux-gnu x86_64-unknown-linux-gnu; do
    sum=$(sed -n "s/  walrelay-$version-$target.tar.gz$//p" "$files/SHA256SUMS")
    [ -n "$sum" ] || { echo "SHA256SUMS has no archive for $target" >&2; exit 1; }
    text=${text//@SHA256 $target@/$sum}
  done
  printf '%s\n' "$text" >"$files/walrelay.rb"
}

case "${1:-}" in
  version) check_version "$2" ;;
  archive) archive "$2" ;;
  sbom) sbom ;;
  checksums) checksums ;;
  notes) notes ;;
  image-context) image_context "$2" ;;
  formula) formula "$2" ;;
  *) sed -n '2,11p' "$0" >&2; exit 2 ;;
esac
