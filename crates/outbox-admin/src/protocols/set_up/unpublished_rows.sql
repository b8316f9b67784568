-- name: can_be_null
SELECT NOT (
    a.attnotnull
    OR EXISTS (
      SELECT FROM pg_catalog.pg_constraint AS k
       WHERE k.conrelid = a.attrelid AND k.contype = 'c'
         AND pg_catalog.pg_get_expr(k.conbin, k.conrelid)
             = pg_catalog.format('(%I IS NOT NULL)', a.attname))
    OR EXISTS (
      WITH RECURSIVE domains AS (
        SELECT t.typnotnull, t.typbasetype FROM pg_catalog.pg_type AS t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.typnotnull, t.typbasetype FROM domains AS d
          JOIN pg_catalog.pg_type AS t ON t.oid = d.typbasetype)
      SELECT FROM domains WHERE typnotnull)) AS can_be_null
  FROM pg_catalog.pg_attribute AS a
 WHERE a.attrelid = to_regclass($1) AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped

-- name: condition
SELECT pg_catalog.pg_get_expr(i.indpred, i.indrelid) AS condition
  FROM pg_catalog.pg_index AS i WHERE i.indexrelid = to_regclass($1)
