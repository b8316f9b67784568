-- name: encoding
SELECT pg_catalog.current_setting('server_encoding'), pg_catalog.current_database()::text
