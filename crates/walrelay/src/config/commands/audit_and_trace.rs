//! The arguments of `audit` and `trace`.

use std::time::{Duration, SystemTime};

use walrelay_pg_client::ConnectConfig;

use super::super::builder::ConfigBuilder;
use super::super::command::{AuditConfig, InboxPlace, TraceConfig};
use super::replay_orders::Place;
use crate::cli;

/// Longest grace period. An event that takes longer has another problem.
const GRACE_MAX: Duration = Duration::from_hours(24 * 7);

impl ConfigBuilder<'_> {
    pub(in crate::config) fn audit(&mut self, args: &cli::AuditArgs) -> Option<AuditConfig> {
        let since = match self.place(("since", None), ("since", args.since.as_deref())) {
            Some(Place::Time(moment)) => moment,
            Some(Place::Lsn(_)) | None => SystemTime::UNIX_EPOCH,
        };
        let grace = self.problems.duration("grace", &args.grace, Duration::ZERO..=GRACE_MAX);
        let inboxes = self.inbox_places(&args.places);
        let columns = self.columns();
        if columns.occurred_at.is_none() {
            let allowed = "not set; an audit goes by the time at which events occurred";
            self.problems.report_without_value("column-occurred-at", allowed);
        }
        let format = self.format();
        let subscription = args.subscription.as_ref().map(|given| {
            let project = self.project();
            let name = self.full_name("subscription", given, &project, "subscriptions");
            (name.unwrap_or_default(), self.endpoint())
        });
        Some(AuditConfig {
            subscription,
            database: self.database()?,
            id: columns.id,
            occurred_at: columns.occurred_at?,
            aggregate_type: columns.aggregate_type,
            inboxes: inboxes?,
            since,
            grace,
            aggregate_types: args.aggregate_type.clone(),
            all: args.all,
            format,
        })
    }

    pub(in crate::config) fn trace(&mut self, args: &cli::TraceArgs) -> Option<TraceConfig> {
        let inboxes = self.inbox_places(&args.places);
        let columns = self.columns();
        let format = self.format();
        Some(TraceConfig {
            database: self.database()?,
            columns,
            inboxes: inboxes?,
            event_id: args.id.clone(),
            format,
        })
    }

    pub(in crate::config) fn inbox_places(
        &mut self,
        args: &cli::InboxPlaces,
    ) -> Option<Vec<InboxPlace>> {
        args.inbox.iter().map(|text| self.inbox_place(text)).collect()
    }

    /// Reads a consumer and its database. A problem does not repeat the text, which may contain a
    /// password.
    fn inbox_place(&mut self, text: &str) -> Option<InboxPlace> {
        let Some((consumer, url)) = text.split_once('=').filter(|(name, _)| !name.is_empty())
        else {
            let allowed = "a consumer and its database, NAME=postgresql://user@host:port/database";
            self.problems.report_without_value("inbox", allowed);
            return None;
        };
        let connect = self.connect_to("inbox", url)?;
        Some(InboxPlace { consumer: consumer.to_owned(), connect })
    }

    /// Reads the URL of a database other than `--database-url`.
    pub(in crate::config) fn connect_to(
        &mut self,
        option: &'static str,
        url: &str,
    ) -> Option<ConnectConfig> {
        match ConnectConfig::parse(url, &self.postgres_environment()) {
            Ok(connect) => Some(connect),
            Err(found) => {
                for problem in found {
                    self.problems.report_without_value(option, problem.to_string());
                }
                None
            }
        }
    }
}
