//! Random commands of an operator beside relays that are killed and start again, under traffic. Each
//! fix that a command prints is followed literally.
//!
//! Two outboxes share the database, and the operator sometimes names the slot of the wrong one. A
//! consumer applies the events of the first outbox meanwhile. A trigger keeps each committed row, so
//! the oracle also knows the rows that `prune` deletes.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use walrelay_testkit::checker::{self, Committed, Verdict};
use walrelay_testkit::relay::{Finished, Relay, RelayCommand};
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

/// The commands of relays that start again by themselves.
const RELAYS: [&str; 4] = [
    "run --park-after 200ms",
    "run --park-after 200ms --wal-budget 1MiB",
    "run --rate 400",
    "run --on-slot-lost recover",
];

/// The longest wait for a command. Some wait for Pub/Sub or for the relays.
const PATIENCE: Duration = Duration::from_secs(10);

/// An outbox of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Team {
    /// In `public`, with one slot or with two shards.
    First,
    /// In a schema of its own.
    Second,
}

impl Team {
    const ALL: [Self; 2] = [Self::First, Self::Second];

    const fn schema(self) -> &'static str {
        match self {
            Self::First => "public",
            Self::Second => "team2",
        }
    }

    const fn topic(self) -> &'static str {
        match self {
            Self::First => "video.events",
            Self::Second => "other.events",
        }
    }
}

/// A command line, and the outbox that its environment names.
#[derive(Debug, Clone)]
struct Command {
    team: Team,
    text: String,
}

impl Command {
    fn new(team: Team, text: impl Into<String>) -> Self {
        Self { team, text: text.into() }
    }
}

/// A person at the command line, whose choices are drawn from a seed.
struct Operator {
    world: InboxDatabase,
    seed: Seed,
    /// Two for the shards of the first outbox, the relay of the second one, and the consumer.
    processes: [Option<Relay>; 4],
    /// The commands so far, with their ends.
    history: Vec<String>,
    /// The command that the last output names as its fix.
    advised: Option<Command>,
}

impl Operator {
    async fn create(seed: u64) -> Option<Self> {
        let world = InboxDatabase::create().await?;
        world.set_up_consumer().await;
        for name in [REPLAYS, Team::Second.topic()] {
            world.pubsub.create_topic(name);
        }
        let (processes, history) = ([const { None }; 4], Vec::new());
        let operator = Self { world, seed: Seed::new(seed), processes, history, advised: None };
        let done = operator.command(&Command::new(Team::Second, "init")).finish(DEADLINE).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
        for team in Team::ALL {
            operator.world.execute(&ORACLE.replace("$schema", team.schema())).await;
        }
        Some(operator)
    }

    /// Returns a command of the binary, with the environment of its outbox.
    fn command(&self, Command { team, text }: &Command) -> RelayCommand {
        let command = self.world.command(text.split(' '));
        match team {
            Team::First => command,
            Team::Second => command
                .env("WALRELAY_SCHEMA", team.schema())
                .env("WALRELAY_SLOT", &self.slot(*team, None))
                .env("WALRELAY_PUBLICATION", &self.slot(*team, None)),
        }
    }

    /// Does something, after a pause in which processes that have ended are started again.
    async fn act(&mut self) {
        sleep(self.seed.time(Duration::ZERO, Duration::from_millis(700))).await;
        // A statement that locks the table may make it fail.
        drop(self.world.client().batch_execute(ROWS_OF_SECOND).await);
        self.restart_processes().await;
        match self.seed.between(0, 10) {
            0 => {
                let index = self.seed.count(0, 3);
                self.processes[index] = None;
                self.history.push(format!("kill process {index}"));
            }
            1 | 2 => {
                let (team, shard) = self.any_place().await;
                let incident = self.seed.pick(&INCIDENTS).replace("$slot", &self.slot(team, shard));
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
                let text = format!("reshard --shards {} --yes", self.seed.count(1, 2));
                self.finish_within(PATIENCE, &Command::new(Team::First, text)).await;
            }
            6 | 7 if let Some(advised) = self.advised.take() => {
                self.finish_within(PATIENCE, &advised).await;
            }
            8 => self.name_the_wrong_slot().await,
            _ => {
                let (team, shard) = self.any_place().await;
                let drawn = *self.seed.pick(&COMMANDS);
                let command = Command::new(team, of_shard(drawn, shard));
                let time = match self.seed.chance(400) {
                    true => self.seed.time(Duration::from_millis(20), Duration::from_secs(1)),
                    false => PATIENCE,
                };
                self.finish_within(time, &command).await;
            }
        }
    }

    /// Types a command with the slot of the other outbox. Nothing may be done to either.
    async fn name_the_wrong_slot(&mut self) {
        let (team, other) = match self.seed.chance(500) {
            true => (Team::First, Team::Second),
            false => (Team::Second, Team::First),
        };
        let drawn = match self.seed.chance(300) {
            true => "run --until-caught-up",
            false => *self.seed.pick(&COMMANDS),
        };
        let text = format!("{drawn} --slot {}", self.slot(other, None));
        self.finish_within(PATIENCE, &Command::new(team, text)).await;
        // Its advice is for an operator who has mistaken the slot.
        self.advised = None;
    }

    async fn restart_processes(&mut self) {
        for index in 0..self.processes.len() {
            if self.processes[index].as_mut().is_some_and(|process| !process.has_ended()) {
                continue;
            }
            let team = if index == 2 { Team::Second } else { Team::First };
            if let Some(ended) = self.processes[index].take() {
                let ended = ended.finish(DEADLINE).await;
                self.note(&Command::new(team, format!("process {index}")), &ended);
            }
            let drawn = *self.seed.pick(&RELAYS);
            let started = match index {
                0 | 1 => {
                    let shard = self.is_sharded().await.then_some(index);
                    self.command(&Command::new(team, of_shard(drawn, shard)))
                }
                2 => self.command(&Command::new(team, drawn)),
                _ => self.world.consumer([]),
            };
            self.processes[index] = Some(started.start());
        }
    }

    /// Returns whether there are two shards. While `reshard` works, the slots of both numbers exist.
    async fn is_sharded(&self) -> bool {
        let name = self.world.name();
        let sql = format!("SELECT count(*) FROM pg_publication WHERE pubname LIKE '{name}%_of_2'");
        self.world.number(&sql).await > 0
    }

    /// Draws an outbox, and one of its shards if it has two.
    async fn any_place(&mut self) -> (Team, Option<usize>) {
        let (is_second, index) = (self.seed.chance(250), self.seed.count(0, 1));
        match is_second {
            true => (Team::Second, None),
            false => (Team::First, self.is_sharded().await.then_some(index)),
        }
    }

    fn slot(&self, team: Team, shard: Option<usize>) -> String {
        let name = self.world.name();
        match (team, shard) {
            (Team::First, Some(index)) => format!("{name}_{index}_of_2"),
            (Team::First, None) => name.to_owned(),
            (Team::Second, _) => format!("{name}_team2"),
        }
    }

    /// Starts a relay, and waits for a while until it streams.
    async fn relay(&self, team: Team, shard: Option<usize>) -> Relay {
        let mut relay = self.command(&Command::new(team, of_shard("run", shard))).start();
        let until = Instant::now() + PATIENCE;
        let streams = |it: &Relay| it.lines().iter().any(|line| line.contains("\"streaming\""));
        while !relay.has_ended() && !streams(&relay) && Instant::now() < until {
            sleep(Duration::from_millis(50)).await;
        }
        relay
    }

    /// Runs a command to its end.
    async fn finish(&mut self, command: &Command) -> Finished {
        let done = self.command(command).finish(DEADLINE).await;
        self.note(command, &done);
        done
    }

    /// Runs a command, and kills it after this time.
    async fn finish_within(&mut self, time: Duration, command: &Command) {
        let mut started = self.command(command).start();
        let until = Instant::now() + time;
        while !started.has_ended() {
            if Instant::now() >= until {
                return self.history.push(format!("{command:?}: killed after {time:?}"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        let done = started.finish(DEADLINE).await;
        self.note(command, &done);
    }

    fn note(&mut self, command: &Command, done: &Finished) {
        let Finished { code, text } = done;
        // The health is at the beginning of `status`, and an error at the end of an output.
        let Command { team, text: what } = command;
        let last = match what.starts_with("status") {
            true => text.lines().take(2).collect::<Vec<_>>().join("; "),
            false => text.lines().rfind(|line| !line.is_empty()).unwrap_or_default().to_owned(),
        };
        self.history.push(format!("{team:?} {what}: {code:?} {last}"));
        assert!(!text.contains("panicked at"), "{what}: {text}\n{}", self.story());
        let advised = advice(text).map(|text| Command::new(*team, text));
        self.advised = advised.or(self.advised.take());
    }

    fn story(&self) -> String {
        self.history.join("\n")
    }

    /// Follows the printed fixes until everything is published and applied.
    async fn settle(&mut self) {
        self.processes = [const { None }; 4];
        self.world.pubsub.heal();
        for _ in 0..20 {
            let mut places = vec![(Team::Second, None)];
            match self.is_sharded().await {
                true => places.extend([(Team::First, Some(0)), (Team::First, Some(1))]),
                false => places.push((Team::First, None)),
            }
            let mut caught_up = true;
            for (team, shard) in places {
                caught_up &= self.settle_slot(team, shard).await;
            }
            let waits = "SELECT count(*) FROM (SELECT status FROM app_outbox_dispatch UNION ALL
                           SELECT status FROM team2.app_outbox_dispatch) AS row WHERE status <> 'published'";
            if caught_up && self.world.number(waits).await == 0 {
                return;
            }
        }
        panic!("the printed fixes lead nowhere:\n{}", self.story());
    }

    /// Returns whether this slot has caught up.
    async fn settle_slot(&mut self, team: Team, shard: Option<usize>) -> bool {
        let of_slot = |text: &str| Command::new(team, of_shard(text, shard));
        // Beside a relay that streams, `status` names what else keeps rows back, and a replay continues.
        let relay = self.relay(team, shard).await;
        let status = self.finish(&of_slot("status")).await;
        self.advised = None;
        let mut next = advice(&status.text).map(|text| Command::new(team, text));
        // A command that is refused names the next one, and so on.
        for _ in 0..3 {
            let Some(command) = next.take() else { break };
            self.finish_within(3 * PATIENCE, &command).await;
            next = self.advised.take();
        }
        for state in ["dead", "retrying"] {
            self.finish(&of_slot(&format!("dispatch retry --status {state} --yes"))).await;
        }
        drop(relay);
        self.finish(&of_slot("run --until-caught-up")).await.code == Some(0)
    }

    async fn committed(&self, team: Team) -> Vec<Committed> {
        let sql = COMMITTED.replace("$schema", team.schema());
        let rows = self.world.client().query(&sql, &[]).await.expect("the rows of the oracle");
        let committed = rows.iter().map(|row| Committed {
            event_id: row.get(0),
            key: row.get(1),
            data: row.get::<_, String>(2).into_bytes(),
        });
        committed.collect()
    }

    /// Checks that each committed row is in its topic, and in order per key. The consumer has applied
    /// each event of the first outbox once, and in order.
    async fn assert_kept(&self) {
        eprintln!("{}", self.story());
        for team in Team::ALL {
            let committed = self.committed(team).await;
            let stored = self.world.pubsub.stored_in(&topic(team.topic()));
            let verdict = checker::check(&committed, &stored);
            eprintln!("{team:?}: {} rows; {verdict}", committed.len());
            assert!(is_kept(&verdict), "{verdict}\n{}", self.story());
        }
        let committed = self.committed(Team::First).await;
        let consumer = self.world.start_consumer([]).await;
        self.world.wait_applied(i64::try_from(committed.len()).expect("a small number")).await;
        drop(consumer);
        let verdict = checker::check(&committed, &self.world.applied().await);
        let is_once = is_kept(&verdict) && verdict.duplicates_count == 0;
        assert!(is_once, "applied: {verdict}\n{}", self.story());
        self.world.succeed(["audit", "--grace", "0s"]).await;
    }
}

/// Rows of two shards, and rows published from the table, may share positions with others.
const fn is_kept(Verdict { lost, reordered, unknown, .. }: &Verdict) -> bool {
    lost.is_empty() && reordered.is_empty() && unknown.is_empty()
}

const ORACLE: &str = "
CREATE TABLE $schema.committed (event_id text, key text, data text, version bigint);
CREATE FUNCTION $schema.commit_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO $schema.committed VALUES (NEW.id::text, NEW.aggregateid, NEW.payload::text, NEW.version);
  RETURN NULL;
END $$;
CREATE TRIGGER commit_row AFTER INSERT ON $schema.app_outbox FOR EACH ROW EXECUTE FUNCTION $schema.commit_row();
CREATE SEQUENCE $schema.version";

const ROWS_OF_SECOND: &str = "
INSERT INTO team2.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
SELECT 'other', 'w-' || n, 'made', nextval('team2.version'), jsonb_build_object('n', n) FROM generate_series(1, 3) AS n";

const COMMITTED: &str = "SELECT event_id, key, data FROM $schema.committed ORDER BY version";

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
