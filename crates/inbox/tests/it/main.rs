//! Tests of the consumer against a real server.

mod sql_functions;
