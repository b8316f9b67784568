//! The arguments of `audit` and `trace`.

use std::time::SystemTime;

use super::super::builder::ConfigBuilder;
use super::super::command::{AuditConfig, InboxPlace, TraceConfig};
use super::super::messages::{ResourceKind, project};
use crate::cli::{AuditArgs, InboxPlaces, TraceArgs};

impl ConfigBuilder<'_> {
    pub(in crate::config) fn audit(&mut self, args: AuditArgs) -> Option<AuditConfig> {
        let inboxes = self.inbox_places(&args.places);
        let columns = self.definition.columns.clone();
        let reason = "not set; an audit goes by the time at which events occurred";
        self.require_time(&columns, reason);
        let subscription = args.subscription.as_ref().map(|given| {
            let project = project(&args.project);
            let name = self.full_name("subscription", given, &project, ResourceKind::Subscription);
            (name.unwrap_or_default(), self.endpoint(&args.endpoint))
        });
        Some(AuditConfig {
            subscription,
            database: self.database(&args.database)?,
            id: columns.id,
            occurred_at: columns.occurred_at?,
            aggregate_type: columns.aggregate_type,
            inboxes: inboxes?,
            since: args.from_time.unwrap_or(SystemTime::UNIX_EPOCH),
            grace: args.grace,
            aggregate_types: args.aggregate_type,
            all: args.all,
            format: args.output.output,
        })
    }

    pub(in crate::config) fn trace(&mut self, args: TraceArgs) -> Option<TraceConfig> {
        let inboxes = self.inbox_places(&args.places);
        Some(TraceConfig {
            database: self.database(&args.database)?,
            columns: self.definition.columns.clone(),
            inboxes: inboxes?,
            event_id: args.id,
            format: args.output.output,
        })
    }

    pub(in crate::config) fn inbox_places(
        &mut self,
        places: &InboxPlaces,
    ) -> Option<Vec<InboxPlace>> {
        let place = |named: &crate::options::values::NamedDatabase| {
            let connect = self.connect_to("inbox", &named.url)?;
            Some(InboxPlace { consumer: named.consumer.clone(), connect })
        };
        places.inbox.iter().map(place).collect()
    }
}
