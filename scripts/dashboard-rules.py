#!/usr/bin/env python3
"""Prints the queries of Grafana dashboards as Prometheus recording rules, for promtool."""

import json
import pathlib
import sys

rules = []
for path in map(pathlib.Path, sys.argv[1:]):
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*").replace("$consumer", ".*")
            name = f"panel:{path.stem.replace('-', '_')}:n{panel['id']}_{target.get('refId', 'A')}"
            rules.append({"record": name, "expr": query})

# JSON is YAML, and needs no library.
json.dump({"groups": [{"name": "dashboards", "rules": rules}]}, sys.stdout)
