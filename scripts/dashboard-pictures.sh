#!/usr/bin/env bash
# Makes the pictures of both Grafana dashboards, docs/images/dashboard-*.svg, from the dashboards' JSON
# and the figures of a real run: relay, consumer, embedded Pub/Sub and Prometheus, under load, with an
# outage, a missing topic, failing events and a killed relay. Takes 7 minutes. A picture has the panels
# in which these faults are visible, and marks the time of each fault.
#
# Needs `walrelay`, `prometheus` and `psql` on the PATH, and DATABASE_URL of an empty Postgres with
# wal_level=logical that nobody else uses. Grafana itself comes from no package registry, so
# scripts/render-dashboard.py draws the panels.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
pids=()
finish() { kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"; }
trap finish EXIT

export PUBSUB_EMULATOR_HOST=127.0.0.1:55385 PUBSUB_PROJECT_ID=local
control=http://127.0.0.1:55386
prometheus=http://127.0.0.1:55390
read_url=${DATABASE_URL%/*}/readmodel

start() {
  "$@" >>"$work/${1##*/}.log" 2>&1 &
  pids+=($!)
}
relay() { start walrelay run --http 127.0.0.1:55380 --park-after 10s --anchor-keep 1h; }
# Writes the beginning, the end and the name of a fault for the pictures.
fault() { echo "$1 $(date +%s) $2" >>"$work/faults"; }
sql() { psql "$DATABASE_URL" --quiet --no-align --tuples-only --command "$1"; }

# Emits orders for a number of seconds; the rate rises and falls.
produce() {
  local end=$((SECONDS + $1)) count
  while ((SECONDS < end)); do
    count=$((40 + (SECONDS % 60 < 30 ? SECONDS % 60 : 60 - SECONDS % 60) * 4))
    sql "SELECT count(app_outbox_emit('order', 'A-' || n % 400, 'OrderPlaced',
           jsonb_build_object('status', 'placed', 'total', n))) FROM generate_series(1, $count) AS n" >/dev/null
    sleep 0.4
  done
}

start walrelay emulator --listen "$PUBSUB_EMULATOR_HOST" --control-listen "${control#http://}"
sql 'CREATE DATABASE readmodel'
# A server without this limit never loses a slot, and its panel would be empty.
sql "ALTER SYSTEM SET max_slot_wal_keep_size = '8GB'"
sql 'SELECT pg_reload_conf()' >/dev/null
sleep 1
walrelay init --create-topics=order.events
psql "$read_url" --quiet --command 'CREATE TABLE orders (id text PRIMARY KEY, version bigint NOT NULL, status text NOT NULL, total numeric NOT NULL)'
walrelay consumer init billing --database-url "$read_url" --subscription billing --create --topic order.events >/dev/null
walrelay consumer scaffold orders --database-url "$read_url" | psql "$read_url" --quiet
walrelay anchor create before_release

cat >"$work/prometheus.yml" <<YAML
global: { scrape_interval: 5s }
scrape_configs:
  - { job_name: relay, static_configs: [{ targets: ["127.0.0.1:55380"] }] }
  - { job_name: billing, static_configs: [{ targets: ["127.0.0.1:55381"] }] }
YAML
start prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" --web.listen-address="${prometheus#http://}"
start walrelay consumer run billing --database-url "$read_url" --handler public.apply_orders \
  --http 127.0.0.1:55381 --max-attempts 4
relay
relay_pid=${pids[-1]}

begin=$(date +%s)
produce 60

at=$(date +%s)
curl -sf --data 'on=publish,reject=UNAVAILABLE' "$control/faults" >/dev/null
produce 40
curl -sf --request DELETE "$control/faults" >/dev/null
fault "$at" "Pub/Sub refuses everything"
produce 50

at=$(date +%s)
sql "SELECT count(app_outbox_emit('video', 'V-' || n, 'VideoAdded', '{}')) FROM generate_series(1, 40) AS n" >/dev/null
produce 40
walrelay init --create-topics=video.events >/dev/null
fault "$at" "a topic is missing"
produce 45

at=$(date +%s)
sql "SELECT count(app_outbox_emit('order', 'B-' || n, 'OrderPlaced', '{\"status\": \"placed\"}')) FROM generate_series(1, 5) AS n" >/dev/null
sql "SELECT count(app_outbox_emit('bad topic!', 'X-1', 'Odd', '{}'))" >/dev/null
produce 30
fault "$at" "five events fail in the handler, one row has no topic"
produce 30

at=$(date +%s)
kill -KILL "$relay_pid"
produce 15
relay
fault "$at" "the relay is killed"
produce 75
end=$(date +%s)

draw() {
  scripts/render-dashboard.py "$prometheus" "deploy/grafana/$1.json" "$begin" "$end" "$work/faults" "docs/images/dashboard-$1.svg" "${@:2}"
}
draw walrelay "Rows read and messages stored" "Commit to stored" "Slot lag" "Dispatch state" "Topics refused" "Phase"
draw walrelay-consumer "Messages, and events by result" "Stored to commit" "The inbox" "Failed events"
