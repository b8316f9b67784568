#!/usr/bin/env python3
"""Prints the queries of dashboards (Grafana, Cloud Monitoring) as recording rules, for promtool."""

import json
import pathlib
import sys


def queries(dashboard):
    """Yields a name and a query for each query of the dashboard."""
    for panel in dashboard.get("panels", []):
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "5m")
            query = query.replace("$job", ".*").replace("$consumer", ".*")
            yield f"n{panel['id']}_{target.get('refId', 'A')}", query
    for number, tile in enumerate(dashboard.get("mosaicLayout", {}).get("tiles", [])):
        for index, data in enumerate(tile["widget"]["xyChart"]["dataSets"]):
            query = data["timeSeriesQuery"].get("prometheusQuery")
            if query:
                yield f"t{number}_{index}", query


rules = []
for path in map(pathlib.Path, sys.argv[1:]):
    for name, query in queries(json.loads(path.read_text())):
        rules.append({"record": f"panel:{path.stem.replace('-', '_')}:{name}", "expr": query})

# JSON is YAML, and needs no library.
json.dump({"groups": [{"name": "dashboards", "rules": rules}]}, sys.stdout)
