//! Checks that the documentation works: every block of SQL, shell and a programming language
//! either runs or gives a reason why it cannot.

mod blocks;
mod feed;
mod recipes;
mod runbooks;
mod web;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::background_server::Background;
use walrelay_testkit::postgres::{TestClient, installation_or_skip};
use walrelay_testkit::relay::binary;
use walrelay_testkit::{skip, wait_until};
use walrelay_tests::{DEADLINE, PROJECT, PubSub};

use blocks::{Block, Language, runnable};
use feed::Feed;
use recipes::{Folder, program, text_of};

/// The state that a page assumes, created before its first block.
const SETUPS: &[(&str, &str)] = &[
    ("docs/how-to/operate/dead-rows.md", OPERATIONS),
    ("docs/reference/emulator.md", EVENT),
    (ROLES, "CREATE ROLE app"),
    (ARCHIVE, OLD_EVENT),
];

/// Pages that continue another page: the blocks of that page run first.
const CONTINUED: &[(&str, &str)] = &[
    ("docs/how-to/build/produce-program.md", PRODUCE),
    (COMPILED, PRODUCE),
    (BROWSER, PRODUCE),
    ("docs/how-to/build/consume-batches.md", CONSUME),
    ("docs/how-to/build/consume-transaction.md", CONSUME),
    ("docs/how-to/operate/consumers.md", FIRST_CONSUMER),
    ("docs/how-to/operate/dead-events.md", FIRST_CONSUMER),
    ("docs/how-to/operate/uninstall.md", ROLES),
];

/// Pages whose first block needs an empty database, without `walrelay init`.
const EMPTY: &[&str] = &[
    "docs/tutorials/quick-start.md",
    "docs/tutorials/your-own-postgres.md",
    FIRST_CONSUMER,
    "docs/how-to/build/move-from-polling.md",
    "docs/how-to/operate/partitions.md",
    "docs/how-to/operate/row-filter.md",
    "docs/how-to/deploy/schema.md",
    "migrations/README.md",
];

/// The page that archives an old event.
const ARCHIVE: &str = "docs/how-to/operate/archive.md";

const PRODUCE: &str = "docs/how-to/build/produce-sql.md";
const COMPILED: &str = "docs/how-to/build/produce-go-java-csharp.md";
const BROWSER: &str = "docs/how-to/build/produce-browser.md";
const CONSUME: &str = "docs/how-to/build/consume-sql.md";
const FIRST_CONSUMER: &str = "docs/tutorials/first-consumer.md";

/// The page whose grants need the consumer's tables.
const ROLES: &str = "docs/how-to/deploy/roles.md";

/// The page with the statements that close new objects.
const SUPABASE: &str = "docs/how-to/deploy/supabase.md";

/// The README, whose steps run in a separate test because they leave two programs running.
const README: &str = "README.md";

/// The runbooks, which share one server and have a test of their own.
const RUNBOOKS: &str = "docs/runbooks/";

/// A row for the relay to publish.
const EVENT: &str = "
    INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
    VALUES ('order', 'A-17', 'order.created', 1, '{\"total\": 42}')";

/// A row that may be deleted once it is published.
const OLD_EVENT: &str = "
    INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
    VALUES ('order', 'A-17', 'order.created', 1, '{\"total\": 42}', '2020-01-01')";

/// A dead row, and a row of the same key behind it, for statements that act on them.
const OPERATIONS: &str = "
    INSERT INTO app_outbox_dispatch
           (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status)
    VALUES ('walrelay', 'ID', '0/1', 0, 'projects/P/topics/T', 'k', '\\x0a0178', 'dead'),
           ('walrelay', 'behind', '0/1', 1, 'projects/P/topics/T', 'k', '\\x0a0178', 'retrying')";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns every page for users and contributors, with its path from the repository root.
fn pages() -> Vec<(String, String)> {
    let mut paths: Vec<String> =
        ["", "migrations/"].into_iter().flat_map(|folder| pages_in(folder).0).collect();
    let mut folders = vec!["docs/".to_owned()];
    while let Some(folder) = folders.pop() {
        let (pages, below) = pages_in(&folder);
        paths.extend(pages);
        folders.extend(below.into_iter().filter(|path| path != RUNBOOKS));
    }
    paths.sort_unstable();
    let text = |path: &String| fs::read_to_string(root().join(path)).expect("a readable page");
    paths
        .into_iter()
        .map(|path| {
            let text = text(&path);
            (path, text)
        })
        .collect()
}

/// Returns the pages in a folder and the folders in it.
fn pages_in(folder: &str) -> (Vec<String>, Vec<String>) {
    let (mut pages, mut folders) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(root().join(folder)).expect("a folder of pages").flatten() {
        let path = format!("{folder}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => folders.push(format!("{path}/")),
            false if path.ends_with(".md") => pages.push(path),
            false => {}
        }
    }
    (pages, folders)
}

fn text_of_page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the consumer's migrations in order.
fn inbox_migrations() -> Vec<String> {
    let dir = fs::read_dir(root().join("migrations/inbox")).expect("the inbox's migrations");
    let mut paths: Vec<PathBuf> = dir.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths.iter().map(|path| fs::read_to_string(path).expect("a readable migration")).collect()
}

fn blocks_of(path: &str, text: &str) -> Vec<Block> {
    runnable(text).unwrap_or_else(|mark| panic!("{path}: {mark}"))
}

/// Returns the statements that close new objects on Supabase. The other pages assume them.
fn closed_defaults() -> String {
    let blocks = blocks_of(SUPABASE, &text_of_page(SUPABASE));
    let closing = blocks.into_iter().find(|block| block.text.contains("ALTER DEFAULT PRIVILEGES"));
    closing.expect("the page closes new objects").text
}

#[tokio::test]
async fn every_block_of_the_pages_runs_unchanged() {
    let Some(binary) = binary() else { return skip_unbuilt() };
    let mut ran = 0;
    for (path, text) in pages().iter().filter(|(path, _)| path != README) {
        let blocks = blocks_of(path, text);
        if blocks.is_empty() {
            continue;
        }
        let Some(page) = Page::open(path, &binary).await else { return };
        for block in &blocks {
            page.run(block).await;
            ran += 1;
        }
        page.assert_what_it_promised().await;
    }
    assert!(ran >= 8, "only {ran} blocks ran: the pages had more");
}

fn skip_unbuilt() {
    let _: Option<()> = skip("the binary is not built");
}

/// A page with its own server, because slots and roles in its blocks are global to a server.
struct Page {
    path: String,
    server: PrivatePostgres,
    pubsub: PubSub,
    control: Background,
    client: TestClient,
    feed: Feed,
    binary: PathBuf,
    /// An empty folder for the page, `$SCRATCH` in its blocks.
    scratch: Folder,
}

impl Page {
    async fn open(path: &str, binary: &Path) -> Option<Self> {
        let installation = installation_or_skip()?;
        let server = PrivatePostgres::start(&installation, &[]).expect("a server starts");
        // Databases that a page creates are copies of this template.
        let template = TestClient::connect(&server.url("template1")).await;
        template.batch_execute(web::ROLES).await.expect("the roles of Supabase");
        let client = TestClient::connect(&server.url("postgres")).await;
        for database in [&template, &client] {
            database.batch_execute(web::DEFAULT_PRIVILEGES).await.expect("its default privileges");
            database.batch_execute(&closed_defaults()).await.expect("the page's statements");
        }
        drop(template);
        let pubsub = PubSub::start();
        let feed = Feed::open(&pubsub).await;
        let (path_of_page, binary) = (path.to_owned(), binary.to_owned());
        let control = pubsub.control();
        let scratch = Folder::create();
        let page =
            Self { path: path_of_page, server, pubsub, control, client, feed, binary, scratch };
        let earlier = CONTINUED.iter().find(|(of, _)| *of == path).map(|(_, earlier)| *earlier);
        page.set_up(earlier.unwrap_or(path)).await;
        if let Some(earlier) = earlier {
            for block in &blocks_of(earlier, &text_of_page(earlier)) {
                page.run(block).await;
            }
        }
        Some(page)
    }

    async fn set_up(&self, path: &str) {
        if !EMPTY.contains(&path) {
            self.shell("walrelay init", "setup").await;
        }
        if path == ROLES {
            for sql in inbox_migrations() {
                self.client.batch_execute(&sql).await.expect("the inbox's tables");
            }
        }
        for (_, sql) in SETUPS.iter().filter(|(of, _)| *of == path) {
            self.client.batch_execute(sql).await.expect("the page's setup");
        }
        if path == ARCHIVE {
            self.shell("walrelay init --create-topics=order.events,order.again", "setup").await;
            self.settle().await;
        }
    }

    /// Runs the relay until the old row may be deleted.
    async fn settle(&self) {
        let script =
            "psql -q \"$DATABASE_URL\" -c \"SELECT pg_logical_emit_message(true, 'x', 'x')\"
            walrelay run --until-caught-up && walrelay prune --older-than 30d --dry-run";
        wait_until(DEADLINE, "the old row to be settled", async || {
            self.shell(script, "setup").await.contains("delete 1 row").then_some(())
        })
        .await;
    }

    async fn run(&self, block: &Block) {
        let place = format!("{}:{}", self.path, block.line);
        match block.language {
            Language::Shell => drop(self.shell(&block.text, &place).await),
            // A statement with parameters belongs into a program. The server only checks its syntax
            // and types.
            Language::Sql if block.text.contains("$1") => {
                let prepared = self.client.prepare(&block.text).await;
                prepared.unwrap_or_else(|error| panic!("{place}: {error:?}\n{}", block.text));
            }
            Language::Sql => {
                let done = self.client.batch_execute(&block.text).await;
                done.unwrap_or_else(|error| panic!("{place}: {error:?}\n{}", block.text));
            }
            Language::Python
            | Language::TypeScript
            | Language::Go
            | Language::Java
            | Language::CSharp => self.program(block, &place).await,
        }
    }

    async fn shell(&self, script: &str, place: &str) -> String {
        let mut command = shell(script, &self.binary);
        self.environment(&mut command);
        let done = output(command).await;
        let text = text_of(&done);
        assert!(done.status.success(), "{place}: {}\n{script}\n{text}", done.status);
        text
    }

    fn environment(&self, command: &mut Command) {
        command
            .env("DATABASE_URL", self.server.url("postgres"))
            .envs(recipes::connection_variables(self.server.port()))
            .env("PUBSUB_EMULATOR_HOST", self.pubsub.address())
            .env("CONTROL", self.control.address())
            .env("SCRATCH", &self.scratch.0)
            .env("PUBSUB_PROJECT_ID", "local")
            .env("WALRELAY_QUIET_FOR", "300ms");
    }

    async fn program(&self, block: &Block, place: &str) {
        let Some(mut program) = program(block.language, &block.text, place) else { return };
        self.environment(&mut program.command);
        program
            .command
            .env("GOOGLE_CLOUD_PROJECT", PROJECT)
            .env("SUBSCRIPTION", feed::SUBSCRIPTION);
        let Some(until) = &block.until else {
            let done = output(program.command).await;
            assert!(done.status.success(), "{place}: {}", text_of(&done));
            return;
        };
        let before = self.feed.publish_a_failing_one().await;
        let mut running = Running(program.command.spawn().expect("the program starts"));
        self.feed.wait_for_the_failure(&before, place).await;
        self.feed.publish().await;
        wait_until(DEADLINE, &format!("{place} to do its work"), async || {
            let ended = running.0.try_wait().expect("the program can be asked");
            assert!(ended.is_none(), "{place}: the program has ended: {ended:?}");
            let row = self.client.query_one(until, &[]).await;
            row.unwrap_or_else(|error| panic!("{place}: {error:?}")).get::<_, bool>(0).then_some(())
        })
        .await;
    }

    async fn assert_what_it_promised(&self) {
        let other = TestClient::connect(&self.server.url("postgres")).await;
        let found = other.query(web::DATABASES, &[]).await.expect("the databases");
        for row in &found {
            let database: String = row.get(0);
            let there = TestClient::connect(&self.server.url(&database)).await;
            let open: String =
                there.query_one(web::OPEN_OBJECTS, &[]).await.expect("the rights").get(0);
            let meant = web::INTENDED_GRANTS.iter().find(|(path, _)| *path == self.path);
            let meant = meant.map_or("", |(_, rights)| rights);
            assert_eq!(open, meant, "{}: open to the internet in {database}", self.path);
        }
        match self.path.as_str() {
            "docs/how-to/operate/dead-rows.md" => self.assert_dispatch_is_operated().await,
            "docs/reference/emulator.md" => self.assert_the_event_is_shown().await,
            "docs/how-to/build/produce-program.md" | COMPILED => {
                self.assert_events_are_written().await;
            }
            BROWSER => self.assert_anon_is_refused("SELECT place_order('E-1', 1)").await,
            "docs/how-to/build/consume-batches.md" | "docs/how-to/build/consume-transaction.md" => {
                self.assert_events_are_applied_once().await;
            }
            FIRST_CONSUMER => self.assert_the_read_model_has_the_order().await,
            _ => {}
        }
    }

    async fn assert_anon_is_refused(&self, statement: &str) {
        let anybody = format!("SET ROLE anon; {statement}");
        let refused = self.client.batch_execute(&anybody).await.expect_err("it is not for anon");
        assert_eq!(refused.code().map_or("", |it| it.code()), "42501", "{statement}: {refused:?}");
        self.client.batch_execute("RESET ROLE").await.expect("the role is set back");
    }

    /// Checks that each program that could run has placed and paid one order, and that the role
    /// `anon` cannot.
    async fn assert_events_are_written(&self) {
        self.assert_anon_is_refused("INSERT INTO orders VALUES ('E-1', 'placed', 1)").await;
        let sql = "SELECT aggregateid || ': ' || string_agg(event_type, ', ' ORDER BY version)
                     FROM app_outbox WHERE aggregateid IN ('B-1', 'C-1', 'D-1', 'E-2', 'F-1') GROUP BY aggregateid";
        for row in self.client.query(sql, &[]).await.expect("the outbox") {
            let events: String = row.get(0);
            assert!(events.ends_with(": OrderPlaced, OrderPaid"), "{events}");
        }
    }

    /// Checks that every published event is recorded once, although each was published twice, and
    /// that none is pending.
    async fn assert_events_are_applied_once(&self) {
        let sql = "SELECT count(*) FILTER (WHERE status = 'done'), count(*)
                     FROM app_inbox WHERE ordering_key = 'tested'";
        let row = self.client.query_one(sql, &[]).await.expect("the inbox");
        let (done, all): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(done, all, "not everything was applied in order");
        assert_eq!(all, self.feed.events_published());
    }

    /// Checks that the event is in the place that the page names.
    async fn assert_the_event_is_shown(&self) {
        let look =
            "curl -sf \"http://$CONTROL/published?topic=projects/local/topics/order.events\"";
        let shown = self.shell(look, "the last line of the page's recipe").await;
        assert!(shown.contains("\"data\":\"{\\\"total\\\": 42}\""), "{shown}");
    }

    /// Checks the whole page: from an empty database to a row that the page's unedited handler
    /// wrote.
    async fn assert_the_read_model_has_the_order(&self) {
        let client = TestClient::connect(&self.server.url("readmodel")).await;
        let sql = "SELECT concat_ws(' ', id, version, status, total) FROM orders";
        let row = client.query_one(sql, &[]).await.expect("one order");
        assert_eq!(row.get::<_, String>(0), "B-1 1 placed 12.50");
    }

    async fn assert_dispatch_is_operated(&self) {
        let sql = "SELECT status, last_error FROM app_outbox_dispatch WHERE event_id = 'ID'";
        let row = self.client.query_one(sql, &[]).await.expect("the row is there");
        assert_eq!(row.get::<_, String>("status"), "discarded");
        let history: String = row.get("last_error");
        for entry in ["retry asked for", "edited at", "discarded at"] {
            assert!(history.contains(entry), "`{entry}` is missing in {history}");
        }
        let due = "SELECT next_attempt_at IS NOT NULL FROM app_outbox_dispatch
                    WHERE event_id = 'behind'";
        let is_due: bool = self.client.query_one(due, &[]).await.expect("the row behind").get(0);
        assert!(is_due, "the row behind a discarded head is not due");
    }
}

#[tokio::test]
async fn an_event_that_is_given_up_by_hand_lets_its_key_go_on_without_gaps() {
    const PATH: &str = "docs/how-to/build/consume-batches.md";
    let Some(binary) = binary() else { return skip_unbuilt() };
    let Some(page) = Page::open(PATH, &binary).await else { return };
    let blocks = blocks_of(PATH, &text_of_page(PATH));
    let with = |part: &str| blocks.iter().find(|block| block.text.contains(part)).expect("a block");
    // One event per batch, because the page's handler reads only the newest event of a batch.
    for (n, data, result) in [
        (1, r#"{"status": "paid", "total": 1}"#, "done"),
        (2, "{}", "dead"),
        (3, r#"{"status": "paid", "total": 3}"#, "retrying"),
    ] {
        let batch = format!(
            "SELECT result FROM app_inbox_apply('balances', 1, 'apply_orders(app_inbox_event[])',
               ARRAY[jsonb_populate_record(NULL::app_inbox_message, jsonb_build_object(
                 'event_id', 'g{n}', 'event_type', 'OrderPaid', 'ordering_key', 'G-1', 'aggregate_id', 'G-1',
                 'version', {n}, 'commit_lsn', '0/{n}', 'tx_index', 0, 'attributes', '{{}}',
                 'data', '{data}'))], max_attempts => 1, on_gap => 'hold')"
        );
        let row = page.client.query_one(&batch, &[]).await.expect("a batch");
        assert_eq!(row.get::<_, String>(0), result, "version {n}");
    }
    let give_up = with("Give it up").text.replace("'e1'", "'g2'").replace("'A-17'", "'G-1'");
    page.client.batch_execute(&give_up).await.expect("the block of the page");
    let again = "SELECT string_agg(event_id || ' ' || result, ', ')
        FROM app_inbox_redeliver('balances', 1, 'apply_orders(app_inbox_event[])', on_gap => 'hold')";
    let row = page.client.query_one(again, &[]).await.expect("what waited");
    assert_eq!(row.get::<_, Option<String>>(0).as_deref(), Some("g3 done"));
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // An error is ignored: the program may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns `bash` in the root of the checkout, with the binary on its PATH and without other
/// configuration.
fn shell(script: &str, binary: &Path) -> Command {
    let dir = binary.parent().expect("the binary lies in a folder").to_string_lossy().into_owned();
    let mut command = Command::new("bash");
    let prelude = format!("set -euo pipefail\nexport PATH=\"{dir}:$PATH\"\n");
    command.args(["-c", &format!("{prelude}{script}")]).current_dir(root());
    command
}

/// Waits on a blocking thread, because the runtime serves the Pub/Sub that the command uses.
async fn output(mut command: Command) -> Output {
    let ended = tokio::task::spawn_blocking(move || command.output()).await;
    ended.expect("the command is waited for").expect("bash starts")
}

#[tokio::test]
async fn the_readmes_quick_start_ends_with_the_message() {
    let Some(binary) = binary() else { return skip_unbuilt() };
    let Some(installation) = installation_or_skip() else { return };
    let server = PrivatePostgres::start(&installation, &[]).expect("a server starts");
    let start = blocks_of(README, &text_of_page(README))
        .into_iter()
        .find(|block| block.text.contains("walrelay run"))
        .expect("the README's start")
        .text;

    // A reader has a server at the usual address and free ports. This test replaces them.
    let url = "postgresql://postgres:postgres@127.0.0.1:5432/postgres";
    let address = format!("127.0.0.1:{}", free_port());
    let replacements = [
        (url, &server.url("postgres")),
        ("walrelay emulator &", &format!("walrelay emulator --listen {address} &")),
        ("127.0.0.1:8085", &address),
    ];
    let replaced = replacements.iter().fold(start, |steps, (this, that)| {
        assert!(steps.contains(this), "the README's start has no `{this}` any more");
        steps.replace(this, that)
    });
    let (steps, run) = replaced.split_once("walrelay run").expect("the relay's start");
    let run = run.split_once('\n').map_or("", |(_, rest)| rest);
    assert!(run.trim().is_empty(), "the relay is the last step: {run}");

    // The relay starts once `tail` has its subscription. A reader types slower than that.
    let script = format!(
        "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n{steps}\ntail=$!\n\
         read -r\nwalrelay run &\nwait $tail\n"
    );
    let shown = std::env::temp_dir().join(walrelay_testkit::random_name("walrelay-readme"));
    let mut running = shell(&script, &binary)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&shown).expect("a file"))
        .spawn()
        .expect("bash starts");
    let ask = format!("curl -s http://{address}/v1/projects/local/subscriptions || true");
    wait_until(DEADLINE, "the subscription of `walrelay tail`", async || {
        assert!(running.try_wait().expect("bash can be asked").is_none(), "a step failed");
        let listed = output(shell(&ask, &binary)).await;
        String::from_utf8_lossy(&listed.stdout).contains("order.events").then_some(())
    })
    .await;
    let mut input = running.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, b"\n").expect("bash reads");
    wait_until(DEADLINE, "the message to be shown", async || {
        running.try_wait().expect("bash can be asked")
    })
    .await;
    let text = fs::read_to_string(&shown).expect("the output");
    fs::remove_file(&shown).expect("the file is there");
    assert!(text.contains("A-1  v1  OrderPlaced"), "{text}");
}

/// Returns a port that is currently free, for a program that needs a port setting.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}
