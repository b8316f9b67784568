//! `walrelay consumer`: sets up, runs and operates consumers.

mod init;
mod list;
mod pause;
mod prune;
mod rebuild;
mod reset_key;
mod resume;
pub(crate) mod run;
mod scaffold;
mod status;

crate::plan::commands! {
    /// What to do with a consumer.
    Consumer {
        Init(init::Init),
        Run(run::Run),
        List(list::List),
        Scaffold(scaffold::Scaffold),
        Status(status::Status),
        Pause(pause::Pause),
        Resume(resume::Resume),
        Rebuild(rebuild::Rebuild),
        ResetKey(reset_key::ResetKey),
        Prune(prune::Prune),
    }
}
