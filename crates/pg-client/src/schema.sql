-- script: create_schema
DO $walrelay$
DECLARE
  web_role text;
BEGIN
  IF to_regnamespace('public') IS NULL THEN
    CREATE SCHEMA public;
    -- Default privileges may open a new schema to everybody, or to the roles of a web API.
    REVOKE ALL ON SCHEMA public FROM PUBLIC;
    FOR web_role IN SELECT rolname FROM pg_roles WHERE rolname IN ('anon', 'authenticated') LOOP
      EXECUTE format('REVOKE ALL ON SCHEMA public FROM %I', web_role);
    END LOOP;
  END IF;
END
$walrelay$;
