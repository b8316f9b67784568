#!/bin/sh
# Captures text.bin and binary.bin from a private server. Run as a user other than root:
#   BIN=/usr/lib/postgresql/15/bin sh capture.sh /a/new/directory
# A file is a sequence of: length (2 bytes, big-endian), one pgoutput message.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
data=$1
bin=${BIN:?set BIN to the directory of initdb and pg_ctl}
"$bin/initdb" -D "$data/db" -U postgres -A trust -E UTF8 --locale=C.UTF-8 >/dev/null
trap '"$bin/pg_ctl" -D "$data/db" -m immediate stop >/dev/null' EXIT
"$bin/pg_ctl" -D "$data/db" -w -l "$data/log" start \
  -o "-c wal_level=logical -c fsync=off -c listen_addresses='' -c unix_socket_directories='$data'" >/dev/null
psql="psql -X -q -A -t -v ON_ERROR_STOP=1 -h $data -U postgres postgres"
$psql -f "$here/statements.sql" >/dev/null
for form in text binary; do
  $psql -c "SELECT encode(int2send(length(data)::int2) || data, 'hex')
            FROM pg_logical_slot_peek_binary_changes('capture', NULL, NULL,
              'proto_version', '1', 'publication_names', 'everything', 'messages', 'true',
              'binary', '$([ $form = binary ] && echo true || echo false)')" |
    perl -ne 'chomp; print pack "H*", $_' >"$data/$form.bin"
done
