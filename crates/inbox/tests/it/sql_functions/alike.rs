//! Runs one random script on the functions in Postgres and on the simulations' model of them. After
//! each step both must have the same state. Otherwise the simulations would prove nothing about the
//! functions.

use std::collections::BTreeSet;

use walrelay_core::Random;
use walrelay_testkit::inbox_model::{self, Answer, Code, Due, Inbox, OnDead, OnGap, Rules, Status};

use super::messages::{Message, event};
use super::world::{BOTH, InboxDatabase, world};

/// Number of scripts for each version of Postgres.
const SCRIPTS: u64 = 60;
const STEPS: u32 = 25;
const KEYS: u32 = 3;

const ROWS: &str = "
SELECT concat_ws(' ', event_id, status, attempts,
         CASE WHEN next_attempt_at = 'infinity' THEN 'infinity' WHEN next_attempt_at IS NULL THEN 'never' ELSE 'timed' END,
         CASE error_code WHEN 'P0001' THEN 'FAILED' ELSE error_code END)
  FROM app_inbox ORDER BY event_id";
const KEY_ROWS: &str = "
SELECT concat_ws(' ', ordering_key, coalesce((commit_lsn - '0/0')::text, '-'), coalesce(version::text, '-'), held_by)
  FROM app_inbox_key ORDER BY ordering_key";
const EFFECTS: &str = "SELECT concat_ws(' ', key, event_id) FROM applied ORDER BY key, n";

/// The update of `walrelay inbox retry` and `discard`, under the key's lock.
const RETRY: &str = "attempts = CASE status WHEN 'dead' THEN 0 ELSE attempts END,
     next_attempt_at = CASE WHEN ordering_key = '' OR next_attempt_at < 'infinity' THEN now() END,
     status = 'retrying', done_at = NULL,
     error_code = CASE error_code WHEN 'VERSION_GAP' THEN 'GAP_ACCEPTED' ELSE error_code END";
const DISCARD: &str =
    "status = 'discarded', next_attempt_at = NULL, message = NULL, done_at = now()";

/// A random script with both subjects.
struct Script<'a> {
    world: &'a InboxDatabase,
    model: Inbox,
    handler: &'static str,
    options: String,
    random: Random,
    /// The last version of each key, and the versions that were left out.
    versions: [i64; KEYS as usize],
    left_out: Vec<(usize, i64)>,
    /// Delivered events in order, and the events on which the handler fails.
    known: Vec<inbox_model::Message>,
    failing: BTreeSet<u32>,
}

fn id(event: u32) -> String {
    format!("e{event:04}")
}

impl Script<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u32() as usize % bound
    }

    /// Draws the next delivery: a new version, one that was left out, one too early, or a
    /// redelivery.
    fn draw(&mut self) -> inbox_model::Message {
        let key = self.below(KEYS as usize);
        let (key, version) = match self.below(8) {
            0 if !self.known.is_empty() => {
                let again = self.below(self.known.len());
                return self.known[again].clone();
            }
            1 | 2 if !self.left_out.is_empty() => {
                let place = self.below(self.left_out.len());
                self.left_out.swap_remove(place)
            }
            3 => {
                self.versions[key] += 2;
                self.left_out.push((key, self.versions[key] - 1));
                (key, self.versions[key])
            }
            _ => {
                self.versions[key] += 1;
                (key, self.versions[key])
            }
        };
        let number = u32::try_from(self.known.len()).expect("a small number") + 1;
        if self.below(6) == 0 {
            self.failing.insert(number);
        }
        // Some events have no version, and some have an old position.
        let version = if self.below(12) == 0 { None } else { Some(version) };
        let position =
            if self.below(8) == 0 { 5000 - u64::from(number) } else { 5000 + u64::from(number) };
        let drawn =
            inbox_model::Message { event: number, key: format!("k{key}"), version, position };
        self.known.push(drawn.clone());
        drawn
    }

    fn in_sql(&self, message: &inbox_model::Message) -> Message {
        let it = event(message.event, &message.key).id(&id(message.event));
        let it = it.version(message.version).at(message.position, 0);
        if self.failing.contains(&message.event) { it.failing("P0001") } else { it }
    }

    async fn apply(&mut self) {
        let size = self.below(6) + 1;
        let batch: Vec<inbox_model::Message> = (0..size).map(|_| self.draw()).collect();
        let in_sql: Vec<Message> = batch.iter().map(|it| self.in_sql(it)).collect();
        let told = self.world.apply_with(self.handler, &in_sql, &self.options).await;
        let failing = &self.failing;
        let answers = self.model.apply(&batch, |it| failing.contains(&it.event));
        let answers: Vec<&str> = answers.into_iter().map(answer).collect();
        let told: Vec<&str> = told.iter().filter_map(|it| it.split(' ').next()).collect();
        assert_eq!(told, answers, "{batch:?}");
    }

    async fn redeliver(&mut self) {
        let mut told = self.world.redeliver_with(self.handler, &self.options).await;
        told.iter_mut()
            .for_each(|line| *line = line.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" "));
        let failing = &self.failing;
        let tried = self.model.redeliver(|it| failing.contains(&it.event));
        let mut tried: Vec<String> = tried
            .into_iter()
            .map(|(event, status)| format!("{} {}", id(event), name(status)))
            .collect();
        told.sort();
        tried.sort();
        assert_eq!(told, tried);
    }

    /// An operator retries, discards or fixes an event.
    async fn operate(&mut self) {
        let rows = self.model.rows.values();
        let waiting = rows.filter(|row| matches!(row.status, Status::Retrying | Status::Dead));
        let waiting: Vec<(u32, String)> =
            waiting.map(|row| (row.message.event, row.message.key.clone())).collect();
        if waiting.is_empty() {
            return;
        }
        let (event, key) = waiting[self.below(waiting.len())].clone();
        let event_id = id(event);
        let (set, action) = match self.below(3) {
            0 => (DISCARD, "discard"),
            1 => (RETRY, "retry"),
            _ => {
                let data = "encode('{\"amount\": 1}', 'base64')";
                let mended = format!("UPDATE app_inbox SET message = convert_to((convert_from(message, 'UTF8')::jsonb
                        || jsonb_build_object('data', {data}))::text, 'UTF8') WHERE event_id = '{event_id}'");
                self.world.run(&mended).await;
                self.failing.remove(&event);
                return;
            }
        };
        let give_up = if action == "discard" {
            format!("UPDATE app_inbox_key AS k SET version = i.version FROM app_inbox AS i
                      WHERE i.event_id = '{event_id}' AND k.ordering_key = i.ordering_key AND k.version < i.version;")
        } else {
            String::new()
        };
        self.world
            .run(&format!(
                "BEGIN; SELECT app_inbox_lock('c', 1, ARRAY['{key}'], true);
                 UPDATE app_inbox SET {set} WHERE event_id = '{event_id}'; {give_up}
                 SELECT app_inbox_heads('c', 1, ARRAY['{key}']); COMMIT"
            ))
            .await;
        if action == "discard" {
            self.model.discard(event);
        } else {
            self.model.retry(event);
        }
    }

    async fn compare(&self) {
        let rows: Vec<String> = self.model.rows.values().map(row).collect();
        assert_eq!(self.world.lines(ROWS).await, rows, "rows");
        let told = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
        let keys = self.model.keys.iter().map(|(key, it)| {
            let position = it.position.map(|place| i64::try_from(place).expect("a small number"));
            let position = told(position);
            let held_by = it.held_by.map_or(String::new(), |event| format!(" {}", id(event)));
            format!("{key} {position} {}{held_by}", told(it.version))
        });
        assert_eq!(self.world.lines(KEY_ROWS).await, keys.collect::<Vec<_>>(), "keys");
        let mut effects: Vec<&inbox_model::Message> = self.model.applied.iter().collect();
        effects.sort_by(|a, b| a.key.cmp(&b.key));
        let effects: Vec<String> =
            effects.into_iter().map(|it| format!("{} {}", it.key, id(it.event))).collect();
        assert_eq!(self.world.lines(EFFECTS).await, effects, "effects");
    }
}

fn answer(answer: Answer) -> &'static str {
    match answer {
        Answer::Recorded(status) => name(status),
        Answer::Duplicate => "duplicate",
    }
}

fn name(status: Status) -> &'static str {
    match status {
        Status::Done => "done",
        Status::Late => "late",
        Status::Retrying => "retrying",
        Status::Dead => "dead",
        Status::Discarded => "discarded",
    }
}

fn row(row: &inbox_model::Row) -> String {
    let due = match row.due {
        Due::Never => "never",
        Due::Timed => "timed",
        Due::Infinity => "infinity",
    };
    let code = match row.code {
        None => "",
        Some(Code::Failed) => " FAILED",
        Some(Code::VersionGap) => " VERSION_GAP",
        Some(Code::GapAccepted) => " GAP_ACCEPTED",
    };
    format!("{} {} {} {due}{code}", id(row.message.event), name(row.status), row.attempts)
}

fn rules(seed: u64) -> Rules {
    Rules {
        on_gap: if seed.is_multiple_of(3) { OnGap::Accept } else { OnGap::Hold },
        on_dead: if seed.is_multiple_of(4) { OnDead::Continue } else { OnDead::Hold },
        max_attempts: 1 + u32::try_from(seed % 5).expect("a small number"),
        planted: None,
    }
}

fn options(rules: Rules) -> String {
    let on_dead = if rules.on_dead == OnDead::Hold { "hold" } else { "continue" };
    let on_gap = if rules.on_gap == OnGap::Hold { "hold" } else { "accept" };
    let attempts = rules.max_attempts;
    format!(", on_dead => '{on_dead}', max_attempts => {attempts}, on_gap => '{on_gap}'")
}

/// Runs one script. Returns the number of events that wait for a version at the end.
async fn play(world: &InboxDatabase, seed: u64) -> usize {
    world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
    let rules = rules(seed);
    let mut script = Script {
        world,
        model: Inbox::new(rules),
        handler: BOTH[usize::from(seed.is_multiple_of(2))],
        options: options(rules),
        random: Random::new(seed),
        versions: [0; KEYS as usize],
        left_out: Vec::new(),
        known: Vec::new(),
        failing: BTreeSet::new(),
    };
    for step in 0..STEPS {
        eprintln!("seed {seed}, step {step}");
        match script.below(5) {
            0 => script.operate().await,
            1 | 2 => script.redeliver().await,
            _ => script.apply().await,
        }
        script.compare().await;
    }
    script.model.rows.values().filter(|row| row.code == Some(Code::VersionGap)).count()
}

#[tokio::test]
async fn the_functions_and_the_model_of_the_simulation_hold_the_same_after_every_step() {
    let Some(world) = world().await else { return };
    let mut waited = 0;
    for seed in 0..SCRIPTS {
        waited += play(&world, seed).await;
    }
    assert!(waited > 20, "the scripts have to meet gaps: {waited}");
}
