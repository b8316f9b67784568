#!/usr/bin/env bash
# Builds the book into target/book, and checks links, headings, spelling and the rules for pages.
# A tool that is missing and cannot be installed skips its check, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
. scripts/tools.sh

# The scripts that draw diagrams belong to the version of mdbook-mermaid, so they are not checked in.
# It installs them into a book; this one is empty.
book_builds() {
  mkdir -p target/mermaid
  echo '[book]' >target/mermaid/book.toml
  mdbook-mermaid install target/mermaid && mdbook build
}

# mdbook itself checks its summary, where a part without a page has an empty link.
links_lead_somewhere() {
  git ls-files -z '*.md' ':!docs/SUMMARY.md' | xargs -0 lychee --offline --include-fragments --no-progress
}

words_are_spelled() { typos --config scripts/typos.toml README.md CONTRIBUTING.md docs crates deploy migrations; }

if [ ! -f book.toml ]; then
  skipped+=("book: there is no book.toml")
elif obtain mdbook-mermaid; then
  step mdbook "book: mdbook" book_builds
else
  skipped+=("book: $reason")
fi
step lychee "links and headings: lychee" links_lead_somewhere
step typos "spelling: typos" words_are_spelled
step rustc "language and length of pages: tests/tidy" scripts/tidy.sh
report
