//! The IAM login of Cloud SQL and AlloyDB: a token of the metadata server is the password of each
//! connection.

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::metadata::MetadataServer;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::{TestClient, installation_or_skip};
use walrelay_testkit::relay::RelayCommand;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// Turns TLS on, and asks the role of the service account for its password, as Cloud SQL does.
const SET_UP: [&str; 6] = [
    "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; openssl req -x509 -newkey ec -pkeyopt \
     ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout server.key -out server.crt -subj /CN=localhost \
     2> /dev/null && chmod 600 server.key'",
    "ALTER SYSTEM SET ssl = on",
    "CREATE ROLE \"relay@p.iam\" LOGIN SUPERUSER PASSWORD 'token-1'",
    "COPY (SELECT 'hostssl all relay@p.iam 127.0.0.1/32 password' UNION ALL
           SELECT 'local all all trust') TO PROGRAM 'cat > pg_hba.conf'",
    "SELECT pg_reload_conf()",
    "SELECT pg_sleep(0.1)",
];

fn command(
    world: &InboxDatabase,
    metadata: &MetadataServer,
    words: &[&str],
    url: &str,
) -> RelayCommand {
    let login = ["--database-url", url, "--database-auth", "google"];
    let command = world.command(words.iter().copied().chain(login));
    command.env("GCE_METADATA_HOST", &metadata.address()).env("HOME", "/nowhere")
}

#[tokio::test]
async fn every_connection_logs_in_with_the_token_of_its_moment() {
    let Some(installation) = installation_or_skip() else { return };
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let server = PrivatePostgres::start(&installation, &[]).expect("a server");
    let owner = TestClient::connect(&server.url("postgres")).await;
    for statement in SET_UP {
        owner.batch_execute(statement).await.expect("the server is set up");
    }
    let metadata = MetadataServer::start().await.expect("a free port");
    metadata.issue("token-1", 5);
    let address = format!("127.0.0.1:{}/postgres", server.port());
    let url = format!("postgresql://relay%40p.iam@{address}?sslmode=require");

    let set_up = command(&world, &metadata, &["init"], &url).finish(DEADLINE).await;
    assert_eq!(set_up.code, Some(0), "{}", set_up.text);
    let relay = command(&world, &metadata, &["run"], &url).start();
    relay.wait_for_line(DEADLINE, "\"streaming\"").await;

    // The first token has expired, and the server takes only the next one.
    metadata.issue("token-2", 3600);
    owner.batch_execute("ALTER ROLE \"relay@p.iam\" PASSWORD 'token-2'").await.expect("done");
    let end =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay@p.iam'";
    owner.batch_execute(end).await.expect("its sessions end");
    Workload::of_rows(10).insert(&owner).await.expect("rows");
    world.pubsub.wait_stored(DEADLINE, 10).await;
    let log = relay.lines().join("\n");
    assert!(!log.contains("token-"), "a token is logged: {log}");
    drop(relay);

    for (user, parameters, says) in [
        ("relay%40p.iam", "", "needs sslmode=require"),
        ("relay%40p.iam.gserviceaccount.com", "?sslmode=require", "is relay@p.iam, without"),
    ] {
        let other = format!("postgresql://{user}@{address}{parameters}");
        let refused = command(&world, &metadata, &["check"], &other).finish(DEADLINE).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        assert!(refused.text.contains(says), "{}", refused.text);
    }
}
