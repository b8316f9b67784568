//! Tests of private servers with real binaries.

mod private_server;
