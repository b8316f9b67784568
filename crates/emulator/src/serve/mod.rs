//! The sockets: gRPC, administration as JSON on the same port, and the control port.

mod control;
mod json;
mod rest;
mod server;
pub(crate) mod tls;
