//! What a Supabase project has of roles and rights: everything that is created in `public` is open to the internet.

/// Those its API serves requests as, and the one of its servers.
pub(crate) const ROLES: &str =
    "CREATE ROLE anon; CREATE ROLE authenticated; CREATE ROLE service_role BYPASSRLS";

/// As its images set them, for each database.
pub(crate) const DEFAULT_PRIVILEGES: &str = "
    GRANT USAGE ON SCHEMA public TO anon, authenticated, service_role;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO anon, authenticated, service_role;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO anon, authenticated, service_role;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON FUNCTIONS TO anon, authenticated, service_role";

/// What a page may have created.
pub(crate) const DATABASES: &str =
    "SELECT datname::text FROM pg_database WHERE NOT datistemplate ORDER BY 1";

/// What is there of tables and functions that the internet may use, whoever has made it. Row level security counts for
/// nothing here: whoever relies on it says so by policies.
pub(crate) const OPEN: &str = "
    SELECT coalesce(string_agg(web || ' ' || it, ', ' ORDER BY web, it), '') FROM (
      SELECT web, c.oid::regclass::text AS it
        FROM unnest(ARRAY['anon', 'authenticated']) AS web, pg_class AS c
       WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
         AND has_table_privilege(web, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
      UNION ALL
      SELECT web, c.oid::regclass::text
        FROM unnest(ARRAY['anon', 'authenticated']) AS web, pg_class AS c
       WHERE c.relnamespace = 'public'::regnamespace
         AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(web, c.oid, 'SELECT, USAGE, UPDATE') END
      UNION ALL
      SELECT web, p.oid::regprocedure::text
        FROM unnest(ARRAY['anon', 'authenticated']) AS web, pg_proc AS p
       WHERE p.pronamespace = 'public'::regnamespace AND has_function_privilege(web, p.oid, 'EXECUTE')) AS open";

/// What a page opens on purpose.
pub(crate) const MEANT: &[(&str, &str)] =
    &[("docs/producing.md", "authenticated place_order(text,numeric)")];
