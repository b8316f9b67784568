//! Row-level security that hides rows from a role. Commands refuse to report on hidden rows, and no
//! row is lost.

use std::fs;
use std::path::Path;

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Finished;
use walrelay_tests::{CONSUMER, InboxDatabase};

use crate::rebuild_into_schema::{INTO, PLAIN};

/// A database role for one test.
struct Role<'a> {
    world: &'a InboxDatabase,
    name: String,
    url: String,
}

impl<'a> Role<'a> {
    async fn create(world: &'a InboxDatabase, attributes: &str) -> Self {
        let name = format!("{}_seer", world.name());
        world
            .execute(&format!(
                "CREATE ROLE {name} {attributes}; GRANT USAGE ON SCHEMA public TO {name}"
            ))
            .await;
        let url = world.url().replacen("postgres@", &format!("{name}@"), 1);
        Self { world, name, url }
    }

    /// Runs the statements with this role in place of `whose`.
    async fn grant(&self, sql: &str, whose: &str) {
        let lines = sql.lines().filter(|line| !line.starts_with("CREATE ROLE"));
        let grants = lines.collect::<Vec<_>>().join("\n");
        let grants = grants.replace(&format!("TO {whose}"), &format!("TO {}", self.name));
        let grants = grants.replace(&format!("('{whose}'"), &format!("('{}'", self.name));
        self.world.execute(&grants).await;
    }

    /// Creates a policy that shows the rows of a table to the role.
    async fn show(&self, table: &str) {
        let Self { world, name, .. } = self;
        world
            .execute(&format!("CREATE POLICY shown ON {table} FOR SELECT TO {name} USING (true)"))
            .await;
    }

    async fn run(&self, command: &[&str]) -> Finished {
        self.world.run(command.iter().copied().chain(["--database-url", &self.url])).await
    }

    async fn succeed(&self, command: &[&str]) -> String {
        let done = self.run(command).await;
        assert_eq!(done.code, Some(0), "{command:?}: {}", done.text);
        done.text
    }

    /// Checks that the command is refused because rows are hidden, and that the error contains
    /// these words.
    async fn assert_refused_as_hidden(&self, command: &[&str], words: &[&str]) {
        let done = self.run(command).await;
        assert_eq!(done.code, Some(3), "{command:?}: {}", done.text);
        assert!(
            done.text.contains("row level security hides the rows of"),
            "{command:?}: {}",
            done.text
        );
        for word in words {
            assert!(done.text.contains(word), "{command:?}: {word:?} is not in:\n{}", done.text);
        }
        assert!(!done.text.contains("REPLICATION"), "{command:?}: {}", done.text);
    }

    async fn drop(self) {
        let Self { world, name, .. } = self;
        world.execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
    }
}

/// Returns the SQL blocks of a section of the page about roles.
fn page(section: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/deploy/roles.md");
    let text = fs::read_to_string(path).expect("the page");
    let (_, behind) = text.split_once(&format!("## {section}\n")).expect("the section");
    let its = behind.split("\n##").next().unwrap_or(behind);
    let blocks = its.split("```sql\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Returns the relay's grants, without those for commands that read the outbox.
fn relay_grants() -> String {
    page("A role for the relay").remove(0)
}

#[tokio::test]
async fn a_recovery_refuses_an_outbox_that_it_does_not_see_and_loses_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(100).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let more = Workload { first_number: 100, ..Workload::of_rows(50) };
    more.insert(world.client()).await.expect("rows");
    let role = Role::create(&world, "LOGIN REPLICATION").await;
    role.grant(&relay_grants(), "walrelay").await;
    role.grant("GRANT SELECT ON app_outbox TO walrelay", "walrelay").await;

    let words = ["public.app_outbox from role", "FOR SELECT TO"];
    role.assert_refused_as_hidden(&["slot", "recover", "--yes"], &words).await;
    role.assert_refused_as_hidden(
        &["run", "--until-caught-up", "--on-slot-lost", "recover"],
        &words,
    )
    .await;
    let begun = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
    assert_eq!(world.number(begun).await, 0, "nothing is begun");

    role.show("app_outbox").await;
    role.succeed(&["slot", "recover", "--yes"]).await;
    // A started recovery also needs the policy to finish.
    world.execute("DROP POLICY shown ON app_outbox").await;
    role.assert_refused_as_hidden(&["run", "--until-caught-up"], &words).await;
    role.show("app_outbox").await;
    role.succeed(&["run", "--until-caught-up"]).await;
    role.drop().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn every_outbox_table_counts_partitioned_ones_too() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    world
        .execute(
            "CREATE TABLE parted (LIKE app_outbox INCLUDING DEFAULTS) PARTITION BY RANGE (occurred_at);
             CREATE TABLE parted_all PARTITION OF parted DEFAULT;
             ALTER TABLE parted ENABLE ROW LEVEL SECURITY",
        )
        .await;
    let role = Role::create(&world, "LOGIN").await;
    role.grant(&relay_grants(), "walrelay").await;
    role.grant("GRANT SELECT, DELETE ON app_outbox, parted TO walrelay", "walrelay").await;
    role.show("app_outbox").await;
    // The role can read the rows but not delete them. "0 row(s) deleted" would suggest that no row
    // is old.
    role.succeed(&["prune", "--yes", "--older-than", "30d", "--dry-run"]).await;
    role.assert_refused_as_hidden(
        &["prune", "--yes", "--older-than", "30d"],
        &["public.app_outbox (for DELETE)", "FOR DELETE TO"],
    )
    .await;
    world.succeed(["init", "--outbox-table", "app_outbox,parted"]).await;
    for command in [
        &["prune", "--yes", "--older-than", "30d", "--dry-run"][..],
        &["replay", "start", "--yes", "--source", "table", "--to-topic", "again"],
    ] {
        role.assert_refused_as_hidden(command, &["hides the rows of public.parted from role"])
            .await;
    }
    role.drop().await;
}

/// Creates events that are published, applied and recorded as settled.
async fn applied() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    world.insert_events(5, 18).await;
    world.catch_up().await;
    world.consume_all().await;
    Some(world)
}

#[tokio::test]
async fn nothing_is_said_of_an_outbox_whose_rows_are_hidden() {
    let Some(world) = applied().await else { return };
    let role = Role::create(&world, "LOGIN").await;
    role.grant(&relay_grants(), "walrelay").await;
    role.grant(&page("A role for a consumer").remove(0), "walrelay_consumer").await;
    role.grant("GRANT SELECT, DELETE ON app_outbox TO walrelay", "walrelay").await;
    world.execute(PLAIN).await;
    role.grant("GRANT USAGE ON SCHEMA effect, fresh TO walrelay", "walrelay").await;
    for command in [
        &["audit", "--grace", "0s"][..],
        &["trace", "00000000-0000-4000-8000-000000000001"],
        &["prune", "--yes", "--older-than", "30d", "--dry-run"],
        &["prune", "--yes", "--older-than", "30d"],
        &["replay", "start", "--yes", "--source", "table", "--to-topic", "again"],
        &["replay", "start", "--yes", "--source", "table", "--in-place", "--aggregate-id", "key-1"],
        &INTO,
    ] {
        role.assert_refused_as_hidden(command, &["hides the rows of public.app_outbox from role"])
            .await;
    }
    let checked = role.run(&["check"]).await.text;
    assert!(checked.contains("whether the topics are there is not known"), "{checked}");
    assert!(checked.contains("hides the rows of public.app_outbox"), "{checked}");
    assert!(!checked.contains("none leads to one"), "{checked}");
    role.drop().await;
}

#[tokio::test]
async fn a_policy_that_shows_some_rows_is_refused_like_one_that_shows_none() {
    let Some(world) = applied().await else { return };
    let role = Role::create(&world, "LOGIN").await;
    role.grant(&relay_grants(), "walrelay").await;
    let name = role.name.clone();
    let policy = |text: &str| format!("CREATE POLICY shown ON app_outbox {text}");
    let prune = &["prune", "--yes", "--older-than", "30d", "--dry-run"][..];
    role.grant("GRANT SELECT, DELETE ON app_outbox TO walrelay", "walrelay").await;
    world.execute(&policy(&format!("FOR SELECT TO {name} USING (aggregatetype = 'order')"))).await;
    role.assert_refused_as_hidden(prune, &["hides the rows of public.app_outbox"]).await;
    world.execute("DROP POLICY shown ON app_outbox").await;
    world.execute(&policy(&format!("FOR SELECT TO {name} USING (true)"))).await;
    role.succeed(prune).await;
    let restrictive = "CREATE POLICY fewer ON app_outbox AS RESTRICTIVE USING (version > 5)";
    world.execute(restrictive).await;
    role.assert_refused_as_hidden(prune, &["hides the rows of public.app_outbox"]).await;
    world.execute("DROP POLICY fewer ON app_outbox").await;
    role.drop().await;
}

#[tokio::test]
async fn nothing_is_said_of_an_inbox_whose_rows_are_hidden() {
    let Some(world) = applied().await else { return };
    let role = Role::create(&world, "LOGIN").await;
    let [of_outbox, of_inbox, _] = &page("A role that only reads")[..] else { panic!("the page") };
    role.grant(of_outbox, "auditor").await;
    let grants: Vec<&str> = of_inbox.lines().filter(|line| line.starts_with("GRANT")).collect();
    role.grant(&grants.join("\n"), "auditor").await;
    let looking = [
        &["audit", "--grace", "0s"][..],
        &["trace", "00000000-0000-4000-8000-000000000001"],
        &["inbox", "list"],
        &["consumer", "status", CONSUMER],
        &["consumer", "run", CONSUMER, "--handler", "effect.add", "--until-caught-up"],
    ];
    let hidden = ["app_inbox_consumer", "app_inbox", "app_inbox_key"];
    for (place, table) in hidden.into_iter().enumerate() {
        let word = format!("public.{table}");
        for command in &looking {
            role.assert_refused_as_hidden(command, &[&word]).await;
        }
        role.show(table).await;
        assert_eq!(place < 2, !is_whole(&role).await, "{table}");
    }
    // The role can read the row but not update it. Otherwise the command would report an unknown
    // consumer.
    let pause = ["consumer", "pause", CONSUMER];
    role.grant("GRANT UPDATE ON app_inbox_consumer TO auditor", "auditor").await;
    role.assert_refused_as_hidden(&pause, &["public.app_inbox_consumer (for UPDATE)"]).await;
    role.drop().await;
}

/// Reports whether an audit succeeds.
async fn is_whole(role: &Role<'_>) -> bool {
    role.run(&["audit", "--grace", "0s"]).await.code == Some(0)
}

#[tokio::test]
async fn an_auditor_with_the_documented_grants_reads_outbox_and_inbox() {
    let Some(world) = applied().await else { return };
    let role = Role::create(&world, "LOGIN").await;
    let [of_outbox, of_inbox, of_both] = &page("A role that only reads")[..] else {
        panic!("the page")
    };
    let id: String = world
        .client()
        .query_one("SELECT id::text FROM app_outbox LIMIT 1", &[])
        .await
        .expect("a row")
        .get(0);
    for command in [&["audit", "--grace", "0s"][..], &["trace", &id], &["status"]] {
        let denied = role.run(command).await;
        assert_eq!(denied.code, Some(3), "{}", denied.text);
        assert!(denied.text.contains("outbox-read-permission-missing"), "{}", denied.text);
        assert!(!denied.text.contains("REPLICATION"), "{}", denied.text);
    }
    role.grant(of_outbox, "auditor").await;
    for command in [&["audit", "--grace", "0s"][..], &["trace", &id]] {
        let denied = role.run(command).await;
        assert_eq!(denied.code, Some(3), "{}", denied.text);
        assert!(denied.text.contains("inbox-read-permission-missing"), "{}", denied.text);
    }
    role.grant(of_inbox, "auditor").await;
    for command in [
        &["audit", "--grace", "0s"][..],
        &["trace", &id],
        &["status"],
        &["dispatch", "list"],
        &["inbox", "list"],
        &["consumer", "status", CONSUMER],
    ] {
        role.succeed(command).await;
    }
    role.grant(of_both, "auditor").await;
    let its = walrelay_testkit::postgres::TestClient::connect(&role.url).await;
    // Not `settled`: an open transaction of another test delays that horizon.
    let done = "SELECT count(*) FROM app_event_ledger WHERE inbox_status = 'done'";
    let seen = its.query_one(done, &[]).await.expect("the view of both");
    assert_eq!(seen.get::<_, i64>(0), 18);
    drop(its);
    // The auditor can only read.
    for command in
        [&["prune", "--yes", "--older-than", "30d"][..], &["consumer", "pause", CONSUMER]]
    {
        assert_eq!(role.run(command).await.code, Some(3), "{command:?}");
    }
    role.drop().await;
}

#[tokio::test]
async fn status_names_the_closed_table_and_a_grant_that_opens_it() {
    let Some(world) = applied().await else { return };
    let role = Role::create(&world, "LOGIN").await;
    let [of_outbox, ..] = &page("A role that only reads")[..] else { panic!("the page") };
    role.grant(of_outbox, "auditor").await;
    let name = &role.name;
    world.execute(&format!("REVOKE ALL ON app_outbox_dispatch FROM {name}")).await;
    let denied = role.run(&["status"]).await;
    assert_eq!(denied.code, Some(3), "{}", denied.text);
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON app_outbox_dispatch TO {name}");
    assert!(denied.text.contains(&grant), "{}", denied.text);
    world.execute(&grant).await;
    role.succeed(&["status"]).await;
    role.drop().await;
}

#[tokio::test]
async fn all_missing_permissions_of_a_consumer_are_reported_at_once() {
    let Some(world) = applied().await else { return };
    let role = Role::create(&world, "LOGIN").await;
    let name = &role.name;
    world
        .execute(&format!(
            "GRANT USAGE ON SCHEMA effect TO {name}; GRANT ALL ON ALL TABLES IN SCHEMA effect TO {name}"
        ))
        .await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.add", "--until-caught-up"];
    let refused = role.run(&consume).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    let (_, hint) = refused.text.split_once("as the owner of these objects: ").expect("a hint");
    // The statements end with the JSON field.
    let statements = hint.split("\",\"").next().expect("the statements");
    // The statements come from a line of JSON, so the quotes are escaped.
    world.execute(&statements.replace("\\\"", "\"")).await;
    role.succeed(&consume).await;

    // Without policies, grants alone show no rows.
    let policies = "SELECT string_agg(format('DROP POLICY %I ON %s', polname, polrelid::regclass), '; ') FROM pg_policy";
    let drop: String = world.client().query_one(policies, &[]).await.expect("policies").get(0);
    world.execute(&drop).await;
    let blind = role.run(&consume).await;
    assert_eq!(blind.code, Some(3), "{}", blind.text);
    for table in ["app_inbox_consumer FOR SELECT", "app_inbox TO", "app_inbox_key FOR INSERT"] {
        assert!(blind.text.contains(&format!("ON public.{table}")), "{table}: {}", blind.text);
    }
    role.drop().await;
}

#[tokio::test]
async fn a_role_for_one_consumer_runs_it_and_sees_no_other() {
    let Some(world) = applied().await else { return };
    let other = ["consumer", "init", "other", "--subscription", "other"];
    world.succeed(other.into_iter().chain(["--create", "--topic", "video.events"])).await;
    world
        .execute(
            "INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, status)
             VALUES ('other', 1, 'secret', 'k', 'done')",
        )
        .await;
    let role = Role::create(&world, "LOGIN").await;
    let name = &role.name;
    let grants = page("A role for one of several consumers").remove(0);
    role.grant(&grants.replace(", 'billing'", &format!(", '{CONSUMER}'")), "billing").await;
    world
        .execute(&format!(
            "GRANT USAGE ON SCHEMA effect TO {name}; GRANT ALL ON ALL TABLES IN SCHEMA effect TO {name}"
        ))
        .await;

    world.insert_events(5, 20).await;
    world.catch_up().await;
    let before = world.applied_count().await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.add", "--until-caught-up"];
    role.succeed(&consume).await;
    assert_eq!(world.applied_count().await, before + 20);
    world.assert_applied_exactly_once().await;
    role.succeed(&["consumer", "status", CONSUMER]).await;
    let listed = role.succeed(&["consumer", "list"]).await;
    assert!(listed.contains(CONSUMER) && !listed.contains("other"), "{listed}");
    let hidden = role.run(&["consumer", "status", "other"]).await;
    assert_ne!(hidden.code, Some(0), "{}", hidden.text);

    let its = walrelay_testkit::postgres::TestClient::connect(&role.url).await;
    for table in ["app_inbox_consumer", "app_inbox", "app_inbox_key"] {
        let others = format!("SELECT count(*) FROM {table} WHERE consumer <> '{CONSUMER}'");
        let seen = its.query_one(&others, &[]).await.expect("the table can be read");
        assert_eq!(seen.get::<_, i64>(0), 0, "{table}");
    }
    let forged = "INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, status)
                  VALUES ('other', 1, 'forged', 'k', 'done')";
    let refused = its.batch_execute(forged).await.expect_err("a row of another consumer");
    assert_eq!(refused.code().map(tokio_postgres::error::SqlState::code), Some("42501"));
    drop(its);
    role.drop().await;
}

#[tokio::test]
async fn grants_of_roles_and_consumers_with_similar_names_are_kept_apart() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let name = world.name();
    let long = format!("{name}_{}", "r".repeat(63 - name.len() - 1));
    let pairs =
        [(format!("{name}_a"), Some("c1")), (format!("{name}_a_c1"), None), (long, Some("c1"))];
    for (role, consumer) in &pairs {
        world.execute(&format!("CREATE ROLE {role}")).await;
        let consumer = consumer.map_or("NULL".to_owned(), |it| format!("'{it}'"));
        // Again, and for a consumer whose name ends like that of a policy.
        for other in [&*consumer, &*consumer, "'c1_prune'"] {
            world.execute(&format!("SELECT app_inbox_grant('{role}', {other})")).await;
        }
        let policies = world
            .number(&format!("SELECT count(*) FROM pg_policies WHERE '{role}' = ANY (roles)"))
            .await;
        assert_eq!(policies, 8, "{role}: four policies for each of two grants");
    }
    for (role, _) in &pairs {
        world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    }
}
