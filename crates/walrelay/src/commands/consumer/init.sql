-- part: grants
SELECT app_inbox_grant('walrelay_consumer');
