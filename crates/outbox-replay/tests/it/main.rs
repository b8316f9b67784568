//! Tests of rows that are read again, against a real server.

mod gap;
