//! Limits of the role, and poolers: what a session of ours sets, and when it sets nothing.

use std::time::{Duration, Instant};

use walrelay_pg_client::{
    ConnectConfig, PgEnv, PgError, SESSION_LIMITS, SqlClient, connect_shared, connect_sql,
};
use walrelay_pg_replication::ReplicationConnection;
use walrelay_private_postgres::{PrivatePostgres, installations};
use walrelay_testkit::pooler::{HandOut, Pooler};
use walrelay_testkit::proxy::{Network, Proxy};

fn config(url: &str) -> ConnectConfig {
    ConnectConfig::parse(url, &PgEnv::default()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// Settings of a session that have no influence on how long it lives.
const NO_LIMITS: [&str; 9] = [
    "deadlock_timeout",
    "from_collapse_limit",
    "geqo_threshold",
    "gin_fuzzy_search_limit",
    "gin_pending_list_limit",
    "io_combine_limit",
    "join_collapse_limit",
    "vacuum_buffer_usage_limit",
    "wal_skip_threshold",
];

#[tokio::test]
async fn no_limit_of_the_role_ends_a_session_of_ours_on_any_version() {
    for installation in installations() {
        let server = PrivatePostgres::start(&installation, &[]).unwrap();
        let address = format!("127.0.0.1:{}/postgres", server.port());
        let admin =
            connect_sql(&config(&format!("postgresql://postgres@{address}"))).await.unwrap();
        let sql = "SELECT name FROM pg_settings WHERE context IN ('user', 'superuser') \
                    AND name ~ '(timeout|limit|threshold)$'";
        for row in admin.query(sql, &[]).await.unwrap() {
            let name: &str = row.get(0);
            let is_known = SESSION_LIMITS.iter().any(|limit| limit.name == name)
                || NO_LIMITS.contains(&name)
                || name.starts_with("vacuum_cost_");
            assert!(is_known, "{name} of {} is not in the inventory", installation.major);
        }
        admin.batch_execute("CREATE ROLE limited LOGIN REPLICATION").await.unwrap();
        for (name, value) in [
            ("statement_timeout", "100ms"),
            ("idle_in_transaction_session_timeout", "100ms"),
            ("idle_session_timeout", "100ms"),
            ("transaction_timeout", "100ms"),
        ] {
            let alter = format!("ALTER ROLE limited SET {name} = '{value}'");
            let done = admin.batch_execute(&alter).await;
            assert!(done.is_ok() || name == "transaction_timeout" && installation.major < 17);
        }
        let limited = config(&format!("postgresql://limited@{address}"));
        let session = connect_sql(&limited).await.unwrap();
        let mut stream = ReplicationConnection::connect(&limited, &[]).await.unwrap();
        let work = "BEGIN; SELECT pg_sleep(0.3)";
        session.batch_execute(work).await.unwrap();
        stream.simple_query(work).await.unwrap();
        admin.batch_execute("SELECT pg_sleep(0.3)").await.unwrap();
        session.batch_execute("COMMIT").await.unwrap();
        stream.simple_query("COMMIT").await.unwrap();
        admin.batch_execute("SELECT pg_sleep(0.3)").await.unwrap();
        session.batch_execute("SELECT 1").await.unwrap();
        stream.simple_query("SELECT 1").await.unwrap();
    }
}

/// Keeps two server connections of the pooler idle.
async fn fill(url: &str) {
    let config = config(url);
    let (one, two) =
        (connect_shared(&config).await.unwrap(), connect_shared(&config).await.unwrap());
    for sql in ["BEGIN", "COMMIT"] {
        one.batch_execute(sql).await.unwrap();
        two.batch_execute(sql).await.unwrap();
    }
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_recognised_before_anything_is_set() {
    let Some(installation) = installations().into_iter().next_back() else { return };
    let server = PrivatePostgres::start(&installation, &[]).unwrap();
    let upstream = format!("127.0.0.1:{}", server.port());
    for (size, hand_out) in
        [(1, HandOut::LastReleased), (8, HandOut::LastReleased), (8, HandOut::LongestIdle)]
    {
        let pooler = Pooler::start(&upstream, size, hand_out).await;
        let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", pooler.port());
        if size > 1 {
            fill(&url).await;
        }
        let refused = connect_sql(&config(&url)).await.unwrap_err();
        assert!(matches!(refused, PgError::SharedBackend), "{hand_out:?}: {refused}");
        // Replication passes through, on a connection of its own.
        let mut stream = ReplicationConnection::connect(&config(&url), &[]).await.unwrap();
        stream.identify_system().await.unwrap();
        // No other client runs with a setting of ours.
        let others = connect_shared(&config(&url)).await.unwrap();
        for _ in 0..4 {
            let sql = "SELECT string_agg(name, ',') FROM pg_settings WHERE source = 'session'";
            let row = others.query_typed_one(sql, &[]).await.unwrap();
            assert_eq!(row.get::<_, Option<&str>>(0), None, "{hand_out:?}");
        }
    }
    // Something in between that leaves each client its own process is no pooler.
    let proxy = Proxy::start(&upstream).await;
    let url = format!("postgresql://postgres@{}/postgres", proxy.address());
    connect_sql(&config(&url)).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_falls_silent_after_any_answer_ends_within_its_time() {
    let Some(installation) = installations().into_iter().next_back() else { return };
    let server = PrivatePostgres::start(&installation, &[]).unwrap();
    let proxy = Proxy::start(&format!("127.0.0.1:{}", server.port())).await;
    let url = format!("postgresql://postgres@{}/postgres?connect_timeout=2", proxy.address());
    let config = config(&url);
    for answers in 0..3 {
        proxy.set(Network::SilentAfter { answers });
        let began = Instant::now();
        let (sql, stream) = tokio::join!(connect_sql(&config), async {
            ReplicationConnection::connect(&config, &[]).await
        });
        assert!(matches!(sql, Err(PgError::ConnectTimeout { .. })), "{answers}: {sql:?}");
        // The stream has one answer less: it asks nothing about its process.
        if answers < 2 {
            assert!(matches!(stream, Err(PgError::ConnectTimeout { .. })), "{answers}");
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{answers}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn an_answer_that_is_lost_ends_the_session_and_a_long_statement_does_not() {
    let Some(installation) = installations().into_iter().next_back() else { return };
    let server = PrivatePostgres::start(&installation, &[]).unwrap();
    let upstream = format!("127.0.0.1:{}", server.port());
    let (proxy, other_proxy) = (Proxy::start(&upstream).await, Proxy::start(&upstream).await);
    let through =
        |it: &Proxy| format!("postgresql://postgres@{}/postgres?connect_timeout=2", it.address());
    let (url, shared) = (through(&proxy), config(&through(&other_proxy)));
    proxy.set(Network::SilentAfter { answers: 3 });
    other_proxy.set(Network::SilentAfter { answers: 2 });
    let direct = format!("postgresql://postgres@127.0.0.1:{}/postgres", server.port());
    let (direct, url) = (config(&direct), config(&url));
    let (long, lost) = tokio::join!(connect_sql(&direct), connect_sql(&url));
    let (long, lost) = (long.unwrap(), lost.unwrap());
    let lost_in_command = connect_shared(&shared).await.unwrap();
    let began = Instant::now();
    let losing = async |it: &SqlClient| (it.batch_execute("SELECT 1").await, began.elapsed());
    let (waited, first, second) = tokio::join!(
        long.batch_execute("SELECT pg_sleep(20)"),
        losing(&lost),
        losing(&lost_in_command)
    );
    waited.unwrap();
    for (ended, took) in [first, second] {
        assert!(ended.unwrap_err().is_closed());
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}
