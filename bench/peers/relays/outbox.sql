-- The outbox of `walrelay init`, for peers that read it. A row's number and the time of its insert
-- are in its payload, so that every peer's messages can be judged alike.

CREATE FUNCTION peer_payload(n bigint, bytes int) RETURNS jsonb LANGUAGE sql AS $$
  SELECT jsonb_build_object('n', n, 'at', extract(epoch FROM clock_timestamp()),
                            'text', repeat('x', greatest(bytes - 50, 0)))
$$;

CREATE FUNCTION peer_emit(n bigint, key text, bytes int) RETURNS void LANGUAGE sql AS $$
  INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
  VALUES ('bench', key, 'OrderPlaced', n, peer_payload(n, bytes))
$$;

CREATE FUNCTION peer_has(n bigint) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT FROM app_outbox WHERE version = n)
$$;

-- 0 keys means one key per row.
CREATE PROCEDURE peer_load(n int, per int, keys int, bytes int) LANGUAGE plpgsql AS $$
DECLARE
  i int := 0;
BEGIN
  WHILE i < n LOOP
    INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
    SELECT 'bench', 'order-' || (CASE WHEN keys = 0 THEN i + g ELSE (i + g) % keys END),
           'OrderPlaced', i + g, peer_payload(i + g, bytes)
      FROM generate_series(0, least(per, n - i) - 1) AS g;
    COMMIT;
    i := i + per;
  END LOOP;
END $$;
