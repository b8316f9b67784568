//! PgBouncer in front of the database: the relay detects the pooler by its behaviour and prints the
//! fix, and `check` still runs the other checks.

use walrelay_tests::{InboxDatabase, PgBouncer};

#[tokio::test]
async fn a_pooler_is_recognised_in_every_mode_and_the_rest_is_checked() {
    let Some(world) = InboxDatabase::create().await else { return };
    let few = "extra_float_digits";
    let many = "replication,options,extra_float_digits";
    let modes = [("transaction", few), ("transaction", many), ("session", few), ("session", many)];
    for (mode, ignored) in modes {
        let Some(bouncer) = PgBouncer::start(&world, mode, ignored).await else { return };
        let url = bouncer.url(&world);
        for command in ["run", "check"] {
            let done = world.run([command, "-v", "--database-url", &url]).await;
            let text = &done.text;
            assert_eq!(done.code, Some(3), "{mode} {ignored} {command}: {text}");
            assert!(text.contains("connection pooler"), "{mode} {ignored} {command}: {text}");
            assert!(text.contains("connection-pooler"), "{text}");
            let goes_on = text.contains("wal_level") && text.contains("Pub/Sub: answers");
            assert!(goes_on || command == "run", "{mode} {ignored}: {text}");
        }
    }
}
