//! Every option, declared once. Flag, variable, key of the file, help, range check, docs page,
//! annotated file and schema all follow from the declaration. Only the code that uses the value is
//! elsewhere.
//!
//! An option is a flag, a variable and a key of the file. A value that only the command line may
//! give, such as the row to discard, is an argument of its command in [`cli`](crate::cli).

use std::time::Duration;

pub mod declaration;
pub mod units;

use declaration::{Bytes, Fallback, Group, ListSeparator, Setting, group, options};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const DECADE: Duration = Duration::from_hours(24 * 3650);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Declares a column that every outbox table has.
const fn column(name: &'static str, default: &'static str) -> Setting<String> {
    Setting::text(name, default, "a column, or its names with commas").shown_as("COLUMN")
}

/// Declares a column that an outbox table may lack.
const fn optional_column(name: &'static str, default: &'static str) -> Setting<String> {
    Setting::text(name, default, "a column, its names with commas, or empty").shown_as("COLUMN")
}

options! {
    /// Options of every command.
    GeneralOptions "General"
    CONFIG: Option<String> = Setting::optional_text("config", "", "a file")
        .everywhere()
        .shown_as("FILE")
        .means("TOML file with the long names of these options as keys")
        .detail("Cannot be set in the file itself.");
    LOG_FORMAT: Option<&'static str> = Setting::optional_word(
            "log-format", "`text` on a terminal, else `json`", &["text", "json"])
        .everywhere()
        .shown_as("FORMAT")
        .means("Form of a log line: `text`, or `json` with Cloud Logging's field names")
        .detail("Logs go to standard error.");
    LOG_LEVEL: String = Setting::text("log-level", "info",
            "`error`, `warn`, `info`, `debug`, `trace`, or `target=level,…`")
        .shown_as("FILTER")
        .everywhere()
        .also(&["RUST_LOG"])
        .means("What is logged: error, warn, info, debug, trace, or `target=level,…`");
}

options! {
    /// The connection to Postgres, and the objects to use there.
    DatabaseOptions "Postgres"
    DATABASE_URL: Option<String> = Setting::optional_text(
            "database-url", "", "a connection string")
        .shown_as("URL")
        .also(&["DATABASE_URL"])
        .secret()
        .means("Where Postgres is: postgresql://user:password@host:port/database?sslmode=…")
        .detail("Required. For the relay a direct connection, not a pooler; a consumer's may be one. The password may come from PGPASSWORD or PGPASSFILE, \
                 the certificate authority from WALRELAY_SSLROOTCERT_PEM.");
    SLOT: String = Setting::text("slot", "walrelay", "1 to 63 of `a-z`, `0-9`, `_`")
        .shown_as("NAME")
        .means("Replication slot this relay reads")
        .detail("Also its name in dispatch state.");
    SHARD: Option<String> = Setting::optional_text("shard", "the only one, or all", "`i/N`, as in `0/4`")
        .shown_as("SHARD")
        .means("Which of the shards that `init --shards` has made: `0/4` is the first of four")
        .detail("Slot and publication are then those of that shard: walrelay_0_of_4.");
    PUBLICATION: String = Setting::text("publication", "walrelay", "1 to 63 bytes")
        .shown_as("NAME")
        .means("Publication the slot is read through");
    OUTBOX_TABLE: Vec<String> = Setting::list("outbox-table", Fallback::Value("public.app_outbox"),
            "`table` or `schema.table`", ListSeparator::ByCommas)
        .shown_as("TABLE")
        .means("Outbox table, `schema.table`; may be given several times")
        .detail("Quote parts as Postgres does.");
}

options! {
    /// The names of the outbox columns.
    ColumnOptions "Columns of the outbox"
    PRESET: &'static str = Setting::word("preset", "walrelay", &["walrelay", "debezium"])
        .shown_as("PRESET")
        .means("Names to start from: `walrelay`, or `debezium` (type, timestamp; no version, headers)");
    COLUMN_ID: String = column("column-id", "id")
        .means("Column of the event id, the consumer's dedupe key");
    COLUMN_AGGREGATE_TYPE: String = optional_column("column-aggregate-type", "aggregatetype")
        .means("Column of the aggregate type, which routes to a topic; empty when the table has none");
    COLUMN_AGGREGATE_ID: String = optional_column("column-aggregate-id", "aggregateid")
        .means("Column of the aggregate id, the ordering key; empty when the table has none");
    COLUMN_EVENT_TYPE: String = optional_column("column-event-type", "event_type")
        .means("Column of the event type; empty when the table has none");
    COLUMN_VERSION: String = optional_column("column-version", "version")
        .means("Column of the version within an aggregate; empty when the table has none");
    COLUMN_SCHEMA_VERSION: String = optional_column("column-schema-version", "schema_version")
        .means("Column of the payload's schema version; empty when the table has none");
    COLUMN_PAYLOAD: String = column("column-payload", "payload")
        .means("Column of the payload, published verbatim");
    COLUMN_HEADERS: String = optional_column("column-headers", "headers")
        .means("Column of extra attributes, a JSON object: strings as they are, other values as JSON text; empty when the table has none");
    COLUMN_OCCURRED_AT: String = optional_column("column-occurred-at", "occurred_at")
        .means("Column of the time of the event; empty when the table has none");
}

options! {
    /// The mapping from a row to a message.
    MessageOptions "Messages"
    TOPIC: String = Setting::text("topic", "{aggregatetype}.events", "a template")
        .shown_as("TEMPLATE")
        .means("Topic, with columns in braces; a full projects/…/topics/… is accepted");
    PROJECT: Option<String> = Setting::optional_text("project", "", "a project id")
        .shown_as("PROJECT")
        .also(&["PUBSUB_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"])
        .means("Google Cloud project of topics that do not name one")
        .detail("Required unless --topic is a full name.");
    ORDERING_KEY: String = Setting::text("ordering-key", "{aggregateid}", "a template")
        .shown_as("TEMPLATE")
        .means("Ordering key, with columns in braces; empty publishes without order");
    ATTRIBUTES: &'static str = Setting::word("attributes", "default", &["default", "cloudevents"])
        .shown_as("STYLE")
        .means("Attribute names: `default`, or `cloudevents` (ce-id, ce-type, …)");
    CLOUDEVENTS_SOURCE: Option<String> = Setting::optional_text(
            "cloudevents-source", "the table's name", "at most 1024 bytes without spaces")
        .shown_as("URI")
        .means("`ce-source` of CloudEvents attributes: a URI reference");
    SYSTEM_IDENTIFIER: bool = Setting::switch("system-identifier")
        .means("Write the attribute `system_identifier`, which says whose log a position is of: `walrelay consume --dedupe position` needs it")
        .detail("Some forty bytes a message.");
}

group! {
    /// Only the project, for commands that take the short name of a topic.
    ProjectOption "Messages" PROJECT
}

options! {
    /// The endpoint of Pub/Sub, and limits on requests.
    PubSubOptions "Pub/Sub"
    ENDPOINT: Option<String> = Setting::optional_text(
            "endpoint", "the global endpoint", "`https://REGION-pubsub.googleapis.com`")
        .shown_as("URL")
        .means("Regional endpoint, https://REGION-pubsub.googleapis.com: pin one when order matters")
        .detail("PUBSUB_EMULATOR_HOST selects an emulator instead, without credentials.");
    PUBSUB_CA: Option<String> = Setting::optional_text("pubsub-ca", "the public authorities", "a PEM file")
        .shown_as("FILE")
        .means("Authorities that Pub/Sub's certificate must be signed by, instead of the public ones")
        .detail("For a proxy or a private endpoint with a certificate of its owner's.");
    PUBLISH_TIMEOUT: Duration = Setting::duration("publish-timeout", "60s", SECOND, Duration::from_mins(10))
        .means("How long one Publish call may take before it is sent again")
        .detail("The official clients' value.");
    MAX_OUTSTANDING_REQUESTS: u32 = Setting::count("max-outstanding-requests", "4000", 1, 10_000)
        .means("Publish calls out at once, at most; the relay adapts below this")
        .detail("40 connections of 100 calls.");
    CONNECTIONS: u32 = Setting::count("connections", "40", 1, 64)
        .means("HTTP/2 connections to Pub/Sub, at most; opened as demand grows");
}

options! {
    /// Timeouts, limits and policies of the relay.
    RelayOptions "Relay"
    PARK_AFTER: Duration = Setting::duration("park-after", "30s", Duration::from_millis(100), DAY)
        .means("A key stuck this long while others succeed moves to dispatch state")
        .detail("Long enough for a restart of the service, short against the WAL a slot may keep.");
    MAX_ATTEMPTS: u32 = Setting::count("max-attempts", "20", 1, 1_000)
        .under("Consumer", "10")
        .means("Tries of what failed before it is dead")
        .detail("With back-off, some eight minutes of failures of its own; 10 by default for a consumer: five to nine minutes.");
    ON_DEAD: &'static str = Setting::word("on-dead", "continue", &["continue", "hold"])
        .shown_as("POLICY")
        .under("Consumer", "hold")
        .means("After a dead row its key goes on (`continue`) or waits for a person (`hold`)")
        .detail("A consumer's default is `hold`: a gap corrupts a read model.");
    MAX_IN_FLIGHT_BYTES: Bytes = Setting::size("max-in-flight-bytes", "64MiB", MIB, 64 * GIB)
        .means("Memory for rows read and not settled; when it is full, Postgres waits");
    WAL_BUDGET: String = Setting::text("wal-budget", "auto", "`auto`, `off`, or `1MiB` and more")
        .shown_as("SIZE")
        .means("Log that may wait for Pub/Sub; before it is reached rows are spilled to dispatch state")
        .detail("`auto`: half of `max_slot_wal_keep_size`, at most 4 GiB; 1 GiB where the server sets no limit. \
                 `off`: the log waits for as long as it takes.");
    DRAIN_TIMEOUT: Duration = Setting::duration("drain-timeout", "7s", Duration::ZERO, HOUR)
        .means("How long a stop waits for what is in flight")
        .detail("Cloud Run allows 10 s in all.");
    TAKE_OVER_AFTER: Option<Duration> = Setting::optional_duration("take-over-after", "`never`", SECOND, DAY)
        .means("End the session of another holder of the slot that gave no sign of life for this long");
    STATUS_INTERVAL: Duration = Setting::duration("status-interval", "1s", Duration::from_millis(100), MINUTE)
        .means("How often Postgres is told what is confirmed")
        .besides("at most a third of `--wal-sender-timeout`");
    WAL_SENDER_TIMEOUT: Duration = Setting::duration("wal-sender-timeout", "15s", SECOND, Duration::from_mins(10))
        .means("After this much silence Postgres frees the slot of a dead relay")
        .detail("Bounds how long a takeover waits.");
    DISPATCH_RETENTION: Duration = Setting::duration("dispatch-retention", "7d", Duration::ZERO, DECADE)
        .means("How long published and discarded rows stay in dispatch state");
    HTTP: Option<String> = Setting::optional_text(
            "http", "`0.0.0.0:$PORT` when `PORT` is set, else `off`", "an address, `off`")
        .shown_as("ADDRESS")
        .means("Address of /livez, /readyz, /metrics, /status, or `off`");
}

group! {
    /// Only the WAL budget, for commands that leave capacity for it.
    WalBudgetOption "Relay" WAL_BUDGET
}

group! {
    /// The relay's options that a replay also uses.
    ReplayLoopOptions "Relay"
    ON_DEAD MAX_IN_FLIGHT_BYTES DRAIN_TIMEOUT WAL_SENDER_TIMEOUT STATUS_INTERVAL
}

options! {
    /// The subscription of a consumer, and how it applies events.
    ConsumerOptions "Consumer"
    SUBSCRIPTION: Option<String> = Setting::optional_text(
            "subscription", "what the consumer was set up with", "a name, short or full")
        .shown_as("SUBSCRIPTION")
        .means("Subscription to read; a full projects/…/subscriptions/… is accepted")
        .detail("`consumer init` requires it. For `consume` it names another one: that of the dead letters.");
    HANDLER: Option<String> = Setting::optional_text("handler", "", "`schema.function`")
        .shown_as("FUNCTION")
        .means("SQL function that applies events: f(app_inbox_event) or f(app_inbox_event[])")
        .detail("Required by `consume`. It returns void. Where both forms exist, name the argument too.");
    BATCH: u32 = Setting::count("batch", "200", 1, 10_000)
        .means("Events applied in one transaction, at most; there is no waiting for more");
    WORKERS: u32 = Setting::count("workers", "4", 1, 64)
        .means("Transactions at once, each on its own connection");
    HANDLER_TIMEOUT: Duration = Setting::duration("handler-timeout", "1m", Duration::from_secs(1), Duration::from_mins(10))
        .means("How long the handler may take for a batch")
        .detail("One that takes longer is tried in halves; an event that does so alone has failed, and is tried again later.");
    MAX_LEASE: Duration = Setting::duration("max-lease", "30m", MINUTE, DAY)
        .means("How long a message is held while the database is not there")
        .detail("Then Pub/Sub may give it to another instance.");
    ON_GAP: &'static str = Setting::word("on-gap", "accept", &["accept", "hold"])
        .means("What happens to an event when a version of its key is missing before it: apply it, or let it wait")
        .detail("With `hold` it waits as one that has failed does: for --max-attempts, and then, with --on-dead hold, for a person.");
    DEDUPE: &'static str = Setting::word("dedupe", "event", &["event", "position"])
        .shown_as("RULE")
        .means("What counts as seen: an event in the inbox, or besides one behind its key's position")
        .detail("`position` needs the attribute that `walrelay run --system-identifier` writes.");
}

group! {
    /// The database of a consumer.
    ConsumerDatabaseOptions "Postgres" DATABASE_URL
}

group! {
    /// Only the endpoint, for commands that do not publish.
    EndpointOption "Pub/Sub" ENDPOINT PUBSUB_CA
}

group! {
    /// The relay's options that a consumer also uses.
    ConsumerLoopOptions "Consumer"
    MAX_ATTEMPTS ON_DEAD MAX_IN_FLIGHT_BYTES DRAIN_TIMEOUT HTTP
}

group! {
    /// Only the subscription.
    SubscriptionOption "Consumer" SUBSCRIPTION
}

group! {
    /// Only `--sql`.
    SqlOption "This command" SQL
}

options! {
    /// Options of `init` alone.
    InitOptions "This command"
    CREATE_TOPICS: Vec<String> = Setting::list("create-topics", Fallback::Nothing("`false`"),
            "bare, or `=NAME,NAME`", ListSeparator::ByCommasOrBare)
        .shown_as("TOPIC")
        .means("Create the topics the outbox's rows lead to through --topic, and those named here")
        .detail("As in --create-topics=order.events,video.events.");
    SQL: bool = Setting::switch("sql").means("Print the SQL and touch nothing");
    SHARDS: u32 = Setting::count("shards", "1", 1, 64)
        .besides("a power of two")
        .means("Into how many shards the outbox is divided, each with a publication, a slot and an instance of its own");
    FAILOVER: bool = Setting::switch("failover")
        .means("Make it a failover slot, which standbys keep in step; Postgres 17 or newer");
}

options! {
    /// The output format.
    OutputOptions "This command"
    FORMAT: &'static str = Setting::word("format", "text", &["text", "json"])
        .shown_as("FORMAT")
        .means("`text` for people, `json` for programs");
}

options! {
    /// The option of `run` and `consume`.
    RunOptions "This command"
    UNTIL_CAUGHT_UP: bool = Setting::switch("until-caught-up")
        .means("Stop with 0 once everything committed before the start is confirmed, none of it waits spilled, and nothing is due")
        .detail("`consume` stops once nothing has come for 3 s, and nothing is held or due.");
}

options! {
    /// Options of `run` alone.
    LostSlotOptions "This command"
    ON_SLOT_LOST: &'static str = Setting::word("on-slot-lost", "wait", &["wait", "stop", "recover"])
        .shown_as("POLICY")
        .means("If the slot is lost: wait for `slot recover`, stop with exit 5, or recover without a person")
        .detail("With --until-caught-up, `wait` stops with exit 5. `recover` needs SELECT on the outbox table. See docs/operations.md, Lost slot.");
    ANCHOR_KEEP: Option<Duration> = Setting::optional_duration("anchor-keep", "no anchor is kept", MINUTE, DECADE)
        .means("Keep an anchor that reaches back this far, as in 6h, for replays and resets")
        .detail("It is called `kept`, and keeps no more log than its share of `max_slot_wal_keep_size`. See docs/replay.md.");
}

options! {
    /// Options of `prune` and `consumer prune`.
    PruneOptions "This command"
    OLDER_THAN: Duration = Setting::duration("older-than", "30d", SECOND, DECADE)
        .means("Age a row must have to be deleted");
}

options! {
    /// Options of `emulator`.
    EmulatorOptions "Emulator"
    LISTEN: String = Setting::text("listen", "127.0.0.1:8085", "an address")
        .shown_as("ADDRESS")
        .means("Address of the gRPC services");
    CONTROL_LISTEN: String = Setting::text("control-listen", "off", "an address, `off`")
        .shown_as("ADDRESS")
        .means("Address of the HTTP control port, or `off`");
    FAULT: Vec<String> = Setting::list("fault", Fallback::Nothing(""), "repeatable", ListSeparator::BySemicolons)
        .shown_as("FAULT")
        .means("A fault to begin with, conditions and one effect; may be given several times")
        .detail("It strikes what `on` says: on=publish (the default), pull, streaming-pull, delivery, acknowledge or \
                 modify-ack-deadline. Conditions: topic=T, subscription=S, key=K, event_type=V, event_id=V, attr.NAME=V, \
                 percent=P, skip=N, first=N. Effects for all: reject=CODE, hold-before, delay=TIME, black-hole; for all but \
                 the two pulls: fail-after=CODE, hold; for delivery: expire; for acknowledge and modify-ack-deadline: \
                 lose, fail-ids=invalid, unordered or temporary. As in \
                 topic=orders.events,key=A-17,percent=50,reject=UNAVAILABLE or \
                 on=acknowledge,subscription=billing,first=3,lose.");
    MAX_STORED_BYTES: Bytes = Setting::size("max-stored-bytes", "2GiB", MIB, 64 * GIB)
        .means("Memory for messages, kept ones included; Publish beyond it is refused");
}

options! {
    /// Options of `demo`.
    DemoOptions "Demo"
    ROWS: Option<u32> = Setting::optional_count("rows", "run until Ctrl-C", 1, 10_000_000)
        .means("Stop after this many committed rows");
    RATE: u32 = Setting::count("rate", "50", 1, 100_000).means("Outbox rows per second");
    AGGREGATES: u32 = Setting::count("aggregates", "20", 1, 1_000_000)
        .means("Aggregates the rows are spread over");
    QUIET: bool = Setting::switch("quiet").means("Only the summary, not every message");
}

/// Every group that declares options, in the order of the docs page.
pub const GROUPS: &[Group] = &[
    GeneralOptions::GROUP,
    DatabaseOptions::GROUP,
    ColumnOptions::GROUP,
    MessageOptions::GROUP,
    PubSubOptions::GROUP,
    RelayOptions::GROUP,
    ConsumerOptions::GROUP,
    InitOptions::GROUP,
    OutputOptions::GROUP,
    RunOptions::GROUP,
    LostSlotOptions::GROUP,
    PruneOptions::GROUP,
    EmulatorOptions::GROUP,
    DemoOptions::GROUP,
];

/// Returns the option of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static declaration::Declaration> {
    GROUPS.iter().flat_map(|group| group.options).find(|option| option.name == name)
}
