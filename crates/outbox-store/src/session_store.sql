-- script: session_settings
SELECT set_config('synchronous_commit', 'on', false)
 WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply');
SET statement_timeout = '60s';
SET lock_timeout = '10s';
SET idle_in_transaction_session_timeout = '60s';
SET search_path = pg_catalog, pg_temp;
LISTEN walrelay_dispatch;
