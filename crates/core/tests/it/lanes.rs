//! Tests of all lanes: step by step, under failures, and against a naive model.

mod bench;
mod failing;
mod invalid;
mod model;
mod parking;
mod resting;
mod sick;
mod steps;
mod waiting;
mod waking;
