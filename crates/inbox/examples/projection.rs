//! A projection in Rust: the newest state of each order, and the number of its events.
//!
//! ```text
//! walrelay consumer init orders --subscription orders --create --topic order.events
//! psql -c 'CREATE TABLE order_state (id text PRIMARY KEY, version bigint, status text, events bigint)'
//! psql -c 'REVOKE ALL ON order_state FROM anon, authenticated'   # on Supabase, where it is open to the internet
//! DATABASE_URL=… GOOGLE_CLOUD_PROJECT=… cargo run -p walrelay-inbox --example projection -- orders
//! ```

#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a program, not a library")]

use std::env;
use std::error::Error;

use serde_json::Value;
use walrelay_inbox::{
    ConnectConfig, Consumer, Effect, Endpoint, Event, Handler, HandlerError, Health, Metrics,
    PgEnv, QUIET_FOR, Settings, Transaction, Until,
};

struct Projection;

const WRITE: &str = "
    INSERT INTO order_state AS o VALUES ($1, $2, $3, 1)
    ON CONFLICT (id) DO UPDATE
       SET events = o.events + 1,
           version = greatest(o.version, excluded.version),
           -- The gate: an event that comes late changes no state.
           status = CASE WHEN o.version < excluded.version THEN excluded.status ELSE o.status END";

impl Handler for Projection {
    async fn handle(
        &self,
        transaction: &Transaction<'_>,
        events: &[Event],
    ) -> Result<(), HandlerError> {
        // Sorted by key, because batches that lock the same rows in different orders deadlock.
        let mut events: Vec<&Event> = events.iter().collect();
        events.sort_by_key(|event| event.aggregate_id.as_deref());
        let write = transaction.prepare(WRITE).await?;
        for event in events {
            // Data that is no JSON now never will be, so a retry is useless.
            let order: Value = serde_json::from_slice(&event.data).map_err(HandlerError::dead)?;
            let status = order["status"].as_str();
            transaction.execute(&write, &[&event.aggregate_id, &event.version, &status]).await?;
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1).unwrap_or_else(|| "orders".to_owned());
    let connect = ConnectConfig::parse(&env::var("DATABASE_URL")?, &PgEnv::default())
        .map_err(|problems| format!("DATABASE_URL: {problems:?}"))?;
    let endpoint = match env::var("PUBSUB_EMULATOR_HOST") {
        Ok(host) => Endpoint::emulator(&host)?,
        Err(_) => Endpoint::production(),
    };
    let settings = Settings {
        until: Until::CaughtUp { quiet_for: QUIET_FOR },
        ..Settings::new(name.as_str(), Effect::handler(Projection), connect, endpoint)
    };
    let consumer = Consumer::prepare(settings).await?;
    println!("reading {}", consumer.subscription());
    // Runs until the consumer has caught up. A real program passes a future that completes on a
    // signal.
    consumer.run(std::future::pending(), Metrics::new(&name), Health::new(&name)).await?;
    Ok(())
}
