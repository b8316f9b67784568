-- part: grants
GRANT USAGE ON SCHEMA public TO walrelay_consumer;
GRANT SELECT ON app_inbox_consumer TO walrelay_consumer;
GRANT UPDATE (pruned_before) ON app_inbox_consumer TO walrelay_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON app_inbox, app_inbox_key TO walrelay_consumer;
CREATE POLICY walrelay_consumer ON app_inbox_consumer FOR SELECT TO walrelay_consumer USING (true);
CREATE POLICY walrelay_consumer_prune ON app_inbox_consumer FOR UPDATE TO walrelay_consumer USING (true);
CREATE POLICY walrelay_consumer ON app_inbox     TO walrelay_consumer USING (true) WITH CHECK (true);
CREATE POLICY walrelay_consumer ON app_inbox_key TO walrelay_consumer USING (true) WITH CHECK (true);
GRANT EXECUTE ON FUNCTION
  app_inbox_apply, app_inbox_redeliver, app_inbox_accept, app_inbox_check, app_inbox_lock, app_inbox_take,
  app_inbox_verdicts, app_inbox_is_let_through, app_inbox_gaps, app_inbox_heads, app_inbox_take_due,
  app_inbox_encode, app_inbox_stored, app_inbox_payload, app_inbox_events, app_inbox_fault, app_inbox_run,
  app_inbox_gaps_behind, app_inbox_run_without_gaps, app_inbox_blame, app_inbox_advance, app_inbox_record_applied,
  app_inbox_give_up, app_inbox_next_attempt, app_inbox_record_failed, app_inbox_record_held,
  app_inbox_settle TO walrelay_consumer;
