"""Reads an archive of deleted rows as any program would, and compares it with event ids on stdin.

Usage: read_archive.py DIRECTORY < ids. Prints a JSON object with the number of files, lines and
distinct ids, the ids of stdin that are not archived, and the statuses of dispatch state.
"""

import collections
import gzip
import json
import pathlib
import sys

lines = 0
files = 0
ids = set()
statuses = collections.Counter()
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/*.ndjson.gz")):
    files += 1
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            entry = json.loads(line)
            assert entry["event_id"] == entry["row"]["id"], entry
            assert {"aggregatetype", "aggregateid", "version", "payload", "occurred_at"} <= entry["row"].keys()
            assert int(entry["xmin"]) > 0
            lines += 1
            ids.add(entry["event_id"])
            statuses[entry["dispatch_status"]] += 1
missing = sorted({line.strip() for line in sys.stdin if line.strip()} - ids)
print(json.dumps({
    "files": files, "lines": lines, "ids": len(ids), "missing": missing,
    "published_later": statuses["published"],
}))
