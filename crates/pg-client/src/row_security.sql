-- part: is_hidden
row_security_active(c.oid) AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_policy y
   WHERE y.polrelid = c.oid AND y.polpermissive AND y.polcmd IN (p.command, '*')
     AND (0 = ANY (y.polroles) OR EXISTS (
       SELECT FROM unnest(y.polroles) AS r(oid) WHERE r.oid <> 0 AND pg_has_role(r.oid, 'USAGE'))))
