//! `walrelay inbox`: lists and changes events that a consumer could not apply.

mod discard;
mod edit;
mod events;
mod list;
mod retry;
mod show;

crate::plan::commands! {
    /// What to do with events that failed.
    Inbox {
        List(list::List),
        Show(show::Show),
        Retry(retry::Retry),
        Edit(edit::Edit),
        Discard(discard::Discard),
    }
}
