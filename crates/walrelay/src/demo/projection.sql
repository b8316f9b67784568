-- script: create_order_state
CREATE TABLE order_state (
  id text PRIMARY KEY, version bigint NOT NULL, status text, events bigint NOT NULL)

-- name: write
INSERT INTO order_state AS o VALUES ($1, $2, $3, 1)
    ON CONFLICT (id) DO UPDATE
   SET version = excluded.version, status = excluded.status, events = o.events + 1

-- name: source
SELECT o.id, max(e.version)::bigint, o.status, count(*)
  FROM orders AS o JOIN public.app_outbox AS e ON e.aggregateid = o.id GROUP BY o.id, o.status
