//! The real binary against real servers that die, freeze, forget and cut connections.
//!
//! After each: nothing lost, nothing out of order within a key, and what came twice was
//! unconfirmed at that moment.

mod campaign;
mod consuming;
mod database;
mod freeze;
mod history;
mod kills;
mod network;
mod poisoned;
mod recoveries;
mod resets;
mod reshards;
mod state;
mod upgrades;
