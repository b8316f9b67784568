//! `walrelay dispatch`: lists and changes rows that were not published at the first attempt.

mod discard;
mod edit;
mod list;
mod message;
mod retry;
mod rows;
mod show;
#[cfg(test)]
mod tests;

crate::plan::commands! {
    /// What to do with dispatch state.
    Dispatch {
        List(list::List),
        Show(show::Show),
        Retry(retry::Retry),
        Edit(edit::Edit),
        Discard(discard::Discard),
    }
}
