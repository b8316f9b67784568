//! `walrelay replay`: publishes rows again, from the WAL or the outbox table, beside the running
//! relay.

mod cancel;
mod list;
mod progress;
mod record;
mod report;
mod resume;
mod show;
mod start;
mod work;

crate::plan::commands! {
    /// What to do with replays.
    Replay {
        Start(start::Start),
        List(list::List),
        Show(show::Show),
        Resume(resume::Resume),
        Cancel(cancel::Cancel),
    }
}
