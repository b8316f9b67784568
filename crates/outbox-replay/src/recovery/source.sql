-- script: session
SET DateStyle = 'ISO';
SET TimeZone = 'UTC';
SET bytea_output = 'hex';
SET IntervalStyle = 'postgres';
SET extra_float_digits = 1;
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0
