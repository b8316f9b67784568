-- script: create_orders
CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL)

-- name: write_order
INSERT INTO orders VALUES ($1, $2)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status

-- name: write_event
INSERT INTO public.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
VALUES ('orders', $1, $2, $3, jsonb_build_object('order', $1::text, 'status', $2::text))

-- script: poison
INSERT INTO public.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
VALUES ('no topic!', 'poison-1', 'Poison', 1, '{}')

-- name: dead
SELECT count(*) FROM public.app_outbox_dispatch WHERE status = 'dead'
