#!/usr/bin/env bash
# Builds the book into target/book, and checks links, headings, spelling and the rules for pages.
# A tool that is missing and cannot be installed skips its check, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
. scripts/tools.sh

book_builds() {
  # Its scripts belong to the version of mdbook-mermaid, so they are written anew and not checked in.
  mdbook-mermaid install . && mdbook build --dest-dir "$PWD/target/book"
}

links_lead_somewhere() { git ls-files -z '*.md' | xargs -0 lychee --offline --include-fragments --no-progress; }

words_are_spelled() { typos --config scripts/typos.toml README.md CONTRIBUTING.md docs crates deploy migrations; }

[ ! -f book.toml ] || ! obtain mdbook-mermaid ||
  step mdbook "book: mdbook build" book_builds
[ -f book.toml ] || skipped+=("book: there is no book.toml")
step lychee "links and headings: lychee" links_lead_somewhere
step typos "spelling: typos" words_are_spelled
step rustc "language and length of pages: tests/tidy" scripts/tidy.sh
report
