//! A private Postgres server from the binaries on the machine, for the demo and the tests
