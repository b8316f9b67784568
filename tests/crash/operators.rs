//! Random commands of an operator beside relays that are killed and start again, under traffic. Each
//! fix that a command prints is followed literally.
//!
//! A trigger keeps each committed row, so the oracle also knows the rows that `prune` deletes.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use walrelay_testkit::checker::{self, Committed};
use walrelay_testkit::relay::{Finished, Relay};
use walrelay_testkit::seed::Seed;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer, topic};

use crate::kills::setting;

/// The topic of replays.
const REPLAYS: &str = "replays";

/// The commands of an operator. Most of them are refused in most states.
const COMMANDS: [&str; 17] = [
    "slot recover --yes",
    "slot recover --yes",
    "slot release --yes",
    "slot reset --to-anchor daily --yes",
    "anchor create daily",
    "anchor create daily",
    "anchor advance daily --yes",
    "anchor drop daily --yes",
    "replay start --in-place --from-anchor daily --aggregate-id v-3 --yes",
    "replay start --in-place --source table --aggregate-id v-4 --yes",
    "replay start --to-topic replays --from-anchor daily --yes",
    "replay start --to-topic replays --source table --aggregate-id v-5 --yes",
    "init",
    "check",
    "status",
    "prune --older-than 1s --yes",
    "dispatch retry --all-dead --yes",
];

/// What happens to the server. `$slot` is the name of the slot. Some statements fail in some states.
const INCIDENTS: [&str; 6] = [
    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '$slot'",
    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '$slot';
     SELECT pg_drop_replication_slot('$slot')",
    "SELECT pg_drop_replication_slot('$slot')",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE datname = current_database() AND application_name LIKE 'walrelay%'",
    "CHECKPOINT; SELECT pg_switch_wal()",
    "VACUUM FULL app_outbox_dispatch",
];

/// What happens to Pub/Sub.
const FAULTS: [&str; 4] = [
    "reject=UNAVAILABLE",
    "key=v-3,reject=UNAVAILABLE",
    "key=v-4,reject=PERMISSION_DENIED",
    "reject=DEADLINE_EXCEEDED",
];

/// The options of relays that start again by themselves.
const RELAYS: [&str; 4] = [
    "run --park-after 200ms",
    "run --park-after 200ms --wal-budget 1MiB",
    "run --rate 400",
    "run --on-slot-lost recover",
];

/// The longest wait for a command. Some wait for Pub/Sub or for the relays.
const PATIENCE: Duration = Duration::from_secs(10);

/// A person at the command line, whose choices are drawn from a seed.
struct Operator {
    world: InboxDatabase,
    seed: Seed,
    relays: [Option<Relay>; 2],
    /// The commands so far, with their ends.
    history: Vec<String>,
    /// The command that the last output names as its fix.
    advised: Option<String>,
}

impl Operator {
    async fn create(seed: u64) -> Option<Self> {
        let world = InboxDatabase::create().await?;
        world.pubsub.create_topic(REPLAYS);
        world.execute(ORACLE).await;
        let (relays, history) = ([None, None], Vec::new());
        Some(Self { world, seed: Seed::new(seed), relays, history, advised: None })
    }

    /// Does something, after a pause in which relays that have ended are started again.
    async fn act(&mut self) {
        sleep(self.seed.time(Duration::ZERO, Duration::from_millis(700))).await;
        self.restart_relays().await;
        match self.seed.between(0, 9) {
            0 => {
                let index = self.seed.count(0, 1);
                self.relays[index] = None;
                self.history.push(format!("kill relay {index}"));
            }
            1 | 2 => {
                let shard = self.any_shard().await;
                let slot = self.slot(shard);
                let incident = self.seed.pick(&INCIDENTS).replace("$slot", &slot);
                let done = self.world.client().batch_execute(&incident).await.is_ok();
                self.history.push(format!("{incident}: {done}"));
            }
            3 => {
                let fault = *self.seed.pick(&FAULTS);
                self.world.pubsub.fault(fault);
                self.history.push(format!("fault {fault}"));
            }
            4 => self.world.pubsub.heal(),
            5 => {
                let command = format!("reshard --shards {} --yes", self.seed.count(1, 2));
                self.finish_within(PATIENCE, &command).await;
            }
            6 | 7 if let Some(advised) = self.advised.take() => {
                self.finish_within(PATIENCE, &advised).await;
            }
            _ => {
                let shard = self.any_shard().await;
                let drawn = *self.seed.pick(&COMMANDS);
                let command = of_shard(drawn, shard);
                let time = match self.seed.chance(400) {
                    true => self.seed.time(Duration::from_millis(20), Duration::from_secs(1)),
                    false => PATIENCE,
                };
                self.finish_within(time, &command).await;
            }
        }
    }

    async fn restart_relays(&mut self) {
        for index in 0..self.relays.len() {
            if self.relays[index].as_mut().is_some_and(|relay| !relay.has_ended()) {
                continue;
            }
            if let Some(ended) = self.relays[index].take() {
                let ended = ended.finish(DEADLINE).await;
                self.note(&format!("relay {index}"), &ended);
            }
            let shard = self.is_sharded().await.then_some(index);
            let drawn = *self.seed.pick(&RELAYS);
            let command = of_shard(drawn, shard);
            self.relays[index] = Some(self.world.command(command.split(' ')).start());
        }
    }

    /// Returns whether there are two shards. While `reshard` works, the slots of both numbers exist.
    async fn is_sharded(&self) -> bool {
        let name = self.world.name();
        let sql = format!("SELECT count(*) FROM pg_publication WHERE pubname LIKE '{name}%_of_2'");
        self.world.number(&sql).await > 0
    }

    /// Draws a shard. None if there is only one.
    async fn any_shard(&mut self) -> Option<usize> {
        let index = self.seed.count(0, 1);
        self.is_sharded().await.then_some(index)
    }

    fn slot(&self, shard: Option<usize>) -> String {
        let name = self.world.name();
        shard.map_or_else(|| name.to_owned(), |index| format!("{name}_{index}_of_2"))
    }

    /// Starts a relay, and waits for a while until it streams.
    async fn relay(&self, shard: Option<usize>) -> Relay {
        let mut relay = self.world.command(of_shard("run", shard).split(' ')).start();
        let until = Instant::now() + PATIENCE;
        let streams = |it: &Relay| it.lines().iter().any(|line| line.contains("\"streaming\""));
        while !relay.has_ended() && !streams(&relay) && Instant::now() < until {
            sleep(Duration::from_millis(50)).await;
        }
        relay
    }

    /// Runs a command to its end.
    async fn finish(&mut self, command: &str) -> Finished {
        let done = self.world.run(command.split(' ')).await;
        self.note(command, &done);
        done
    }

    /// Runs a command, and kills it after this time.
    async fn finish_within(&mut self, time: Duration, command: &str) {
        let mut started = self.world.command(command.split(' ')).start();
        let until = Instant::now() + time;
        while !started.has_ended() {
            if Instant::now() >= until {
                return self.history.push(format!("{command}: killed after {time:?}"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        let done = started.finish(DEADLINE).await;
        self.note(command, &done);
    }

    fn note(&mut self, what: &str, done: &Finished) {
        let Finished { code, text } = done;
        // The health is at the beginning of `status`, and an error at the end of an output.
        let last = match what.starts_with("status") {
            true => text.lines().take(2).collect::<Vec<_>>().join("; "),
            false => text.lines().rfind(|line| !line.is_empty()).unwrap_or_default().to_owned(),
        };
        self.history.push(format!("{what}: {code:?} {last}"));
        assert!(!text.contains("panicked at"), "{what}: {text}\n{}", self.story());
        self.advised = advice(text).or(self.advised.take());
    }

    fn story(&self) -> String {
        self.history.join("\n")
    }

    /// Follows the printed fixes until everything is published.
    async fn settle(&mut self) {
        self.relays = [None, None];
        self.world.pubsub.heal();
        for _ in 0..20 {
            let shards: &[_] = match self.is_sharded().await {
                true => &[Some(0), Some(1)],
                false => &[None],
            };
            let mut caught_up = true;
            for shard in shards {
                caught_up &= self.settle_shard(*shard).await;
            }
            let waits = "SELECT count(*) FROM app_outbox_dispatch WHERE status <> 'published'";
            if caught_up && self.world.number(waits).await == 0 {
                return;
            }
        }
        panic!("the printed fixes lead nowhere:\n{}", self.story());
    }

    /// Returns whether this shard has caught up.
    async fn settle_shard(&mut self, shard: Option<usize>) -> bool {
        // Beside a relay that streams, `status` names what else keeps rows back, and a replay continues.
        let relay = self.relay(shard).await;
        let status = self.finish(&of_shard("status", shard)).await;
        self.advised = None;
        let mut next = advice(&status.text);
        // A command that is refused names the next one, and so on.
        for _ in 0..3 {
            let Some(command) = next.take() else { break };
            self.finish_within(3 * PATIENCE, &command).await;
            next = self.advised.take();
        }
        for state in ["dead", "retrying"] {
            let command = format!("dispatch retry --status {state} --yes");
            self.finish(&of_shard(&command, shard)).await;
        }
        drop(relay);
        self.finish(&of_shard("run --until-caught-up", shard)).await.code == Some(0)
    }

    /// Checks that each committed row is in the topic, and in order per key.
    async fn assert_kept(&self) {
        let rows = self.world.client().query(COMMITTED, &[]).await.expect("the rows of the oracle");
        let committed: Vec<_> = rows
            .iter()
            .map(|row| Committed {
                event_id: row.get(0),
                key: row.get(1),
                data: row.get::<_, String>(2).into_bytes(),
            })
            .collect();
        let stored = self.world.pubsub.stored_in(&topic("video.events"));
        let verdict = checker::check(&committed, &stored);
        eprintln!("{}\n{} rows; {verdict}", self.story(), committed.len());
        let is_kept = verdict.lost.is_empty() && verdict.reordered.is_empty();
        assert!(is_kept && verdict.unknown.is_empty(), "{verdict}\n{}", self.story());
    }
}

const ORACLE: &str = "
CREATE TABLE committed (event_id text, key text, data text, version bigint);
CREATE FUNCTION commit_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO committed VALUES (NEW.id::text, NEW.aggregateid, NEW.payload::text, NEW.version);
  RETURN NULL;
END $$;
CREATE TRIGGER commit_row AFTER INSERT ON app_outbox FOR EACH ROW EXECUTE FUNCTION commit_row()";

const COMMITTED: &str = "SELECT event_id, key, data FROM committed ORDER BY version";

/// Adds the shard to a command that is for one.
fn of_shard(command: &str, shard: Option<usize>) -> String {
    match shard {
        Some(_) if command == "init" => "init --shards 2".to_owned(),
        Some(index) if !command.starts_with("reshard") => format!("{command} --shard {index}/2"),
        _ => command.to_owned(),
    }
}

/// Returns the command that an output names as the next step, with an answer to its question.
/// Commands with a placeholder are for a person, and relays start by themselves.
fn advice(text: &str) -> Option<String> {
    let mut commands = text.split("walrelay ").skip(1).map(|rest| {
        let end = |c: char| !(c.is_ascii_alphanumeric() || " -_./:=".contains(c));
        rest.split(end).next().unwrap_or_default().trim_end_matches(['.', ' ', ':'])
    });
    let command = commands.find(|command| {
        let first = command.split(' ').next().unwrap_or_default();
        let is_cure = ["slot", "replay", "anchor", "init"].contains(&first)
            || command.starts_with("reshard --shards ");
        is_cure && !command.contains(|c: char| c.is_ascii_uppercase())
    })?;
    let words = command
        .split(' ')
        .take_while(|word| !["or", "and", "finishes", "continues", "cancels"].contains(word));
    let typed = words.collect::<Vec<_>>().join(" ");
    let asks = !typed.starts_with("init") && !typed.ends_with("list");
    Some(if asks { typed + " --yes" } else { typed })
}

async fn operate(seed: u64, time: Duration) {
    let Some(mut operator) = Operator::create(seed).await else { return };
    let producer = Producer::start(operator.world.url(), Duration::from_millis(50));
    let until = Instant::now() + time;
    while Instant::now() < until {
        operator.act().await;
    }
    producer.stop().await;
    operator.settle().await;
    operator.assert_kept().await;
}

#[tokio::test]
async fn commands_of_an_operator_in_any_order_and_killed_lose_and_reorder_nothing() {
    operate(1, Duration::from_secs(30)).await;
}

/// Runs for `WALRELAY_SOAK_MINUTES` with seeds from `WALRELAY_FUZZ_SEED` on, a minute for each.
#[tokio::test]
#[ignore = "runs for as long as it is told to: make fuzz-operations SEED=7 MINUTES=60"]
async fn fuzz_commands_of_an_operator() {
    let minutes = setting("WALRELAY_SOAK_MINUTES").unwrap_or(10);
    let first = setting("WALRELAY_FUZZ_SEED").unwrap_or(1);
    for seed in first..first + minutes {
        eprintln!("seed {seed}");
        operate(seed, Duration::from_secs(50)).await;
    }
}

#[test]
fn the_command_in_a_printed_fix_is_found() {
    for (text, expected) in [
        ("fix: Run `walrelay slot recover --slot x`.", Some("slot recover --slot x --yes")),
        ("this finishes it: walrelay slot release", Some("slot release --yes")),
        ("walrelay replay resume 5f or walrelay replay cancel 5f", Some("replay resume 5f --yes")),
        ("walrelay replay resume 5f continues it", Some("replay resume 5f --yes")),
        ("start the relay: walrelay run", None),
        ("walrelay slot recover --from-time TIME", None),
    ] {
        assert_eq!(advice(text).as_deref(), expected, "{text}");
    }
}
