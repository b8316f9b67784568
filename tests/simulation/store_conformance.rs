//! Runs one random script on the tables in Postgres and on the simulated table. Both must return
//! the same answers. The proofs of the simulation depend on this equality.

mod postgres;
mod script;
mod simulated;
mod store_under_test;

use pgoutput_parser::{Lsn, Position};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::sync::Mutex;
use walrelay_core::{ClaimAnswer, OnDead};
use walrelay_outbox_store::{ParkedKey, Store as _, StoreFailure};

use postgres::InPostgres;
use script::{Keys, ScriptedRelay, Step, any_bound, any_on_dead, steps};
use simulated::Simulated;
use store_under_test::StoreUnderTest;

/// The number of random scripts per version of Postgres.
const SCRIPTS: u32 = 60;

/// Runs the steps. Returns the answers of the store, and its contents after each step.
async fn answers<S: StoreUnderTest>(subject: &mut S, steps: &[Step]) -> Vec<String> {
    let (keys, mut actor) = (Keys::new(), ScriptedRelay::new());
    let mut answers = Vec::new();
    for step in steps {
        let answer = answer(subject, &keys, &mut actor, step).await;
        let answer = answer.unwrap_or_else(|failure| panic!("{step:?}: {failure:?}"));
        answers.push(format!("{step:?}: {answer}"));
        answers.extend(subject.contents().await);
    }
    answers
}

async fn answer<S: StoreUnderTest>(
    subject: &mut S,
    keys: &Keys,
    actor: &mut ScriptedRelay,
    step: &Step,
) -> Result<String, StoreFailure> {
    match step {
        Step::Park(rows) => {
            let rows = actor.rows_to_record(keys, rows);
            subject.store().park(&rows).await?;
        }
        Step::ParkAgain => subject.store().park(&actor.same_rows_again(keys)).await?,
        Step::Claim { chosen, bytes_max } => {
            let wanted = keys.to_claim(*chosen, *bytes_max);
            let claimed = subject.store().claim(&wanted, *bytes_max, actor.through()).await?;
            let told = claimed.iter().zip(&wanted).map(|(claimed, key)| {
                format!("{} {}: {}", key.topic, key.ordering_key, describe_claim(claimed))
            });
            let told = told.collect::<Vec<_>>().join("; ");
            actor.take(claimed);
            return Ok(told);
        }
        Step::Finish(outcomes) => subject.store().finish(&actor.finish(outcomes)).await?,
        Step::Due => {
            let mut due = subject.store().due_keys(&[]).await?;
            due.keys.sort();
            return Ok(format!("{due:?}"));
        }
        Step::Spilled(end) => {
            let waits = subject.store().has_spilled_before(Lsn::new(*end)).await?;
            return Ok(waits.to_string());
        }
        Step::Open { from, page } => {
            let mut parked = Vec::new();
            let mut tell = |key: ParkedKey| parked.push(describe_key(&key));
            subject.store().parked_keys(&mut tell).await?;
            parked.sort();
            let from = Position { commit_lsn: Lsn::new(*from), tx_index: 0 };
            let recorded = subject.store().recorded_from(from, *page).await?;
            return Ok(format!("{parked:?} {recorded:?}"));
        }
        Step::Hold(key) => subject.hold(*key).await,
        Step::AddHistory(key, row) if actor.may_repeat(*key, *row) => {
            subject.add_history(*key, *row).await;
        }
        Step::AddHistory(..) => {}
        Step::Lift(key) => subject.lift(*key).await,
        Step::Settled(to) => subject.store().note_settled(Lsn::new(*to), 0).await?,
        Step::RetryDead => subject.retry_dead().await,
        Step::RetryTopic(topic) => subject.retry_topic(script::topic(*topic)).await,
        Step::Discard(row) => subject.discard(*row).await,
        Step::Elapse(time) => subject.elapse(*time).await,
    }
    Ok(String::new())
}

fn describe_claim(claimed: &ClaimAnswer) -> String {
    let mut rows: Vec<_> =
        claimed.rows.iter().map(|(message, attempts)| (message.position(), *attempts)).collect();
    // Unordered rows may arrive in any order. Rows with a key must arrive in commit order.
    if claimed.rows.iter().all(|(message, _)| message.ordering_key().is_empty()) {
        rows.sort();
    }
    format!("{rows:?}, held {}", script::rounded_minutes(claimed.held_for))
}

fn describe_key(key: &ParkedKey) -> String {
    let ParkedKey { topic, ordering_key, is_held, behind, next_attempt_in, attempts } = key;
    // Unordered rows have no first row.
    let attempts = if ordering_key.is_empty() { &0 } else { attempts };
    let due = script::rounded_minutes(*next_attempt_in);
    format!("{topic} {ordering_key}: {is_held} {behind:?} {due} {attempts}")
}

fn in_simulation((on_dead, before): (OnDead, u64), steps: &[Step]) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async { answers(&mut Simulated::new(on_dead, before), steps).await })
}

#[test]
fn the_simulated_table_answers_as_postgres_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let Some(postgres) = runtime.block_on(InPostgres::create()) else { return };
    let postgres = Mutex::new(postgres);
    let mut runner =
        TestRunner::new(Config { cases: SCRIPTS, failure_persistence: None, ..Config::default() });
    let ran = runner.run(&(any_on_dead(), any_bound(), steps()), |(on_dead, before, steps)| {
        let expected = runtime.block_on(async {
            let mut postgres = postgres.lock().await;
            postgres.begin(on_dead, before).await;
            answers(&mut *postgres, &steps).await
        });
        let simulated = in_simulation((on_dead, before), &steps);
        match expected.iter().zip(&simulated).find(|(ours, theirs)| ours != theirs) {
            None => Ok(()),
            Some((expected, found)) => Err(TestCaseError::fail(format!(
                "Postgres says {expected}\nthe simulation says {found}"
            ))),
        }
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}
