-- part: messages
ARRAY(
  SELECT ROW(m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.ordering_key,
             m.version, m.schema_version, m.occurred_at, m.commit_lsn, m.tx_index,
             m.system_identifier, m.message_id, m.publish_time, m.attributes, m.data
         )::public.app_inbox_message
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::int8[], $9::int4[], $10::timestamptz[], $11::pg_lsn[], $12::int4[],
                $13::text[], $14::text[], $15::timestamptz[], $16::text[], $17::bytea[])
      AS m(event_id, event_type, aggregate_type, aggregate_id, ordering_key,
           version, schema_version, occurred_at, commit_lsn, tx_index,
           system_identifier, message_id, publish_time, attributes, data))

-- part: fields
m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.ordering_key, m.version, m.schema_version,
m.occurred_at, m.commit_lsn, m.tx_index, m.system_identifier, m.message_id, m.publish_time, m.attributes, m.data
