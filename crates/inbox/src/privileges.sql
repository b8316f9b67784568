-- name: of_the_inbox
SELECT 'USAGE', 'SCHEMA public'
 WHERE NOT pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace('public'), 'USAGE')
UNION ALL
SELECT pg_catalog.string_agg(r.privilege, ', '), pg_catalog.format('public.%I', c.relname)
  FROM pg_catalog.pg_class AS c
  JOIN (VALUES ('app_inbox_consumer', 'SELECT'),
               ('app_inbox', 'SELECT'), ('app_inbox', 'INSERT'), ('app_inbox', 'UPDATE'), ('app_inbox', 'DELETE'),
               ('app_inbox_key', 'SELECT'), ('app_inbox_key', 'INSERT'), ('app_inbox_key', 'UPDATE'))
       AS r(relation, privilege) ON r.relation = c.relname
 WHERE c.relnamespace = pg_catalog.to_regnamespace('public') AND c.relkind IN ('r', 'p')
   AND NOT pg_catalog.has_table_privilege(c.oid, r.privilege)
 GROUP BY c.relname
UNION ALL
SELECT 'EXECUTE', 'FUNCTION ' || pg_catalog.string_agg(pg_catalog.format('public.%I', p.proname), ', ' ORDER BY p.proname)
  FROM pg_catalog.pg_proc AS p
 WHERE p.pronamespace = pg_catalog.to_regnamespace('public') AND p.proname = ANY ($1)
   AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
HAVING count(*) > 0

-- name: of_retention
SELECT 'UPDATE (pruned_before)', pg_catalog.format('public.%I', c.relname)
  FROM pg_catalog.pg_class AS c
 WHERE c.oid = pg_catalog.to_regclass('public.app_inbox_consumer')
   AND NOT pg_catalog.has_column_privilege(c.oid, 'pruned_before', 'UPDATE')

-- name: of_the_handler
SELECT v.privilege, v.object
  FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
 CROSS JOIN LATERAL (VALUES
   ('USAGE', pg_catalog.format('SCHEMA %I', n.nspname),
    pg_catalog.has_schema_privilege(n.oid, 'USAGE')),
   ('EXECUTE', 'FUNCTION ' || $1, pg_catalog.has_function_privilege(p.oid, 'EXECUTE')))
       AS v(privilege, object, is_there)
 WHERE NOT v.is_there
   AND $1 IN (pg_catalog.format('%I.%I(public.app_inbox_event)', n.nspname, p.proname),
              pg_catalog.format('%I.%I(public.app_inbox_event[])', n.nspname, p.proname))
   AND p.proargtypes[0] = CASE WHEN $1 LIKE '%[])'
         THEN 'public.app_inbox_event[]'::pg_catalog.regtype
         ELSE 'public.app_inbox_event'::pg_catalog.regtype END

-- name: policies
SELECT pg_catalog.format(
     CASE c.relname WHEN 'app_inbox_consumer'
       THEN 'CREATE POLICY %I ON public.%I FOR SELECT TO %I USING (true)'
       ELSE 'CREATE POLICY %I ON public.%I TO %I USING (true) WITH CHECK (true)' END,
     current_user, c.relname, current_user)
  FROM pg_catalog.pg_class AS c
 WHERE c.relnamespace = pg_catalog.to_regnamespace('public')
   AND c.relname IN ('app_inbox_consumer', 'app_inbox', 'app_inbox_key')
   AND pg_catalog.row_security_active(c.oid)
   AND NOT EXISTS (
     SELECT FROM pg_catalog.pg_policy AS y
      WHERE y.polrelid = c.oid AND y.polpermissive
        AND (0 = ANY (y.polroles) OR EXISTS (
          SELECT FROM pg_catalog.unnest(y.polroles) AS r(oid)
           WHERE r.oid <> 0 AND pg_catalog.pg_has_role(r.oid, 'USAGE'))))
 ORDER BY 1
