-- script: reset_settings
DO $walrelay$
DECLARE
  levels CONSTANT text[] := ARRAY['off', 'local', 'remote_write', 'on', 'remote_apply'];
  chosen CONSTANT text := pg_catalog.current_setting('synchronous_commit');
BEGIN
  RESET SESSION AUTHORIZATION;
  RESET ROLE;
  RESET ALL;
  PERFORM pg_catalog.set_config('transaction_read_only', 'off', true);
  IF pg_catalog.array_position(levels, chosen)
    > pg_catalog.array_position(levels, pg_catalog.current_setting('synchronous_commit'))
  THEN
    PERFORM pg_catalog.set_config('synchronous_commit', chosen, true);
  END IF;
END $walrelay$
