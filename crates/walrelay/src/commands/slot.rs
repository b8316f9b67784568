//! `walrelay slot`: drops, advances, resets, releases and recovers the slot. Only explicit commands create or
//! drop slots (I9).

mod advance;
mod drop;
mod recover;
mod release;
mod reset;

crate::plan::commands! {
    /// What to do with the slot.
    Slot {
        Drop(drop::Drop),
        Advance(advance::Advance),
        Reset(reset::Reset),
        Release(release::Release),
        Recover(recover::Recover),
    }
}
