//! `walrelay config`: shows, checks and describes the configuration.

mod check;
mod schema;
mod show;

crate::plan::commands! {
    /// What to do with the configuration.
    Config {
        Show(show::Show),
        Check(check::Check),
        Schema(schema::Schema),
    }
}
