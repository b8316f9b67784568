-- script: session
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0
