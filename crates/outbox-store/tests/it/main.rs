//! Tests of dispatch state, migrations and producers against a real server.

mod dispatch;
mod migrations;
mod producer;
mod support;
