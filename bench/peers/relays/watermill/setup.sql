-- Watermill's message table for the topic "outbox", and rows in the envelope of its Forwarder. The
-- number of a row and the time of its insert are in its payload, as for every other peer.

CREATE TABLE watermill_outbox (
  "offset" BIGSERIAL,
  "uuid" VARCHAR(36) NOT NULL,
  "created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  "payload" JSON DEFAULT NULL,
  "metadata" JSON DEFAULT NULL,
  "transaction_id" xid8 NOT NULL,
  PRIMARY KEY ("transaction_id", "offset")
);

CREATE FUNCTION peer_envelope(n bigint, key text, bytes int) RETURNS json LANGUAGE sql AS $$
  SELECT json_build_object(
    'destination_topic', 'bench.events',
    'uuid', gen_random_uuid(),
    'payload', translate(encode(convert_to(jsonb_build_object(
        'n', n, 'at', extract(epoch FROM clock_timestamp()),
        'text', repeat('x', greatest(bytes - 50, 0)))::text, 'UTF8'), 'base64'), E'\n', ''),
    'metadata', json_build_object('ordering_key', key, 'n', n::text))
$$;

CREATE FUNCTION peer_emit(n bigint, key text, bytes int) RETURNS void LANGUAGE sql AS $$
  INSERT INTO watermill_outbox (uuid, payload, metadata, transaction_id)
  VALUES (gen_random_uuid(), peer_envelope(n, key, bytes), '{}', pg_current_xact_id())
$$;

CREATE FUNCTION peer_has(n bigint) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT FROM watermill_outbox WHERE payload->'metadata'->>'n' = n::text)
$$;

-- 0 keys means one key per row.
CREATE PROCEDURE peer_load(n int, per int, keys int, bytes int) LANGUAGE plpgsql AS $$
DECLARE
  i int := 0;
BEGIN
  WHILE i < n LOOP
    INSERT INTO watermill_outbox (uuid, payload, metadata, transaction_id)
    SELECT gen_random_uuid(),
           peer_envelope(i + g, 'order-' || (CASE WHEN keys = 0 THEN i + g ELSE (i + g) % keys END), bytes),
           '{}', pg_current_xact_id()
      FROM generate_series(0, least(per, n - i) - 1) AS g;
    COMMIT;
    i := i + per;
  END LOOP;
END $$;
