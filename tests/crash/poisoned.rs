//! A campaign with poison events, during which consumers and relays are killed. The handler fails
//! on one event in a hundred, over 500 keys. Every other event must take effect once and in order,
//! and an audit must agree.
//!
//! `WALRELAY_CAMPAIGN_EVENTS` sets another number of events.

use std::time::Instant;

use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, PgBouncer};

use crate::kills::setting;

const CONSUMERS_KILLED: u32 = 10;
const RELAYS_KILLED: u32 = 5;
/// A failed event is dead after its second attempt, and does not block its key.
const OPTIONS: [&str; 6] = ["--max-attempts", "2", "--on-dead", "continue", "--batch", "50"];

/// The published events and the number of poison events.
struct Campaign {
    world: InboxDatabase,
    events: i64,
    poison: i64,
    /// The database URL for the consumers.
    url: String,
}

impl Campaign {
    async fn begin() -> Option<Self> {
        let events = setting("WALRELAY_CAMPAIGN_EVENTS").unwrap_or(10_000);
        let events = i64::try_from(events).expect("a number of events");
        let world = InboxDatabase::create().await?;
        world.set_up_consumer().await;
        world
            .execute(&format!(
                "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                 SELECT 'video', 'key-' || (n + n / 100) % 500, 'made', n,
                        CASE WHEN n % 100 = 0 THEN '{{\"fails\": true}}'::jsonb ELSE '{{}}' END
                   FROM generate_series(1, {events}) AS n"
            ))
            .await;
        let url = world.url().to_owned();
        Some(Self { world, events, poison: events / 100, url })
    }

    async fn start_consumer(&self) -> Relay {
        let options = OPTIONS.into_iter().chain(["--database-url", &self.url]);
        self.world.start_consumer(options).await
    }

    /// Runs `instances` consumers at a time until every event is handled.
    async fn run(&self, instances: usize) {
        let begun = Instant::now();
        let mut relay = self.world.start_relay([]).await;
        let mut consumers = Vec::new();
        for _ in 0..instances {
            consumers.push(self.start_consumer().await);
        }
        for round in 1..=CONSUMERS_KILLED {
            let some = self.world.applied_count().await + self.events / 30;
            self.world.wait_applied(some.min(self.events - self.poison)).await;
            // The oldest consumer is killed, so that each consumer dies in turn.
            consumers.remove(0).kill();
            if round % (CONSUMERS_KILLED / RELAYS_KILLED) == 0 {
                relay.kill();
                relay = self.world.start_relay([]).await;
            }
            consumers.push(self.start_consumer().await);
        }
        let wanted = self.events - self.poison;
        // The total time depends on the number of events, so the deadline applies to each 500
        // events.
        while self.world.applied_count().await < wanted {
            self.world.wait_applied((self.world.applied_count().await + 500).min(wanted)).await;
        }
        wait_until(DEADLINE, "the poison to be dead", async || {
            let dead = "SELECT count(*) FROM app_inbox
                         WHERE status = 'dead' AND last_error LIKE '%poison%'";
            (self.world.number(dead).await == self.poison).then_some(())
        })
        .await;
        drop(consumers);
        self.judge().await;
        drop(relay);
        eprintln!(
            "{} events, {instances} instance(s), {CONSUMERS_KILLED} consumers and {RELAYS_KILLED} relays killed: {} s",
            self.events,
            begun.elapsed().as_secs()
        );
    }

    async fn judge(&self) {
        let Self { world, events, poison, .. } = self;
        let applied = "SELECT count(*) - count(DISTINCT event_id) FROM effect.applied";
        assert_eq!(world.number(applied).await, 0, "events were applied twice");
        assert_eq!(world.applied_count().await, events - poison);
        let sum = "SELECT sum(events)::bigint FROM effect.balance";
        assert_eq!(world.number(sum).await, events - poison);
        let inversions = "SELECT count(*) FROM (
              SELECT o.version, lag(o.version) OVER (PARTITION BY a.key ORDER BY a.n) AS before
                FROM effect.applied AS a JOIN app_outbox AS o ON o.id::text = a.event_id) AS x
            WHERE before > version";
        assert_eq!(world.number(inversions).await, 0, "the order of a key was broken");
        let listed =
            world.succeed(["inbox", "list", "--status", "dead", "--limit", "100000"]).await;
        let reasons = i64::try_from(listed.matches("22000: poison").count());
        assert_eq!(reasons, Ok(*poison), "{listed}");
        wait_until(DEADLINE, "everything to be settled on record", async || {
            let told = world.run(["audit", "--grace", "0s"]).await;
            assert_eq!(told.code, Some(0), "{}", told.text);
            told.text.contains(&format!("{events} settled event(s)")).then_some(())
        })
        .await;
        // A missing row must make the audit fail, which proves that the audit detects losses.
        world
            .execute("DELETE FROM app_inbox WHERE ctid IN (SELECT ctid FROM app_inbox LIMIT 1)")
            .await;
        let holed = world.run(["audit", "--grace", "0s"]).await;
        assert_eq!(holed.code, Some(1), "{}", holed.text);
        assert!(holed.text.contains("1 are MISSING"), "{}", holed.text);
    }
}

#[tokio::test]
async fn with_poison_and_kills_everything_else_takes_effect_once_and_an_audit_agrees() {
    let Some(campaign) = Campaign::begin().await else { return };
    campaign.run(1).await;
}

#[tokio::test]
async fn through_a_pooler_in_transaction_mode_everything_else_takes_effect_once_too() {
    let Some(mut campaign) = Campaign::begin().await else { return };
    let pooler = PgBouncer::start(&campaign.world, "transaction", "extra_float_digits").await;
    let Some(pooler) = pooler else { return };
    campaign.url = pooler.url(&campaign.world);
    campaign.run(1).await;
}

#[tokio::test]
async fn with_two_instances_on_one_subscription_everything_else_takes_effect_once_too() {
    let Some(campaign) = Campaign::begin().await else { return };
    campaign.run(2).await;
}
