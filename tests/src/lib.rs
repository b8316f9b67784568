//! Tests of walrelay as a whole
