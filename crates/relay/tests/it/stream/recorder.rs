//! Tests of the commands to dispatch state: their order, their intervals and their retries.

use std::time::Duration;

use pgoutput_parser::{Lsn, Position, encode};
use tokio::time::{Instant, timeout};
use walrelay_core::{ClaimKey, Topic, Tracker, Watermark};
use walrelay_outbox_store::{Reason, ReasonKind, StoreFailure};
use walrelay_relay::observe::health::{Health, Phase, Problem};
use walrelay_relay::stream::dispatch_writer::{
    ClaimRequest, DispatchEvent, DispatchWriter, Intervals,
};
use walrelay_relay::stream::watermark_journal::InFlight;

use super::fake_store::{FakeStore, LATENCY, claims, finished, rows_to_record};

const SECOND: Duration = Duration::from_secs(1);
const RETENTION: Duration = Duration::from_secs(77);

/// Returns a recorder that has checked the publication once and does not check it again.
async fn recorder() -> (DispatchWriter<FakeStore>, FakeStore) {
    let desk = FakeStore::new();
    let intervals = Intervals::with_retention(RETENTION);
    let intervals = Intervals { watch: Duration::from_secs(1 << 30), ..intervals };
    let mut recorder = DispatchWriter::new(desk.clone(), intervals);
    assert!(matches!(recorder.next().await, Ok(DispatchEvent::Watched(_))), "at once");
    (recorder, desk)
}

fn claiming(keys: Vec<ClaimKey>) -> ClaimRequest {
    let through = Position { commit_lsn: Lsn::new(7), tx_index: 0 };
    ClaimRequest { keys, bytes_max: 99, through }
}

fn watermark(lsn: u64) -> Watermark {
    let mut tracker = Tracker::new();
    tracker.observe(encode::boundary(Lsn::new(lsn)));
    tracker.intact(Lsn::new(lsn));
    tracker.watermark()
}

async fn run(recorder: &mut DispatchWriter<FakeStore>, time: Duration) -> Vec<DispatchEvent> {
    let mut events = Vec::new();
    let until = Instant::now() + time;
    while let Ok(event) = tokio::time::timeout_at(until, recorder.next()).await {
        events.push(event.unwrap());
    }
    events
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_is_asked_for_nothing_looks_after_the_table() {
    let (mut recorder, desk) = recorder().await;
    run(&mut recorder, SECOND * 1_250).await;
    assert!(desk.times_of("settled").is_empty(), "nothing is");
    let expected = [("due", 1, 1_250), ("survey", 5, 250), ("prune 77s", 600, 2)];
    for (command, seconds, count) in expected {
        let times = desk.times_of(command);
        // Each interval starts at the end of the command, so the times drift a little.
        assert!(times.len().abs_diff(count) <= count / 50, "{command} {times:?}");
        let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
        let least = SECOND * seconds - LATENCY * 4;
        assert!(pauses.clone().all(|pause| pause >= least), "{command} {times:?}");
        assert!(pauses.clone().all(|pause| pause <= least + LATENCY * 20), "{command} {times:?}");
    }
    assert!(desk.times_of("due")[0].is_zero(), "keys that are due are looked for at once");
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_written_first_then_rows_then_keys_are_claimed() {
    let (mut recorder, desk) = recorder().await;
    recorder.claim(claiming(claims(&["a", "b"])));
    recorder.park(&mut rows_to_record(&[1, 2]));
    recorder.finish(&mut finished(&[3]));
    recorder.park(&mut rows_to_record(&[4]));
    let events = run(&mut recorder, SECOND / 2).await;
    assert_eq!(desk.told(), ["finish 3", "park 1,2,4", "claim a,b 99", "due", "survey"]);
    let [
        DispatchEvent::Finished(written),
        DispatchEvent::Parked(rows),
        DispatchEvent::Claimed(claimed),
        DispatchEvent::Due(due),
        DispatchEvent::Surveyed(survey),
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((written.len(), rows.len(), claimed.len()), (1, 3, 2));
    assert_eq!(claimed[0].1.rows[0].0.ordering_key(), "a", "each lane has the answer to its key");
    assert_eq!(claimed[1].1.rows[0].0.ordering_key(), "b");
    assert_ne!(claimed[0].0, claimed[1].0);
    assert_eq!((due.keys[0].1.as_str(), survey.lag_seconds), ("due", Some(7.0)));
}

#[tokio::test(start_paused = true)]
async fn one_claim_is_out_at_a_time() {
    let (mut recorder, _) = recorder().await;
    assert!(recorder.may_claim());
    recorder.claim(claiming(claims(&["k"])));
    assert!(!recorder.may_claim());
    recorder.next().await.unwrap();
    assert!(recorder.may_claim());
}

#[tokio::test(start_paused = true)]
async fn it_is_idle_when_nothing_is_to_be_written_and_nothing_runs() {
    let (mut recorder, desk) = recorder().await;
    assert!(recorder.is_idle());
    recorder.park(&mut rows_to_record(&[1]));
    assert!(!recorder.is_idle(), "a row waits");
    desk.takes(SECOND);
    assert!(timeout(SECOND / 2, recorder.next()).await.is_err());
    assert!(!recorder.is_idle(), "it is being written");
    recorder.next().await.unwrap();
    assert!(recorder.is_idle());
    recorder.finish(&mut finished(&[1]));
    assert!(!recorder.is_idle(), "an outcome waits");
}

#[tokio::test(start_paused = true)]
async fn topics_at_rest_are_left_out_of_the_next_look_only() {
    let (mut recorder, desk) = recorder().await;
    assert!(recorder.is_due_query_next());
    recorder.leave_out(vec![Topic::from("sick")]);
    run(&mut recorder, SECOND / 2).await;
    assert!(!recorder.is_due_query_next(), "it has just looked");
    run(&mut recorder, SECOND).await;
    assert_eq!(desk.told(), ["due sick", "survey", "due"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_done_in_steps_goes_on_soon_until_it_is_done() {
    let cases = [("due", 1_000, 0), ("survey", 5_000, 250), ("prune", 600_000, 100)];
    for (command, interval, pause) in cases {
        let (mut recorder, desk) = recorder().await;
        desk.has_more_for(command, 2);
        run(&mut recorder, Duration::from_millis(interval) * 2 + SECOND).await;
        let times = desk.times_of(command);
        for (step, expected) in [pause, pause, interval].into_iter().enumerate() {
            let passed = times[step + 1] - times[step];
            let expected = Duration::from_millis(expected);
            let late = LATENCY * 9;
            assert!(passed + late >= expected && passed <= expected + late, "{command} {times:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_left_are_looked_for_at_once() {
    let (mut recorder, desk) = recorder().await;
    run(&mut recorder, SECOND / 2).await;
    recorder.requery_due_keys();
    assert!(recorder.is_due_query_next());
    run(&mut recorder, SECOND / 4).await;
    assert_eq!(desk.times_of("due"), [Duration::ZERO, SECOND / 2]);
}

#[tokio::test(start_paused = true)]
async fn an_operator_who_says_what_he_did_does_not_wait_for_the_next_look() {
    let (mut recorder, desk) = recorder().await;
    recorder.leave_out(vec![Topic::from("sick")]);
    run(&mut recorder, SECOND / 10).await;
    recorder.leave_out(vec![Topic::from("sick")]);
    desk.notices(Instant::now() + SECOND / 5);
    run(&mut recorder, SECOND / 2).await;
    assert_eq!(desk.told(), ["due sick", "survey", "due"], "all topics are looked at");
    let looks = desk.times_of("due");
    assert!(looks[1] < SECOND / 2, "{looks:?}");
}

#[tokio::test(start_paused = true)]
async fn rows_and_outcomes_are_written_until_it_succeeds_with_growing_pauses() {
    for command in ["park", "finish"] {
        let (mut recorder, desk) = recorder().await;
        desk.fails(command, 8);
        match command {
            "park" => recorder.park(&mut rows_to_record(&[1, 2])),
            _ => recorder.finish(&mut finished(&[1, 2])),
        }
        let event = recorder.next().await.unwrap();
        let is_done = match command {
            "park" => matches!(&event, DispatchEvent::Parked(rows) if rows.len() == 2),
            _ => matches!(&event, DispatchEvent::Finished(rows) if rows.len() == 2),
        };
        assert!(is_done, "{event:?}");
        let times = desk.times_of(&format!("{command} 1,2"));
        let pauses: Vec<_> =
            times.windows(2).map(|pair| (pair[1] - pair[0] - LATENCY).as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
    }
}

#[tokio::test(start_paused = true)]
async fn rows_that_cannot_be_recorded_are_a_reason_at_once_and_noted_between_two_tries() {
    let (recorder, desk) = recorder().await;
    let health = Health::new();
    health.set_phase(Phase::Streaming);
    let mut recorder = recorder.reporting_to(health.clone());
    run(&mut recorder, SECOND / 2).await;
    assert_eq!(desk.times_of("condition").len(), 1, "each session notes that it streams");
    run(&mut recorder, SECOND * 100).await;
    assert_eq!(desk.times_of("condition").len(), 1, "nothing has changed");

    desk.fails("park", 100);
    recorder.park(&mut rows_to_record(&[1]));
    let began = desk.elapsed();
    assert!(timeout(SECOND * 60, recorder.next()).await.is_err());
    let reasons: Vec<_> = health.reasons_not_ready().iter().map(ToString::to_string).collect();
    assert_eq!(reasons, ["a dispatch table cannot be used: made up"]);
    let noted = desk.times_of("condition");
    assert_eq!(noted.len(), 2, "{noted:?}");
    assert!(noted[1] - began < SECOND, "{noted:?}");
    assert!(desk.told().iter().any(|told| told.contains("made up")), "{:?}", desk.told());

    desk.fails("park", 0);
    run(&mut recorder, SECOND * 20).await;
    assert!(health.reasons_not_ready().is_empty());
    assert_eq!(desk.times_of("condition").len(), 3, "that it is over is noted, too");
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_written_a_few_thousand_at_a_time() {
    let (mut recorder, desk) = recorder().await;
    let rows: Vec<u32> = (1..=12_000).collect();
    recorder.finish(&mut finished(&rows));
    recorder.claim(claiming(claims(&["a"])));
    let mut written = Vec::new();
    while written.len() < rows.len() {
        let DispatchEvent::Finished(some) = recorder.next().await.unwrap() else {
            panic!("outcomes come before claims")
        };
        assert!(some.len() <= 5_000, "{}", some.len());
        written.extend(some.iter().map(|row| row.message.event_id().parse::<u32>().unwrap()));
    }
    assert_eq!(written, rows, "in order, and each once");
    assert!(matches!(recorder.next().await, Ok(DispatchEvent::Claimed(_))));
    assert_eq!(desk.times_of("finish").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_dispatch_state_that_does_not_answer_is_a_reason_before_its_timeout() {
    let (recorder, desk) = recorder().await;
    let health = Health::new();
    health.set_phase(Phase::Streaming);
    let mut recorder = recorder.reporting_to(health.clone());
    run(&mut recorder, SECOND / 2).await;
    let reasons =
        || -> Vec<_> { health.reasons_not_ready().iter().map(ToString::to_string).collect() };

    desk.takes(SECOND * 30);
    desk.fails("finish", 1);
    recorder.finish(&mut finished(&[1]));
    assert!(timeout(SECOND * 9, recorder.next()).await.is_err());
    assert!(reasons().is_empty(), "it may be slow");
    assert!(timeout(SECOND * 2, recorder.next()).await.is_err());
    assert_eq!(reasons(), ["dispatch state has not answered `finish` for 10 s"]);
    assert!(timeout(SECOND * 40, recorder.next()).await.is_err());
    let error = ["a dispatch table cannot be used: made up"];
    assert_eq!(reasons(), error, "the next attempt is as slow, and the error says more");
    assert!(matches!(recorder.next().await, Ok(DispatchEvent::Finished(_))));
    assert!(reasons().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_comes_and_goes_is_noted_once_a_second() {
    let (recorder, desk) = recorder().await;
    let health = Health::new();
    let mut recorder = recorder.reporting_to(health.clone());
    for turn in 0..100 {
        let outage = || Reason::new(ReasonKind::Outage, "nothing is stored");
        health.set(Problem::Outage, (turn % 2 == 0).then(outage));
        run(&mut recorder, SECOND / 10).await;
    }
    let noted = desk.times_of("condition").len();
    assert!((1..=11).contains(&noted), "{noted}");
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_could_not_be_noted_is_noted_later() {
    let (recorder, desk) = recorder().await;
    desk.fails("condition", 3);
    let mut recorder = recorder.reporting_to(Health::new());
    run(&mut recorder, SECOND * 60).await;
    assert_eq!(desk.times_of("condition").len(), 4, "three have failed");
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_repeated_since_rows_would_wait_for_it() {
    let (mut recorder, desk) = recorder().await;
    for command in ["claim", "due", "survey"] {
        desk.fails(command, 1);
    }
    let keys = claims(&["a", "b"]);
    let lanes: Vec<_> = keys.iter().map(|key| key.lane).collect();
    recorder.claim(claiming(keys));
    let DispatchEvent::NotClaimed(given_up) = recorder.next().await.unwrap() else {
        panic!("the claim has failed")
    };
    assert_eq!(given_up, lanes);
    // The relay also notes once that a command has failed.
    let mut failed = 0;
    while failed < 2 {
        let event = recorder.next().await.unwrap();
        assert!(matches!(event, DispatchEvent::Noted | DispatchEvent::Condition), "{event:?}");
        failed += usize::from(matches!(event, DispatchEvent::Noted));
    }
    let commands = desk.told();
    let repeatable = commands.iter().filter(|command| !command.starts_with("condition"));
    assert_eq!(repeatable.collect::<Vec<_>>(), ["claim a,b 99", "due", "survey"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_is_told_at_once() {
    let (mut recorder, desk) = recorder().await;
    desk.stops();
    recorder.park(&mut rows_to_record(&[1]));
    assert!(matches!(recorder.next().await, Err(StoreFailure::ShuttingDown)));
    assert_eq!(desk.told(), ["park 1"]);
}

#[tokio::test(start_paused = true)]
async fn rows_are_on_record_within_a_tenth_of_a_second_and_the_wal_of_others_within_five() {
    for (in_flight, milliseconds) in [(InFlight::Rows, 100), (InFlight::Nothing, 5_000)] {
        let interval = Duration::from_millis(milliseconds);
        let (mut recorder, desk) = recorder().await;
        recorder.settled(watermark(1), InFlight::Nothing);
        run(&mut recorder, LATENCY).await;
        let first = desk.times_of("settled 0/1").len();
        assert_eq!(first, 1, "the first of a session is written at once");
        recorder.settled(watermark(0xA), in_flight);
        run(&mut recorder, interval - LATENCY * 2).await;
        assert_eq!(recorder.noted(), watermark(1));
        run(&mut recorder, LATENCY * 9).await;
        assert_eq!((recorder.noted(), desk.times_of("settled 0/A").len()), (watermark(0xA), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn once_the_last_row_is_on_record_only_the_wal_of_others_is_left_to_note() {
    let (mut recorder, desk) = recorder().await;
    recorder.settled(watermark(1), InFlight::Nothing);
    run(&mut recorder, SECOND).await;
    recorder.settled(watermark(1), InFlight::Rows);
    recorder.settled(watermark(0xA), InFlight::Nothing);
    run(&mut recorder, LATENCY * 3).await;
    assert_eq!(recorder.noted(), watermark(0xA), "no row is in flight: it is written at once");
    // The server reports our own write. If that counted as rows, writes would never end.
    recorder.settled(watermark(0xB), InFlight::Nothing);
    run(&mut recorder, SECOND * 5 - LATENCY * 10).await;
    assert_eq!(desk.times_of("settled").len(), 2);
    run(&mut recorder, SECOND * 20).await;
    assert_eq!((recorder.noted(), desk.times_of("settled").len()), (watermark(0xB), 3));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_takes_long_leaves_most_of_the_time_to_other_commands() {
    let (mut recorder, desk) = recorder().await;
    desk.takes(SECOND / 10);
    for lsn in 1..=200 {
        recorder.settled(watermark(lsn), InFlight::Rows);
        run(&mut recorder, SECOND / 20).await;
    }
    let writes = desk.times_of("settled").len();
    assert!((15..=21).contains(&writes), "a fifth of ten seconds: {writes}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_written_is_tried_once_a_second() {
    let (mut recorder, desk) = recorder().await;
    desk.fails("settled", u32::MAX);
    recorder.settled(watermark(0xA), InFlight::Rows);
    run(&mut recorder, SECOND * 10).await;
    let tries = desk.times_of("settled").len();
    assert!((9..=11).contains(&tries), "{tries}");
    assert_eq!(recorder.noted(), Watermark::NONE, "nothing may be confirmed");
}

#[tokio::test(start_paused = true)]
async fn rows_settled_while_the_record_is_written_are_on_record_soon_after() {
    let (mut recorder, desk) = recorder().await;
    recorder.settled(watermark(1), InFlight::Nothing);
    run(&mut recorder, SECOND).await;
    desk.takes(SECOND / 10);
    recorder.settled(watermark(0xA), InFlight::Rows);
    run(&mut recorder, SECOND / 20).await;
    assert_eq!(desk.times_of("settled 0/A").len(), 1, "it is being written");
    recorder.settled(watermark(0xB), InFlight::Nothing);
    run(&mut recorder, SECOND / 5).await;
    assert_eq!((recorder.noted(), recorder.is_idle()), (watermark(0xA), true));
    run(&mut recorder, SECOND / 2).await;
    assert_eq!(recorder.noted(), watermark(0xB));
}

#[tokio::test(start_paused = true)]
async fn at_the_end_what_is_settled_is_put_on_record_and_told() {
    let (mut noted, desk) = recorder().await;
    noted.settled(watermark(0xA), InFlight::Nothing);
    desk.fails("settled", 3);
    assert_eq!(noted.close(SECOND).await, watermark(0xA), "it is tried until it succeeds");
    assert_eq!(desk.times_of("settled").len(), 4);

    let (mut failed, broken) = recorder().await;
    failed.settled(watermark(0xA), InFlight::Nothing);
    broken.fails("settled", u32::MAX);
    assert_eq!(failed.close(SECOND).await, Watermark::NONE, "nothing more may be confirmed");

    let (nothing, untouched) = recorder().await;
    assert_eq!(nothing.close(SECOND).await, Watermark::NONE);
    assert!(untouched.told().is_empty());
}

#[tokio::test(start_paused = true)]
async fn at_the_end_a_server_that_shuts_down_is_asked_once() {
    let (mut recorder, desk) = recorder().await;
    recorder.settled(watermark(0xA), InFlight::Nothing);
    desk.stops();
    assert_eq!(recorder.close(SECOND).await, Watermark::NONE);
    assert_eq!(desk.told(), ["settled 0/A"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_running() {
    let (mut recorder, desk) = recorder().await;
    recorder.park(&mut rows_to_record(&[1]));
    desk.takes(SECOND / 4);
    assert!(timeout(LATENCY, recorder.next()).await.is_err());
    recorder.settled(watermark(0xA), InFlight::Nothing);
    assert_eq!(recorder.close(SECOND).await, watermark(0xA));
    assert_eq!(desk.told(), ["park 1", "settled 0/A"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_does_not_wait_for_ever() {
    let (mut recorder, desk) = recorder().await;
    recorder.settled(watermark(0xA), InFlight::Nothing);
    desk.takes(SECOND * 60);
    let began = Instant::now();
    recorder.close(SECOND).await;
    assert_eq!(began.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_loses_no_command() {
    let (mut recorder, desk) = recorder().await;
    desk.takes(SECOND);
    recorder.park(&mut rows_to_record(&[1]));
    for _ in 0..3 {
        assert!(timeout(SECOND / 4, recorder.next()).await.is_err());
    }
    assert!(matches!(recorder.next().await, Ok(DispatchEvent::Parked(_))));
    assert_eq!(desk.told(), ["park 1"]);
}
