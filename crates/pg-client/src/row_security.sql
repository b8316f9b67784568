-- part: is_hidden
row_security_active(c.oid) AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_policy y
   WHERE y.polrelid = c.oid AND y.polpermissive AND y.polcmd IN (p.command, '*')
     AND (0 = ANY (y.polroles) OR EXISTS (
       SELECT FROM unnest(y.polroles) AS r(oid) WHERE r.oid <> 0 AND pg_has_role(r.oid, 'USAGE'))))

-- part: may_be_hidden
row_security_active(c.oid) AND (
  SELECT bool_or(s.is_for_all_rows) FILTER (WHERE s.polpermissive) IS NOT TRUE
      OR bool_or(NOT s.is_for_all_rows) FILTER (WHERE NOT s.polpermissive) IS TRUE
    FROM (
      SELECT y.polpermissive,
             pg_get_expr(CASE p.command WHEN 'a' THEN coalesce(y.polwithcheck, y.polqual) ELSE y.polqual END,
                         y.polrelid) ~ '^(true|\(consumer = [^()]*\))$' AS is_for_all_rows
        FROM pg_catalog.pg_policy y
       WHERE y.polrelid = c.oid AND y.polcmd IN (p.command, '*')
         AND (0 = ANY (y.polroles) OR EXISTS (
           SELECT FROM unnest(y.polroles) AS r(oid) WHERE r.oid <> 0 AND pg_has_role(r.oid, 'USAGE')))) AS s)
