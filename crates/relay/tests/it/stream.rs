//! Tests the parts of the data path one by one in virtual time. The simulation tests the whole
//! loop.

mod fake_store;
mod publishes;
mod recorder;
