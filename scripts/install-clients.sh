#!/usr/bin/env bash
# Builds the programs on Google's Go and Java clients into .servers/clients, and gets the libraries of
# the programs that pages show. They come from the Go module proxy, Maven Central and NuGet. Safe and quick to run again: a program that is newer than
# its sources stays, and needs no network.
#
#   scripts/install-clients.sh              the programs of the conformance tests
#   scripts/install-clients.sh --consumers  also the subscribers of `make bench-peers`
#
# A program that cannot be built is named with the reason, and is no failure: tests that need it report
# themselves as skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
repository=$PWD
clients="$repository/.servers/clients"
mkdir -p "$clients"

# The longest time of one download or one compilation.
readonly LIMIT_SECONDS=180

say() { echo "install-clients: $*" >&2; }

# Runs a command for a limited time, where the system can limit it.
bounded() {
  if type -P timeout >/dev/null; then timeout "$LIMIT_SECONDS" "$@"; else "$@"; fi
}

# is_current PROGRAM SOURCES: whether the program is newer than every file of its sources.
is_current() { [ -e "$1" ] && [ -z "$(find "$2" -type f -newer "$1")" ]; }

# install_go NAME SOURCES
install_go() {
  local name=$1 sources=$2 program="$clients/go/$1"
  if is_current "$program" "$sources"; then return; fi
  if ! type -P go >/dev/null; then say "Go is not installed; its $name is skipped"; return; fi
  say "building the Go $name"
  mkdir -p "$clients/go"
  if ! (cd "$sources" && bounded go build -o "$program" .) >&2; then
    rm -f "$program"
    say "the Go $name could not be built; it is skipped"
  fi
}

# compile_java SOURCES ROOT: compiles the sources, if there are any.
compile_java() {
  if ! compgen -G "$1/*.java" >/dev/null; then return 0; fi
  bounded javac -nowarn -cp "$2/lib/*" -d "$2/classes" "$1"/*.java
}

# install_java NAME SOURCES
install_java() {
  local name=$1 sources=$2 root="$clients/java/$1"
  local built="$root/built"
  if is_current "$built" "$sources"; then return; fi
  local tool
  for tool in java javac mvn; do
    if ! type -P "$tool" >/dev/null; then say "$tool is not installed; the Java $name is skipped"; return; fi
  done
  say "building the Java $name"
  rm -rf "$root"
  mkdir -p "$root/classes"
  local goal=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
  if bounded mvn -B -q -Dstyle.color=never -f "$sources/pom.xml" "$goal" -DincludeScope=runtime "-DoutputDirectory=$root/lib" >&2 &&
    compile_java "$sources" "$root" >&2; then
    touch "$built"
  else
    rm -rf "$root"
    say "the Java $name could not be built; it is skipped"
  fi
}

# The libraries of the Go, Java and C# programs in docs/, which their tests compile.
install_recipes() {
  local sources="$repository/tests/docs/recipes"
  if ! is_current "$clients/go/recipes" "$sources/go"; then
    if ! type -P go >/dev/null; then
      say "Go is not installed; the Go programs of the pages are skipped"
    elif (cd "$sources/go" && bounded go mod download all) >&2; then
      mkdir -p "$clients/go" && touch "$clients/go/recipes"
    else
      say "the modules of the Go programs could not be had; these programs are skipped"
    fi
  fi
  install_java recipes "$sources/java"
  if ! is_current "$clients/csharp/recipes" "$sources/csharp"; then
    if ! type -P dotnet >/dev/null; then
      say ".NET is not installed; the C# programs of the pages are skipped"
    elif mkdir -p "$clients/csharp/project" && cp "$sources/csharp/recipe.csproj" "$clients/csharp/project/" &&
      bounded dotnet restore "$clients/csharp/project" >&2; then
      touch "$clients/csharp/recipes"
    else
      say "the packages of the C# programs could not be had; these programs are skipped"
    fi
  fi
}

install_recipes
install_go conformance "$repository/tests/conformance/clients/go"
install_java conformance "$repository/tests/conformance/clients/java"
if [ "${1:-}" = "--consumers" ]; then
  install_go consumer "$repository/bench/peers/consumers/go"
  install_java consumer "$repository/bench/peers/consumers/java"
fi
