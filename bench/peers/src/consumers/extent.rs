//! How much is measured of each consumer.

use walrelay_bench::size::Size;

/// How much is measured of each consumer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConsumerExtent {
    pub(super) events: u32,
    pub(super) drain_seconds: u32,
    pub(super) rounds: u32,
    pub(super) fault_events: u32,
    /// How often a consumer is killed. The messages of a killed one stay leased for a minute.
    pub(super) kills: u32,
}

impl ConsumerExtent {
    pub(super) fn of(size: Size) -> Self {
        match size {
            Size::Full => Self {
                events: 50_000,
                drain_seconds: 30,
                rounds: 3,
                fault_events: 20_000,
                kills: 3,
            },
            Size::Quick => {
                Self { events: 10_000, drain_seconds: 6, rounds: 1, fault_events: 5_000, kills: 0 }
            }
            Size::Tiny => {
                Self { events: 200, drain_seconds: 20, rounds: 1, fault_events: 200, kills: 0 }
            }
        }
    }
}
