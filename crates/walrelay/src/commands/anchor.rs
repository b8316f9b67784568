//! `walrelay anchor`: create, list, advance, drop. Only these commands change anchors (I9).

mod advance;
mod create;
mod drop;
mod list;

crate::plan::commands! {
    /// What to do with anchors.
    Anchor {
        Create(create::Create),
        List(list::List),
        Advance(advance::Advance),
        Drop(drop::Drop),
    }
}
