-- The statements whose WAL tests/captured.rs decodes. Each statement is a transaction, except
-- between BEGIN and COMMIT.
CREATE TYPE mood AS ENUM ('calm', 'stormy');
CREATE TABLE outbox (
  id        bigint PRIMARY KEY,
  kind      varchar(40) NOT NULL,
  payload   jsonb,
  body      bytea,
  amount    numeric,
  weather   mood,
  happened  timestamptz
);
CREATE TABLE document (id int PRIMARY KEY, title text, content text);
ALTER TABLE document ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE TABLE note (text text);
ALTER TABLE note REPLICA IDENTITY FULL;
CREATE PUBLICATION everything FOR ALL TABLES;
SELECT 'slot' FROM pg_create_logical_replication_slot('capture', 'pgoutput');
SELECT 'origin' FROM pg_replication_origin_create('elsewhere');

-- Rows of one transaction. A row rolled back in between leaves no gap in the index.
BEGIN;
INSERT INTO outbox VALUES (1, 'created', '{"a": 1}', '\x00ff10', 12.50, 'calm', '2026-09-18 10:21:35.123456+00');
SAVEPOINT before;
INSERT INTO outbox VALUES (99, 'rolled back');
ROLLBACK TO before;
INSERT INTO outbox VALUES (2, '', NULL, '', NULL, NULL, NULL), (3, 'grüße, 世界', 'null', NULL, 'NaN', 'stormy', 'infinity');
COMMIT;

-- This transaction is never decoded.
BEGIN; INSERT INTO outbox VALUES (98, 'rolled back'); ROLLBACK;

-- The server describes a changed table again, before its next row.
ALTER TABLE outbox DROP COLUMN amount;
ALTER TABLE outbox ADD COLUMN "Version" int DEFAULT 7;
INSERT INTO outbox (id, kind) VALUES (4, 'altered');

-- Updates in four forms: with new values only, with the old key, with the whole old row, and with
-- an unchanged large value.
INSERT INTO document VALUES (1, 'first', repeat('large ', 400));
UPDATE document SET title = 'second';
UPDATE document SET id = 2, content = 'small';
INSERT INTO note VALUES ('old');
UPDATE note SET text = 'new';

DELETE FROM document;
DELETE FROM note;
TRUNCATE outbox, note RESTART IDENTITY CASCADE;

SELECT 'message' FROM pg_logical_emit_message(false, 'loose', 'outside');
BEGIN;
SELECT 'message' FROM pg_logical_emit_message(true, 'bound', '\x00ff'::bytea);
INSERT INTO outbox (id, kind) VALUES (5, 'beside a message');
COMMIT;

SELECT 'origin' FROM pg_replication_origin_session_setup('elsewhere');
BEGIN;
SELECT 'origin' FROM pg_replication_origin_xact_setup('AB/CDEF', '2026-01-01 00:00:00+00');
INSERT INTO outbox (id, kind) VALUES (6, 'from elsewhere');
COMMIT;
