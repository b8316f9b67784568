//! Checks before the loop that everything the consumer needs exists and has the right form.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use walrelay_errors::Chain;
use walrelay_pg_client::PgError;
use walrelay_pubsub::Subscriber;

use crate::access::{failed, unknown};
use crate::apply::apply_batch::{Connection, LOOK_TIMEOUT, Registration, resolve_handler};
use crate::apply::apply_error::ApplyError;
use crate::apply::apply_options::Plan;
use crate::apply::handler_kind::{Effect, Kind};
use crate::apply::loop_reporter::Observed;
use crate::apply::loop_state::End;
use crate::apply::run::Run;
use crate::encoding::refuse_other_encoding;
use crate::error::InboxError;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::privileges::{refuse_without_handler, refuse_without_inbox, refuse_without_retention};
use crate::retention::redelivery_window_with_dead_letters;
use crate::settings::{Dedupe, Settings};
use crate::subscription_warning::SubscriptionWarning;
use crate::trace::Tracer;
use crate::unlogged_tables::refuse_unlogged;

/// The wait before the next attempt to follow the consumer to another subscription.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The time in which the database must answer all questions of the start, once it is connected.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A consumer whose prerequisites are checked, and that has read no message yet.
#[derive(Debug)]
pub struct Consumer {
    settings: Settings,
    subscriber: Subscriber,
    subscription: String,
    plan: Plan,
    is_paused: bool,
    tracer: Option<Arc<dyn Tracer>>,
}

impl Consumer {
    /// Finds the consumer, its handler and its subscription.
    ///
    /// # Errors
    ///
    /// Fails if one of them does not exist.
    pub async fn prepare(settings: Settings) -> Result<Self, InboxError> {
        settings.refuse_needed_keys()?;
        let mut connection = Connection::new(Arc::new(settings.connect.clone()));
        // A proxy may accept the connection, and pass no answer.
        let limit = START_TIMEOUT + settings.connect.connect_timeout();
        let Ok(found) = timeout(limit, find(&mut connection, &settings)).await else {
            return Err(InboxError::Connect(PgError::Silent { limit }));
        };
        connection.close().await;
        let (registration, effect) = found?;
        let subscription = settings.subscription.clone().unwrap_or(registration.subscription);
        let subscriber = Subscriber::connect(&settings.endpoint)?;
        let Some(is) = subscriber.subscription(&subscription).await? else {
            return Err(InboxError::SubscriptionMissing { subscription });
        };
        for remark in SubscriptionWarning::read(&subscriber, &is).await {
            tracing::warn!(subscription, "the subscription {}; {}", remark.told(), remark.fix());
        }
        if let Some(retention) = settings.retention {
            let window = redelivery_window_with_dead_letters(&subscriber, &is).await;
            retention.refuse_short(&is.name, window)?;
        }
        if settings.dedupe == Dedupe::Position {
            tracing::info!(
                "an event before the position of its key is skipped only if it has the attribute system_identifier; the \
                 relay can add it"
            );
        }
        let plan = Plan {
            consumer: settings.consumer.clone(),
            generation: registration.generation,
            effect,
            on_dead: settings.on_dead,
            max_attempts: i32::try_from(settings.max_attempts).unwrap_or(i32::MAX),
            on_gap: settings.on_gap,
            dedupe: settings.dedupe,
            handler_timeout: settings.handler_timeout,
            lock_timeout: Plan::lock_timeout(settings.handler_timeout),
        };
        let is_paused = registration.paused;
        Ok(Self { settings, subscriber, subscription, plan, is_paused, tracer: None })
    }

    /// Returns the subscription that the consumer reads.
    #[must_use]
    pub fn subscription(&self) -> &str {
        &self.subscription
    }

    /// Reports the consumer's transactions to `tracer`.
    #[must_use]
    pub fn traced(self, tracer: Arc<dyn Tracer>) -> Self {
        Self { tracer: Some(tracer), ..self }
    }

    /// Consumes until `stop` completes, or until the consumer has caught up if the settings say so.
    /// The consumer waits until failures of the database and of Pub/Sub are over.
    ///
    /// # Errors
    ///
    /// Fails if the consumer should catch up, and is paused or the server refuses every event.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        metrics: Metrics,
        health: Health,
    ) -> Result<(), InboxError> {
        let mut stop = pin!(stop);
        let mut consumer = self;
        loop {
            let (settings, tracer) = (consumer.settings.clone(), consumer.tracer.clone());
            let run = consumer.begin(metrics.clone(), health.clone());
            match Box::pin(run.consume(stop.as_mut())).await {
                End::Over => return Ok(()),
                End::Paused => return Err(InboxError::Paused { consumer: settings.consumer }),
                End::Refused => {
                    let problem = health.database_problem().unwrap_or_default();
                    return Err(InboxError::Refused { problem });
                }
                End::Moved => {}
            }
            consumer = tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                found = Self::prepare_again(settings, &health) => Self { tracer, ..found },
            };
        }
    }

    fn begin(self, metrics: Metrics, health: Health) -> Run {
        let Self { settings, subscriber, subscription, plan, is_paused, tracer } = self;
        let observed = Observed::new(metrics, health, tracer);
        let run = Run::new(settings, subscriber, &subscription, plan, observed);
        if is_paused { run.paused() } else { run }
    }

    /// Prepares a consumer that ran before, and waits for anything that is missing.
    async fn prepare_again(settings: Settings, health: &Health) -> Self {
        loop {
            let error = match Self::prepare(settings.clone()).await {
                Ok(prepared) => return prepared,
                Err(error) => error,
            };
            health.beat();
            let error = Chain(&error).to_string();
            let problem = format!("cannot follow to another subscription yet: {error}");
            if health.set_stream_problem(Some(problem)) {
                tracing::warn!(error, "cannot follow to another subscription yet");
            }
            sleep(AGAIN_AFTER).await;
        }
    }
}

/// Finds the consumer's row and its handler, after a check of the database and of the role's
/// privileges.
async fn find(
    connection: &mut Connection,
    settings: &Settings,
) -> Result<(Registration, Effect), InboxError> {
    refuse_other_encoding(connection.client().await.map_err(unusable)?).await?;
    connection.refuse_hidden().await?;
    refuse_without_inbox(connection.client().await.map_err(unusable)?).await?;
    if settings.retention.is_some() {
        refuse_without_retention(connection.client().await.map_err(unusable)?).await?;
    }
    refuse_unlogged(connection.client().await.map_err(unusable)?).await?;
    let registration = connection.registration(&settings.consumer).await.map_err(unusable)?;
    let client = connection.client().await.map_err(unusable)?;
    let Some(registration) = registration else {
        return Err(unknown(&settings.consumer));
    };
    let effect = match &settings.effect.0 {
        Kind::Function(name) => {
            let found = resolve_handler(client, name_of(name)).await;
            let handler = choose(name, found.map_err(|error| unreadable(name, error))?)?;
            refuse_without_handler(client, &handler).await?;
            Effect::function(handler)
        }
        Kind::Handler(_) => settings.effect.clone(),
    };
    Ok((registration, effect))
}

/// Returns the same error as every other command that reads the consumer's row, so that one cause
/// has one hint.
fn unusable(error: ApplyError) -> InboxError {
    match error {
        ApplyError::Connect(error) => InboxError::Connect(error),
        ApplyError::Sql(error) => failed("read the consumer")(error),
        ApplyError::Silent => InboxError::Connect(PgError::Silent { limit: LOOK_TIMEOUT }),
        ApplyError::Severed(cause) => unusable(*cause),
        ApplyError::Handler(..) | ApplyError::Overdue | ApplyError::Garbled => {
            InboxError::Inbox { problem: error.to_string() }
        }
    }
}

/// Blames an invalid name (class 22) on the setting, and every other error on the server.
fn unreadable(given: &str, error: tokio_postgres::Error) -> InboxError {
    match error.as_db_error() {
        Some(answer) if answer.code().code().starts_with("22") => {
            InboxError::Handler { handler: given.to_owned(), problem: answer.message().to_owned() }
        }
        Some(_) | None => failed("look for the handler")(error),
    }
}

/// Returns `shop.apply(app_inbox_event[])` without its argument.
fn name_of(handler: &str) -> &str {
    handler.split('(').next().unwrap_or(handler).trim()
}

/// Returns the only function that matches the given name.
fn choose(given: &str, found: Vec<String>) -> Result<String, InboxError> {
    let refuse = |problem: &str| {
        Err(InboxError::Handler { handler: given.to_owned(), problem: problem.to_owned() })
    };
    let wanted = given.split_once('(').map(|(_, argument)| argument.trim().ends_with("[])"));
    let fits = |name: &String| wanted.is_none_or(|array| name.ends_with("[])") == array);
    let mut fitting: Vec<String> = found.into_iter().filter(fits).collect();
    match (fitting.pop(), fitting.is_empty()) {
        (None, _) => refuse(
            "there is no such function; a handler is f(app_inbox_event) or f(app_inbox_event[]) and RETURNS \
             void",
        ),
        (Some(handler), true) => Ok(handler),
        (Some(_), false) => {
            refuse("there are several; name the argument too, as in shop.apply(app_inbox_event[])")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: &str = "shop.apply(public.app_inbox_event)";
    const SET: &str = "shop.apply(public.app_inbox_event[])";

    #[test]
    fn a_handler_is_chosen_by_its_name_and_if_need_be_by_its_argument() {
        let both = || vec![EACH.to_owned(), SET.to_owned()];
        assert_eq!(choose("shop.apply", vec![SET.into()]).ok().as_deref(), Some(SET));
        assert_eq!(choose("shop.apply(app_inbox_event[])", both()).ok().as_deref(), Some(SET));
        assert_eq!(choose("shop.apply(app_inbox_event)", both()).ok().as_deref(), Some(EACH));
        let several = choose("shop.apply", both()).expect_err("two fit").to_string();
        assert!(several.contains("name the argument"), "{several}");
        let none = choose("shop.apply", Vec::new()).expect_err("none fits").to_string();
        assert!(none.contains("a handler is f(app_inbox_event)"), "{none}");
        assert_eq!(name_of("shop.apply(app_inbox_event[])"), "shop.apply");
    }
}
