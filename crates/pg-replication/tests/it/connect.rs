//! Connects to a real server with passwords, certificates and addresses.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use walrelay_pg_client::{
    ConnectConfig, PgEnv, PgError, Secret, ServerError, ServerErrorKind, Stream, TlsError,
    connect_sql,
};
use walrelay_pg_replication::ReplicationConnection;
use walrelay_private_postgres::{PrivatePostgres, installations};

/// Rules for each role. Logical replication connections match by database, like any other
/// connection.
const HBA: &str = "\
local     all all                   trust
hostssl   all encrypted 127.0.0.1/32 trust
hostnossl all plain     127.0.0.1/32 trust
hostssl   all certified 127.0.0.1/32 cert
host      all scram     127.0.0.1/32 scram-sha-256
host      all hashed    127.0.0.1/32 md5
host      all clear     127.0.0.1/32 password
host      all postgres  127.0.0.1/32 trust
";

const ROLES: &str = "\
CREATE ROLE encrypted LOGIN REPLICATION;
CREATE ROLE plain LOGIN REPLICATION;
CREATE ROLE certified LOGIN REPLICATION;
SET password_encryption = 'scram-sha-256';
CREATE ROLE scram LOGIN REPLICATION PASSWORD 'sécret pass';
CREATE ROLE clear LOGIN REPLICATION PASSWORD 'clear pass';
SET password_encryption = 'md5';
CREATE ROLE hashed LOGIN REPLICATION PASSWORD 'hashed pass';
";

/// One server with TLS and passwords for all tests of this file. Its supervisor ends it with this
/// process.
static SERVER: LazyLock<Option<Secured>> = LazyLock::new(Secured::start);

struct Secured {
    server: PrivatePostgres,
    certificates: PathBuf,
}

impl Secured {
    fn start() -> Option<Self> {
        let installation = installations().into_iter().next()?;
        let mut server = PrivatePostgres::start(&installation, &[]).unwrap();
        let certificates = server.socket_dir().to_owned();
        make_certificates(&certificates);
        let path = |name: &str| certificates.join(name).display().to_string();
        let setup = format!(
            "{ROLES} ALTER SYSTEM SET ssl_cert_file = '{}'; ALTER SYSTEM SET ssl_key_file = '{}'; \
             ALTER SYSTEM SET ssl_ca_file = '{}'; ALTER SYSTEM SET ssl = on;",
            path("server.crt"),
            path("server.key"),
            path("ca.crt")
        );
        let url = server.url("postgres");
        // A runtime on a separate thread, because this code runs inside a test's runtime.
        let hba = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(set_up(&url, &setup))
        })
        .join()
        .unwrap();
        fs::write(hba, HBA).unwrap();
        server.restart().unwrap();
        Some(Self { server, certificates })
    }

    fn url(&self, user: &str, host: &str, parameters: &str) -> String {
        format!("postgresql://{user}@{host}:{}/postgres?{parameters}", self.server.port())
    }

    fn pem(&self, name: &str) -> String {
        self.certificates.join(name).display().to_string()
    }
}

/// Runs the statements one by one, because `ALTER SYSTEM` cannot run in a transaction. Returns the
/// path of `pg_hba.conf`.
async fn set_up(url: &str, statements: &str) -> String {
    let client = connect_sql(&config(url)).await.unwrap();
    for statement in statements.split_inclusive(';').filter(|sql| !sql.trim().is_empty()) {
        client.batch_execute(statement).await.unwrap();
    }
    let row = client.query_one("SHOW hba_file", &[]).await.unwrap();
    client.close().await;
    row.get(0)
}

/// Creates a CA, a certificate of that CA for `localhost` only, and a CA that signed nothing. The CA
/// also signs a certificate for the role `certified`, whose key is written in several formats.
fn make_certificates(directory: &Path) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(directory)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=walrelay-test-ca"));
    openssl(&format!("req -x509 {key} -keyout other.key -out other.crt -subj /CN=other-ca"));
    openssl(&format!("req {key} -keyout server.key -out server.csr -subj /CN=localhost"));
    fs::write(directory.join("san.cnf"), "subjectAltName=DNS:localhost\n").unwrap();
    openssl(
        // Not SHA-256, so that a binding with the wrong hash fails.
        "x509 -req -sha384 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
         -extfile san.cnf -out server.crt",
    );
    openssl(&format!("req {key} -keyout client.key -out client.csr -subj /CN=certified"));
    openssl(
        "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out client.crt",
    );
    openssl("pkcs8 -topk8 -in client.key -out encrypted.key -passout pass:key-secret");
    openssl("ec -aes256 -in client.key -out old.key -passout pass:key-secret");
    let owner = fs::metadata(directory).unwrap();
    for name in ["server.key", "server.crt", "ca.crt"] {
        let path = directory.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

fn config(url: &str) -> ConnectConfig {
    ConnectConfig::parse(url, &PgEnv::default()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn secured() -> Option<&'static Secured> {
    if SERVER.is_none() {
        eprintln!("skipped: no Postgres installation found");
    }
    SERVER.as_ref()
}

async fn replicate(config: &ConnectConfig) -> Result<ReplicationConnection<Stream>, PgError> {
    ReplicationConnection::connect(config, &[]).await
}

/// Returns whether this session is encrypted, according to the server, over both kinds of
/// connection.
async fn is_encrypted(url: &str) -> Result<bool, PgError> {
    let config = config(url);
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let answer = replicate(&config).await?.simple_query(sql).await?;
    let by_sql: bool = connect_sql(&config).await?.query_one(sql, &[]).await?.get(0);
    assert_eq!(answer[0][0].as_deref() == Some("t"), by_sql);
    Ok(by_sql)
}

#[tokio::test]
async fn passwords_are_shown_in_the_way_the_server_asks_for() {
    let Some(server) = secured() else { return };
    let passwords = [("scram", "sécret pass"), ("hashed", "hashed pass"), ("clear", "clear pass")];
    for (user, password) in passwords {
        for mode in ["disable", "require"] {
            let url = server.url(user, "127.0.0.1", &format!("sslmode={mode}"));
            let right = with_password(&url, password);
            let identity = replicate(&right).await.unwrap().identify_system().await.unwrap();
            assert_eq!(identity.database, "postgres");
            connect_sql(&right).await.unwrap();

            let wrong = with_password(&url, "wrong");
            let errors =
                [replicate(&wrong).await.unwrap_err(), connect_sql(&wrong).await.unwrap_err()];
            assert_eq!(
                errors.map(|refusal| kind(&refusal)),
                [Some(ServerErrorKind::Authentication); 2]
            );
            let missing = replicate(&config(&url)).await.unwrap_err();
            assert!(matches!(missing, PgError::PasswordMissing), "{missing}");
        }
    }
}

fn with_password(url: &str, password: &str) -> ConnectConfig {
    let env = PgEnv { password: Some(Secret::new(password)), ..PgEnv::default() };
    ConnectConfig::parse(url, &env).unwrap()
}

fn kind(error: &PgError) -> Option<ServerErrorKind> {
    error.server().map(ServerError::kind)
}

#[tokio::test]
async fn each_sslmode_encrypts_and_verifies_what_it_promises() {
    let Some(server) = secured() else { return };
    let (ca, other, own) =
        (server.pem("ca.crt"), server.pem("other.crt"), server.pem("server.crt"));
    let outcome = async |host: &str, parameters: String| match is_encrypted(&server.url(
        "postgres",
        host,
        &parameters,
    ))
    .await
    {
        Ok(true) => "encrypted",
        Ok(false) => "plain",
        Err(PgError::Tls { .. }) => "refused",
        Err(error) => panic!("{host} {parameters}: {error}"),
    };
    for (host, parameters, expected) in [
        ("127.0.0.1", "sslmode=disable".into(), "plain"),
        ("127.0.0.1", "sslmode=prefer".into(), "encrypted"),
        ("127.0.0.1", "sslmode=require".into(), "encrypted"),
        ("127.0.0.1", format!("sslmode=require&sslrootcert={ca}"), "encrypted"),
        ("127.0.0.1", format!("sslmode=require&sslrootcert={other}"), "refused"),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={ca}"), "encrypted"),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={other}"), "refused"),
        ("127.0.0.1", "sslmode=verify-ca".into(), "refused"),
        ("localhost", format!("sslmode=verify-full&sslrootcert={ca}"), "encrypted"),
        ("localhost", format!("sslmode=verify-full&sslrootcert={other}"), "refused"),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ca}"), "refused"),
        ("localhost", "sslmode=verify-full".into(), "refused"),
        ("localhost", "sslrootcert=system".into(), "refused"),
        // As in libpq, the server's own certificate may be the root. Its name is still checked.
        ("localhost", format!("sslmode=verify-full&sslrootcert={own}"), "encrypted"),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={own}"), "refused"),
    ] {
        assert_eq!(outcome(host, parameters.clone()).await, expected, "{host} {parameters}");
    }
}

/// Returns the result of both kinds of connection.
async fn both(config: &ConnectConfig) -> [Result<(), PgError>; 2] {
    [replicate(config).await.map(drop), connect_sql(config).await.map(drop)]
}

fn excluded(result: Result<(), PgError>) -> String {
    match result {
        Err(PgError::AuthenticationMethod { method, why }) => format!("{method}: {why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_password_is_bound_to_the_tls_connection_where_the_string_asks_for_it() {
    let Some(server) = secured() else { return };
    let with = |user: &str, password: &str, parameters: &str| {
        with_password(&server.url(user, "127.0.0.1", parameters), password)
    };
    let bound = "sslmode=require&channel_binding=require";
    for result in both(&with("scram", "sécret pass", bound)).await {
        result.unwrap();
    }
    for result in both(&with("scram", "wrong", bound)).await {
        assert_eq!(kind(&result.unwrap_err()), Some(ServerErrorKind::Authentication));
    }
    for parameters in ["sslmode=require&channel_binding=disable", "sslmode=disable"] {
        for result in both(&with("scram", "sécret pass", parameters)).await {
            result.unwrap();
        }
    }
    for (user, password) in
        [("hashed", "hashed pass"), ("clear", "clear pass"), ("encrypted", "none")]
    {
        for result in both(&with(user, password, bound)).await {
            let told = excluded(result);
            assert!(told.ends_with("which channel_binding=require excludes"), "{user}: {told}");
        }
    }
}

#[tokio::test]
async fn only_methods_that_require_auth_allows_see_a_password() {
    let Some(server) = secured() else { return };
    for (user, password, methods, refused) in [
        ("scram", "sécret pass", "scram-sha-256", None),
        ("hashed", "hashed pass", "md5,scram-sha-256", None),
        ("clear", "clear pass", "!md5", None),
        ("clear", "clear pass", "scram-sha-256", Some("password")),
        ("hashed", "hashed pass", "scram-sha-256", Some("md5")),
        ("scram", "sécret pass", "!scram-sha-256", Some("scram-sha-256")),
        ("encrypted", "unused", "scram-sha-256", Some("none")),
        ("encrypted", "unused", "none", None),
    ] {
        let parameters = format!("sslmode=require&require_auth={methods}");
        let config = with_password(&server.url(user, "127.0.0.1", &parameters), password);
        for result in both(&config).await {
            match refused {
                None => result.unwrap(),
                Some(method) => assert_eq!(
                    excluded(result),
                    format!("{method}: which require_auth excludes"),
                    "{user} {methods}"
                ),
            }
        }
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown_with_a_key_that_may_be_encrypted() {
    let Some(server) = secured() else { return };
    let with_key = |key: &str, more: &str| {
        let (certificate, key) = (server.pem("client.crt"), server.pem(key));
        let parameters = format!("sslmode=require&sslcert={certificate}&sslkey={key}{more}");
        server.url("certified", "127.0.0.1", &parameters)
    };
    for url in [with_key("client.key", ""), with_key("encrypted.key", "&sslpassword=key-secret")] {
        for result in both(&config(&url)).await {
            result.unwrap();
        }
    }
    let without = server.url("certified", "127.0.0.1", "sslmode=require");
    for result in both(&config(&without)).await {
        assert_eq!(kind(&result.unwrap_err()), Some(ServerErrorKind::Authentication));
    }
    for (url, told) in [
        (with_key("encrypted.key", ""), "give its password as sslpassword"),
        (with_key("encrypted.key", "&sslpassword=wrong-secret"), "cannot be decrypted"),
        (with_key("old.key", "&sslpassword=key-secret"), "openssl pkcs8 -topk8"),
        (with_key("missing.key", ""), "missing.key"),
        (with_key("client.crt", ""), "client.crt"),
    ] {
        let problems = ConnectConfig::parse(&url, &PgEnv::default()).unwrap_err();
        let problem = problems[0].to_string();
        assert!(problem.contains(told) && !problem.contains("-secret"), "{problem}");
    }
}

#[tokio::test]
async fn tls_begins_with_the_first_byte_where_the_server_is_new_enough() {
    let Some(server) = secured() else { return };
    let plain = config(&server.server.url("postgres"));
    let version = "SELECT current_setting('server_version_num')::integer";
    let version: i32 =
        connect_sql(&plain).await.unwrap().query_one(version, &[]).await.unwrap().get(0);
    let direct = "sslmode=require&sslnegotiation=direct";
    match is_encrypted(&server.url("postgres", "127.0.0.1", direct)).await {
        Ok(is_encrypted) => assert!(is_encrypted && version >= 170_000),
        Err(error) => assert!(matches!(error, PgError::Tls { .. }) && version < 170_000, "{error}"),
    }
}

#[tokio::test]
async fn the_versions_of_tls_are_those_of_the_string() {
    let Some(server) = secured() else { return };
    for (parameters, expected) in [
        ("ssl_max_protocol_version=TLSv1.2", "TLSv1.2"),
        ("ssl_min_protocol_version=TLSv1.3&sslsni=0", "TLSv1.3"),
    ] {
        let parameters = format!("sslmode=require&{parameters}");
        let config = config(&server.url("postgres", "127.0.0.1", &parameters));
        let sql = "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let client = connect_sql(&config).await.unwrap();
        let version: String = client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(version, expected);
    }
}

#[tokio::test]
async fn an_address_replaces_the_lookup_of_a_name_and_not_its_check() {
    let Some(server) = secured() else { return };
    let ca = server.pem("ca.crt");
    let with = |host, mode: &str| {
        server.url("postgres", host, &format!("hostaddr=127.0.0.1&sslmode={mode}"))
    };
    assert!(is_encrypted(&with("name.invalid", "require")).await.unwrap());
    let verified = format!("verify-full&sslrootcert={ca}");
    assert!(is_encrypted(&with("localhost", &verified)).await.unwrap());
    let other = is_encrypted(&with("name.invalid", &verified)).await;
    assert!(matches!(other, Err(PgError::Tls { .. })), "{other:?}");
}

#[tokio::test]
async fn inline_roots_serve_like_a_file() {
    let Some(server) = secured() else { return };
    for (name, is_trusted) in [("ca.crt", true), ("other.crt", false)] {
        let pem = fs::read_to_string(server.pem(name)).unwrap();
        let env = PgEnv { sslrootcert_pem: Some(pem), ..PgEnv::default() };
        let url = server.url("postgres", "localhost", "sslmode=verify-full");
        let config = ConnectConfig::parse(&url, &env).unwrap();
        assert_eq!(connect_sql(&config).await.is_ok(), is_trusted, "{name}");
    }
}

#[tokio::test]
async fn prefer_takes_plain_text_when_the_server_wants_it_and_require_does_not() {
    let Some(server) = secured() else { return };
    let url = |user, mode: &str| server.url(user, "127.0.0.1", &format!("sslmode={mode}"));
    assert!(!is_encrypted(&url("plain", "prefer")).await.unwrap());
    assert!(is_encrypted(&url("encrypted", "prefer")).await.unwrap());
    for (user, mode) in [("plain", "require"), ("encrypted", "disable")] {
        let error = is_encrypted(&url(user, mode)).await.unwrap_err();
        assert_eq!(kind(&error), Some(ServerErrorKind::Authentication), "{user} {mode}: {error}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_unless_plain_text_will_do() {
    let Some(installation) = installations().into_iter().next() else { return };
    let server = PrivatePostgres::start(&installation, &[]).unwrap();
    let url = |mode| format!("{}?sslmode={mode}", server.url("postgres"));
    assert!(!is_encrypted(&url("prefer")).await.unwrap());
    let error = is_encrypted(&url("require")).await.unwrap_err();
    assert!(matches!(error, PgError::Tls { source: TlsError::NotOffered, .. }), "{error}");
}

#[tokio::test]
async fn the_next_host_is_tried_when_one_is_dead_or_of_the_wrong_kind() {
    let Some(server) = secured() else { return };
    let port = server.server.port();
    let dead = unused_port();
    let url = |parameters: &str| {
        format!("postgresql://postgres@127.0.0.1:{dead},localhost:{port}/postgres?{parameters}")
    };
    connect_sql(&config(&url(""))).await.unwrap();
    connect_sql(&config(&url("target_session_attrs=read-write"))).await.unwrap();
    replicate(&config(&url("target_session_attrs=primary"))).await.unwrap();
    for attribute in ["standby", "read-only"] {
        let config = config(&url(&format!("target_session_attrs={attribute}")));
        for error in
            [replicate(&config).await.unwrap_err(), connect_sql(&config).await.unwrap_err()]
        {
            assert!(matches!(error, PgError::WrongSession { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn a_unix_socket_is_a_host() {
    let Some(server) = secured() else { return };
    let directory = server.server.socket_dir().display();
    let url = format!(
        "postgresql://postgres@/postgres?host={directory}&port={}&sslmode=require",
        server.server.port()
    );
    assert!(!is_encrypted(&url).await.unwrap());
}

#[tokio::test]
async fn errors_name_the_place_and_never_the_password() {
    let Some(server) = secured() else { return };
    let dead = unused_port();
    let refused = format!("postgresql://u:hunter2@127.0.0.1:{dead}/d");
    let error = connect_sql(&config(&refused)).await.unwrap_err();
    assert_eq!(error.to_string(), format!("connect to 127.0.0.1:{dead} (127.0.0.1:{dead})"));
    assert!(!format!("{error:?}").contains("hunter2"));

    let both = format!("postgresql://u@127.0.0.1:{dead},[::1]:{dead}/d");
    let text = connect_sql(&config(&both)).await.unwrap_err().to_string();
    assert!(text.contains(&format!("127.0.0.1:{dead}")) && text.contains("[::1]"), "{text}");

    let absent = format!("postgresql://postgres@127.0.0.1:{}/absent", server.server.port());
    let absent = config(&absent);
    let errors = [replicate(&absent).await.unwrap_err(), connect_sql(&absent).await.unwrap_err()];
    assert_eq!(errors.map(|refusal| kind(&refusal)), [Some(ServerErrorKind::DatabaseMissing); 2]);

    let nowhere = connect_sql(&config("postgresql://u@host.invalid/d")).await.unwrap_err();
    assert!(matches!(nowhere, PgError::Resolve { .. }), "{nowhere}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_costs_no_more_than_the_timeout() {
    // The kernel accepts the connection, but nobody reads from it.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = mute.local_addr().unwrap().port();
    for mode in ["disable", "require"] {
        let url = format!("postgresql://u@127.0.0.1:{port}/d?connect_timeout=1&sslmode={mode}");
        let since = Instant::now();
        let error = replicate(&config(&url)).await.unwrap_err();
        assert!(matches!(error, PgError::ConnectTimeout { .. }), "{error}");
        assert!(since.elapsed() < Duration::from_secs(5));
    }
    // A silent first host leaves the next host its share of the time.
    let Some(server) = secured() else { return };
    let good = server.server.port();
    let hosts = format!("127.0.0.1:{port},127.0.0.1:{good}");
    let url = format!("postgresql://postgres@{hosts}/postgres?connect_timeout=4");
    connect_sql(&config(&url)).await.unwrap();
}

#[tokio::test]
async fn a_dropped_client_leaves_no_session_behind() {
    let Some(server) = secured() else { return };
    let url = |name: &str| server.url("postgres", "127.0.0.1", &format!("application_name={name}"));
    let watcher = connect_sql(&config(&url("watcher"))).await.unwrap();
    let count = async || -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dropped'";
        watcher.query_one(sql, &[]).await.unwrap().get(0)
    };
    let client = connect_sql(&config(&url("dropped"))).await.unwrap();
    assert_eq!(count().await, 1);
    drop(client);
    let deadline = Instant::now() + Duration::from_secs(10);
    while count().await != 0 {
        assert!(Instant::now() < deadline, "the session is still there");
    }
}

fn unused_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
