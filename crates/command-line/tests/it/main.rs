//! Tests of the command line from outside: the configuration, and the generated references.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod configuration;
mod reference;
