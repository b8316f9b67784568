//! The roles and privileges of a Supabase project, where everything created in `public` is open to
//! the internet.

/// The roles of API requests, and the role of Supabase's own servers.
pub(crate) const ROLES: &str =
    "CREATE ROLE anon; CREATE ROLE authenticated; CREATE ROLE service_role BYPASSRLS";

/// The default privileges that Supabase's images set in each database.
pub(crate) const DEFAULT_PRIVILEGES: &str = "
    GRANT USAGE ON SCHEMA public TO anon, authenticated, service_role;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO anon, authenticated, service_role;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO anon, authenticated, service_role;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON FUNCTIONS TO anon, authenticated, service_role";

/// The databases that a page may have created.
pub(crate) const DATABASES: &str =
    "SELECT datname::text FROM pg_database WHERE NOT datistemplate ORDER BY 1";

/// Lists the tables and functions that `anon` or `authenticated` may use, regardless of their
/// creator. Row-level security is ignored here: a page that relies on row-level security must
/// create policies.
pub(crate) const OPEN_OBJECTS: &str = "
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

/// Functions that a page opens on purpose.
pub(crate) const INTENDED_GRANTS: &[(&str, &str)] =
    &[("docs/how-to/build/produce-browser.md", "authenticated place_order(text,numeric)")];
