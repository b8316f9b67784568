-- name: partitions
SELECT b.partition::text AS name, b.lower_bound::text AS lower_bound, b.upper_bound::text AS upper_bound,
       coalesce(s.span IS NOT NULL AND b.upper_bound > now() - make_interval(secs => $2), false) AS is_dropped_later
  FROM public.app_outbox_partition_state($1::text::regclass) AS s
 CROSS JOIN public.app_outbox_partition_bounds($1::text::regclass) AS b
 WHERE NOT b.is_default
 ORDER BY b.upper_bound, 1

-- name: drop_partition
SELECT public.app_outbox_drop_partition(
  $1::text::regclass, $2, $3, make_interval(secs => $4), $5, $6, $7::text::numeric)
