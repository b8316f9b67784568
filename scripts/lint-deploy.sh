#!/usr/bin/env bash
# Checks everything in deploy/, and the files that ship or build walrelay, with the tools of their
# own worlds. A tool that is missing and cannot be installed skips its check, with the reason.
# `make test` needs none of this: tests/deploy compares the same files with the code.
#
#   scripts/lint-deploy.sh            # checks
#   scripts/lint-deploy.sh --render   # renders the chart into the file that tests/deploy reads
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
. scripts/tools.sh

chart=deploy/helm/walrelay
rendered=tests/deploy/testdata/helm.yaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The oldest and the newest version that the manifests are written for.
kubernetes_versions=(1.28 1.37)

# Renders the chart with values of its folder `ci`; further arguments go to helm. A helm that `go install` has built knows no
# version of Kubernetes. Warnings about the links to the rules are left out.
render() {
  helm template walrelay "$chart" --namespace walrelay --kube-version "${kubernetes_versions[0]}.0" \
    --values "$chart/ci/$1-values.yaml" "${@:2}" 2> >(grep -v 'found symbolic link' >&2)
}

if [ "${1:-}" = --render ]; then
  obtain helm || { echo "$reason" >&2; exit 1; }
  mkdir -p "$(dirname "$rendered")"
  render all --set prometheusRule.enabled=false >"$rendered"
  exit
fi

chart_is_linted() { helm lint --strict "$chart" --values "$chart/ci/all-values.yaml"; }

chart_renders() {
  render minimal >"$work/minimal.yaml" &&
    render all --set prometheusRule.enabled=false >"$work/all.yaml" &&
    diff -u "$rendered" "$work/all.yaml" || { echo "run: scripts/lint-deploy.sh --render"; false; }
}

# Custom resources have no schema in Kubernetes.
without_custom_resources() {
  awk 'BEGIN { RS = "---\n"; ORS = "---\n" } !/monitoring\.coreos\.com/' "$1" >"$work/$(basename "$1")"
  echo "$work/$(basename "$1")"
}

manifests_are_valid() {
  local version manifest
  for version in "${kubernetes_versions[@]}"; do
    for manifest in deploy/kubernetes/*.yaml "$(without_custom_resources "$rendered")"; do
      kubernetes-validate --strict --quiet --kubernetes-version "$version" "$manifest" ||
        { echo "$manifest: not valid for Kubernetes $version"; return 1; }
    done
  done
}

compose_is_valid() { docker-compose --file docker-compose.yml config --quiet; }

dockerfiles_are_linted() { hadolint Dockerfile .github/release.Dockerfile; }

# Notes on style are not reported.
scripts_are_linted() { shellcheck --external-sources --severity=warning .ci/run scripts/*.sh; }

yaml_is_linted() {
  yamllint --strict --config-data '{extends: default, rules: {line-length: {max: 160}, document-start: disable,
    braces: {max-spaces-inside: 1}, brackets: {max-spaces-inside: 1}, comments: {min-spaces-from-content: 1},
    indentation: {indent-sequences: whatever}, truthy: {check-keys: false}}}' \
    deploy/kubernetes deploy/cloud-run deploy/prometheus docker-compose.yml .github "$chart"/Chart.yaml "$chart"/values.yaml "$chart"/ci
}

toml_fits_the_schema() {
  taplo lint --schema "file://$PWD/deploy/walrelay.schema.json" deploy/walrelay.toml
}

schema_is_valid() {
  check-jsonschema --check-metaschema deploy/walrelay.schema.json &&
    check-jsonschema --schemafile deploy/walrelay.schema.json deploy/walrelay.toml
}

chart_schema_is_valid() {
  check-jsonschema --check-metaschema "$chart/values.schema.json" &&
    check-jsonschema --schemafile "$chart/values.schema.json" "$chart/values.yaml" "$chart"/ci/*.yaml
}

workflows_are_linted() { actionlint -shellcheck "$(type -P shellcheck || true)"; }

rules_are_valid() {
  promtool check rules deploy/prometheus/*.rules.yaml && promtool test rules deploy/prometheus/tests/*.yaml
}

# The chart parses the rules and sets the address of each runbook.
rules_of_the_chart_are_valid() {
  render all --show-only templates/prometheus-rule.yaml |
    awk -v file="$work/chart-rules" '/^---/ { number++; is_spec = 0 } is_spec { print substr($0, 3) > (file number ".yaml") } /^spec:/ { is_spec = 1 }'
  promtool check rules "$work"/chart-rules*.yaml
}

# Prometheus checks queries only as rules, so each query of a dashboard becomes a recording rule.
dashboards_have_valid_queries() {
  python3 scripts/dashboard-rules.py deploy/grafana/*.json deploy/google-cloud/dashboard.json >"$work/dashboards.yaml" &&
    promtool check rules "$work/dashboards.yaml"
}

terraform_is_formatted() { terraform fmt -check -recursive -diff deploy/terraform; }

migrations_are_linted() {
  squawk --assume-in-transaction migrations/*.sql migrations/inbox/*.sql
}

step helm "chart: helm lint" chart_is_linted
step helm "chart: helm template, compared with $rendered" chart_renders
step kubernetes-validate "manifests and rendered chart: Kubernetes ${kubernetes_versions[*]}" manifests_are_valid
step check-jsonschema "chart: values and their schema" chart_schema_is_valid
step docker-compose "docker-compose.yml: config" compose_is_valid
step hadolint "Dockerfiles: hadolint" dockerfiles_are_linted
step shellcheck "scripts: shellcheck" scripts_are_linted
step yamllint "YAML: yamllint" yaml_is_linted
step taplo "deploy/walrelay.toml: taplo" toml_fits_the_schema
step check-jsonschema "configuration schema: check-jsonschema" schema_is_valid
step actionlint "workflows: actionlint" workflows_are_linted
step promtool "alerts: promtool, with unit tests" rules_are_valid
[ ! -x "$(type -P helm)" ] || step promtool "alerts of the chart: promtool" rules_of_the_chart_are_valid
step promtool "dashboards: promtool" dashboards_have_valid_queries
step terraform "deploy/terraform: terraform fmt" terraform_is_formatted
step squawk "migrations: squawk" migrations_are_linted
report
