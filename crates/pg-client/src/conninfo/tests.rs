//! Tests of connection strings: every keyword, host list and default, and the message of each
//! problem.

use super::*;
use crate::error::PgError;

fn parse(text: &str) -> Result<ConnectConfig, Vec<ConninfoProblem>> {
    ConnectConfig::parse(text, &PgEnv::default())
}

/// Hosts, database and user, as [`ConnectConfig::describe`] prints them.
fn described(text: &str) -> String {
    parse(text).unwrap_or_else(|problems| panic!("{text}: {problems:?}")).describe()
}

fn problems(text: &str) -> Vec<String> {
    let problems = parse(text).expect_err(text);
    problems.iter().map(ToString::to_string).collect()
}

fn password(config: &ConnectConfig) -> Option<&str> {
    config.endpoints[0].password.as_ref().map(Secret::reveal)
}

#[test]
fn every_form_libpq_takes_names_the_same_places() {
    for (text, expected) in [
        ("postgresql://u@h", "h:5432/u as u"),
        ("postgres://u:p@h:6000/d", "h:6000/d as u"),
        ("postgresql://u@h1:1,h2,h3:3/d", "h1:1,h2:5432,h3:3/d as u"),
        ("postgresql://u@[::1]:5433/d", "[::1]:5433/d as u"),
        ("postgresql://u@[fe80::1],10.0.0.1/d", "[fe80::1]:5432,10.0.0.1:5432/d as u"),
        ("postgresql://u@%2Frun%2Fpostgresql/d", "/run/postgresql:5432/d as u"),
        ("postgresql://u@/d?host=/tmp&port=7", "/tmp:7/d as u"),
        ("postgresql:///d?host=/tmp&user=u", "/tmp:5432/d as u"),
        ("postgresql://u@/d", "localhost:5432/d as u"),
        ("postgresql://u%40x:p@h/d%2Fe", "h:5432/d/e as u@x"),
        ("postgresql://a@h/d?user=u", "h:5432/d as u"),
        ("postgresql://u@h/d?", "h:5432/d as u"),
        ("host=h user=u", "h:5432/u as u"),
        ("  host = h   user='u' dbname = 'd x' port=9 ", "h:9/d x as u"),
        (r"host=h user='o\'u' dbname=a\ b", "h:5432/a b as o'u"),
        ("host=h1,h2 port=1,2 user=u", "h1:1,h2:2/u as u"),
        ("host=h1,h2 port=7 user=u", "h1:7,h2:7/u as u"),
        ("hostaddr=10.0.0.1 user=u", "10.0.0.1:5432/u as u"),
        ("host='' user=u", "localhost:5432/u as u"),
        ("host=h user=a user=u", "h:5432/u as u"),
    ] {
        assert_eq!(described(text), expected, "{text}");
    }
}

#[test]
fn what_stands_behind_the_question_mark_is_understood() {
    let config = parse(
        "postgresql://u@h/d?application_name=relay%201&connect_timeout=3&options=-c%20geqo%3Doff\
         &target_session_attrs=read-write&sslmode=require",
    )
    .unwrap();
    assert_eq!(config.application_name, "relay 1");
    assert_eq!(config.connect_timeout, Duration::from_secs(3));
    assert_eq!(config.options.as_deref(), Some("-c geqo=off"));
    assert_eq!(config.session, TargetSession::ReadWrite);
    assert_eq!(config.security.encryption, Encryption::Require);
    let defaults = parse("postgresql://u@h").unwrap();
    assert_eq!(defaults.application_name, "walrelay");
    assert_eq!(defaults.connect_timeout, CONNECT_TIMEOUT_DEFAULT);
    assert_eq!(defaults.security.encryption, Encryption::Prefer);
    let for_ever = parse("postgresql://u@h?connect_timeout=0").unwrap();
    assert_eq!(for_ever.connect_timeout, CONNECT_TIMEOUT_DEFAULT);
}

/// Every parameter of libpq 18's documentation, with values that are taken, and values that are refused.
const PARAMETERS: [(&str, &[&str], &[&str]); 51] = [
    ("host", &["h", "/run", "a,b"], &[]),
    ("hostaddr", &["10.0.0.1", "::1"], &["db.example", "10.0.0.1,10.0.0.2"]),
    ("port", &["5432"], &["0", "x"]),
    ("dbname", &["d"], &[]),
    ("user", &["u"], &[]),
    ("password", &["p"], &[]),
    ("passfile", &[], &["/nowhere/pgpass"]),
    ("require_auth", &["scram-sha-256", "!password,!md5", "none"], &["gss", "scram", "md5,!none"]),
    ("channel_binding", &["disable", "prefer", "require"], &["always"]),
    ("connect_timeout", &["3", "0"], &["soon"]),
    ("client_encoding", &["UTF8", "auto"], &["LATIN1"]),
    ("options", &["-c geqo=off"], &[]),
    ("application_name", &["a"], &[]),
    ("fallback_application_name", &["a"], &[]),
    ("keepalives", &["0", "1"], &[]),
    ("keepalives_idle", &["60", "0"], &["-1"]),
    ("keepalives_interval", &["10"], &["x"]),
    ("keepalives_count", &["3"], &["x"]),
    ("tcp_user_timeout", &["10000", "0"], &["10s"]),
    ("replication", &["database", "false"], &["true"]),
    ("gssencmode", &["disable", "prefer"], &["require"]),
    ("sslmode", &["disable", "allow", "prefer", "require", "verify-ca", "verify-full"], &["on"]),
    ("requiressl", &["0"], &["1"]),
    ("sslnegotiation", &["postgres"], &["direct", "tls"]),
    ("sslcompression", &["0", "1"], &[]),
    ("sslcert", &[], &["/nowhere/client.crt"]),
    ("sslkey", &[], &["/nowhere/client.key"]),
    ("sslkeylogfile", &[], &["/tmp/keys"]),
    ("sslpassword", &["p"], &[]),
    ("sslcertmode", &["disable", "allow"], &["require"]),
    ("sslrootcert", &["system"], &[]),
    ("sslcrl", &[], &["root.crl"]),
    ("sslcrldir", &[], &["crl"]),
    ("sslsni", &["0", "1"], &[]),
    ("requirepeer", &[], &["postgres"]),
    ("ssl_min_protocol_version", &["TLSv1", "TLSv1.2", "TLSv1.3"], &["SSLv3"]),
    ("ssl_max_protocol_version", &["TLSv1.2", "TLSv1.3"], &["TLSv1.1"]),
    ("min_protocol_version", &["3.0"], &["3.2"]),
    ("max_protocol_version", &["3.0", "3.2", "latest"], &[]),
    ("krbsrvname", &["postgres"], &[]),
    ("gsslib", &["gssapi"], &[]),
    ("gssdelegation", &["0", "1"], &[]),
    ("scram_client_key", &[], &["AAAA"]),
    ("scram_server_key", &[], &["AAAA"]),
    ("service", &[], &["orders"]),
    ("servicefile", &["/nowhere/services"], &[]),
    (
        "target_session_attrs",
        &["any", "read-write", "read-only", "primary", "standby"],
        &["prefer-standby"],
    ),
    ("load_balance_hosts", &["disable"], &["random"]),
    ("oauth_issuer", &[], &["https://issuer.example"]),
    ("oauth_client_id", &[], &["id"]),
    ("oauth_scope", &[], &["openid"]),
];

#[test]
fn every_parameter_of_libpq_is_honoured_or_refused_by_its_name() {
    for (keyword, taken, refused) in PARAMETERS {
        let base = match keyword {
            "host" | "hostaddr" => "user=u",
            "user" => "host=h",
            _ => "host=h user=u",
        };
        for value in taken {
            let text = format!("{base} {keyword}='{value}'");
            assert!(parse(&text).is_ok(), "{text}: {:?}", problems(&text));
        }
        let base = if keyword == "hostaddr" { "host=h user=u" } else { base };
        for value in refused {
            let text = format!("{base} {keyword}='{value}'");
            let told = problems(&text).join("; ");
            // A password file is named by what it is.
            let name = match keyword {
                "port" => "port of host number 1",
                "passfile" => "password file",
                name => name,
            };
            assert!(told.contains(name), "{text}: {told}");
            assert!(!told.contains("none of libpq's"), "{text}: {told}");
        }
        assert!(
            parse(&format!("{keyword}='' host=h user=u")).is_ok(),
            "an empty {keyword} is none"
        );
    }
}

#[test]
fn every_option_of_a_connection_reaches_it() {
    let config = parse(
        "postgresql://u@db.example/d?hostaddr=10.0.0.7&sslmode=require&sslnegotiation=direct&sslsni=0\
         &channel_binding=require&ssl_min_protocol_version=TLSv1.3&require_auth=scram-sha-256\
         &keepalives=0&tcp_user_timeout=1500",
    )
    .unwrap();
    assert_eq!(config.describe(), "db.example:5432/d as u");
    assert_eq!(config.endpoints[0].address, Some("10.0.0.7".parse().unwrap()));
    let Security { negotiation, versions, names_host, channel_binding, methods, .. } =
        config.security;
    assert_eq!((negotiation, names_host), (Negotiation::Direct, false));
    assert_eq!(channel_binding, ChannelBinding::Require);
    assert_eq!(versions, [&rustls::version::TLS13]);
    assert!(methods.is_some());
    assert!(config.liveness.keepalive.is_none());
    assert_eq!(config.liveness.unacknowledged, Some(Duration::from_millis(1500)));
    let two = parse("host=a,b hostaddr=,10.0.0.8 user=u").unwrap();
    let addresses: Vec<_> = two.endpoints.iter().map(|it| it.address).collect();
    assert_eq!(addresses, [None, Some("10.0.0.8".parse().unwrap())]);
    for (text, told) in [
        ("sslnegotiation=direct", "needs sslmode=require"),
        ("channel_binding=require&sslmode=disable", "needs TLS"),
        ("sslcert=/c", "without sslkey"),
        (
            "ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2",
            "is above ssl_max_protocol_version",
        ),
    ] {
        let told_is = problems(&format!("postgresql://u@h?{text}")).join("; ");
        assert!(told_is.contains(told), "{text}: {told_is}");
    }
}

/// Connection strings as the consoles of providers print them, and what comes of each.
#[test]
fn the_strings_that_providers_show_connect_or_name_the_way_out() {
    for (provider, text, way_out) in [
        (
            "Neon",
            "postgresql://neondb_owner:npg_x@ep-cool-darkness-a1b2c3d4.us-east-2.aws.neon.tech/neondb\
             ?sslmode=require&channel_binding=require",
            None,
        ),
        (
            "Neon, pooled",
            "postgresql://neondb_owner:npg_x@ep-cool-darkness-a1b2c3d4-pooler.us-east-2.aws.neon.tech/neondb\
             ?sslmode=require&channel_binding=require",
            Some("without -pooler"),
        ),
        (
            "Supabase, direct",
            "postgresql://postgres:secret@db.abcdefghijklmnopqrst.supabase.co:5432/postgres",
            None,
        ),
        (
            "Supabase, pooler",
            "postgresql://postgres.abcdefghijklmnopqrst:secret@aws-0-eu-west-1.pooler.supabase.com:6543/postgres",
            Some("direct connection"),
        ),
        (
            "Cloud SQL, socket",
            "postgresql://u:secret@/app?host=/cloudsql/project:europe-west1:instance",
            None,
        ),
        (
            "Cloud SQL, private IP",
            "postgresql://u:secret@10.0.0.5:5432/app?sslmode=verify-ca",
            None,
        ),
        ("AlloyDB", "host=10.0.0.2 port=5432 user=u dbname=app sslmode=require", None),
        (
            "RDS",
            "host=orders.abc123.eu-west-1.rds.amazonaws.com port=5432 dbname=app user=u sslmode=verify-full",
            None,
        ),
        (
            "Aiven",
            "postgres://avnadmin:secret@pg-orders-demo.a.aivencloud.com:12345/defaultdb?sslmode=require",
            None,
        ),
        ("Heroku", "postgres://u0abc:p1def@ec2-52-1-2-3.compute-1.amazonaws.com:5432/d2ghi", None),
    ] {
        let config = parse(text).unwrap_or_else(|problems| panic!("{provider}: {problems:?}"));
        match (config.looks_like_pooler(), way_out) {
            (None, None) => {}
            (Some(told), Some(way_out)) => assert!(told.contains(way_out), "{provider}: {told}"),
            (told, _) => panic!("{provider}: {told:?}"),
        }
    }
}

#[test]
fn a_service_gives_what_the_string_does_not_say() {
    let directory = std::env::temp_dir().join(format!("walrelay-service-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("pg_service.conf");
    let contents = "# services\n[other]\nhost=o\n\n[orders]\nhost=db.example\nport=6000\n\
                    user=u\npassword=hunter2\n[nested]\nservice=orders\n[bad]\nhunter2\n";
    std::fs::write(&path, contents).unwrap();
    let env =
        PgEnv { service_files: vec![directory.join("missing"), path.clone()], ..PgEnv::default() };
    let named = ConnectConfig::parse("service=orders dbname=d port=7000", &env).unwrap();
    assert_eq!(named.describe(), "db.example:7000/d as u");
    assert_eq!(password(&named), Some("hunter2"));
    let by_name = PgEnv { service: Some("orders".into()), ..env.clone() };
    let from_env = ConnectConfig::parse("postgresql:///d", &by_name).unwrap();
    assert_eq!(from_env.describe(), "db.example:6000/d as u");
    let with_file = format!("postgresql:///d?service=orders&servicefile={}", path.display());
    assert!(parse(&with_file).is_ok());
    for (service, told) in
        [("billing", "is not in"), ("nested", "cannot name another"), ("bad", "a line has no =")]
    {
        let text = format!("service={service} dbname=d");
        let problems = ConnectConfig::parse(&text, &env).unwrap_err();
        let problem = problems[0].to_string();
        assert!(problem.contains(told) && !problem.contains("hunter2"), "{service}: {problem}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn every_problem_is_told_at_once() {
    assert_eq!(
        problems("postgresql://h:99999/d?sslmode=strict&sslcrl=k&connect_timeout=soon&bogus=1"),
        [
            "the port of host number 1 is not a number from 1 to 65535",
            "sslmode must be disable, prefer, require, verify-ca or verify-full",
            "connect_timeout must be whole seconds",
            "sslcrl is not supported: lists of revoked certificates are not read; name the authority in \
             sslrootcert, and replace it",
            "the parameter behind connect_timeout is none of libpq's; in a password, write & as %26 in a URL, and \
             quote spaces",
            "no user is named; write postgresql://USER@host/database",
        ]
    );
}

#[test]
fn strings_that_mean_nothing_are_refused() {
    for text in [
        "",
        "nonsense",
        "mysql://u@h/d",
        "postgresql://u@h/d?novalue",
        "postgresql://u@h:x/d",
        "postgresql://u@h:0/d",
        "postgresql://u@h1:1,h2:2/d?port=1,2,3",
        "postgresql://u:%zz@h/d",
        "postgresql://u:%00@h/d",
        "postgresql://u:%F@h/d",
        "postgresql://u@h/d?target_session_attrs=best",
        "host=h user",
        "host=h user='u",
        "host=a,b hostaddr=1.1.1.1 user=u",
        "host h user=u",
        "=h user=u",
    ] {
        assert!(parse(text).is_err(), "{text:?} was accepted");
    }
}

#[test]
fn no_problem_and_no_debug_output_quotes_a_password() {
    for text in [
        "postgresql://u:hunter2/x@h/d",
        "postgresql://u:hunter2?x@h/d",
        "postgresql://u:%zzhunter2@h/d",
        "postgresql://u:hunter2",
        "postgresql://u:hunter2@h:5432x/d?password=hunter2&bogus=hunter2",
        "host=h user=u password='hunter2",
        "hunter2",
        "password=hunter2 sslmode",
        "postgresql+psycopg2://u:hunter2@/d?host=/cloudsql/p:r:i",
        "jdbc:postgresql://u:hunter2@h/d?ssl=true",
        "\"postgresql://u:hunter2@h/d?sslmode=require\"",
        "u:hunter2@h/d?sslmode=require",
        "postgresql://u@h/d?password=a&hunter2=b",
        "postgresql://u@h/d?sslmode=require?password=hunter2",
        "postgresql://u@h/d?connect_timeout=3?password=hunter2",
        "host=h user=u password=a hunter2=b",
        "host=h user=u password=a hunter2='b",
        "postgresql://u@h/d?hunter2=%zz",
    ] {
        let problems = problems(text).join("; ");
        assert!(!problems.contains("hunter2"), "{text}: {problems}");
    }
    let config = parse("postgresql://u:hunter2@h/d").unwrap();
    assert!(!format!("{config:?} {}", config.describe()).contains("hunter2"));
}

#[test]
fn the_password_of_the_string_comes_before_the_environments() {
    let env = PgEnv { password: Some(Secret::new("env")), ..PgEnv::default() };
    let config = ConnectConfig::parse("postgresql://u:a%40b%2F@h", &env).unwrap();
    assert_eq!(password(&config), Some("a@b/"));
    let bare = ConnectConfig::parse("postgresql://u@h", &env).unwrap();
    assert_eq!(password(&bare), Some("env"));
    let env = PgEnv { user: Some("from-env".into()), ..env };
    let last = ConnectConfig::parse("postgresql://h?password=p", &env).unwrap();
    assert_eq!((password(&last), last.user()), (Some("p"), "from-env"));
}

#[test]
fn the_password_file_is_matched_line_by_line_as_libpq_does() {
    let contents = "# h:5432:d:u:comment\n\
                    other:*:*:*:no\n\
                    h:5433:d:u:port\r\n\
                    h:*:d:u:first:with\\:colon\\\\\n\
                    h:*:*:*:second\n\
                    localhost:*:*:*:socket\n\
                    \\:\\:1:*:*:*:six\n";
    let ask = |host: &str, port, user| {
        let endpoint = Endpoint { host: host.into(), address: None, port, password: None };
        let wanted = passfile::Wanted { endpoint: &endpoint, database: "d", user };
        passfile::password(contents, &wanted).map(|secret| secret.reveal().to_owned())
    };
    assert_eq!(ask("h", 5433, "u").as_deref(), Some("port"));
    assert_eq!(ask("h", 5432, "u").as_deref(), Some("first:with:colon\\"));
    assert_eq!(ask("h", 5432, "v").as_deref(), Some("second"));
    assert_eq!(ask("/tmp", 5432, "v").as_deref(), Some("socket"));
    assert_eq!(ask("::1", 5432, "v").as_deref(), Some("six"));
    assert_eq!(ask("nowhere", 5432, "v"), None);
}

#[tokio::test]
async fn the_password_file_is_read_again_before_every_connection() {
    let name = format!("walrelay-passfile-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let env = PgEnv { passfile: Some(path.clone()), ..PgEnv::default() };
    let now = async |config: &ConnectConfig| {
        let found = config.endpoints_now().await.expect("the file is there");
        found[0].password.as_ref().map(|secret| secret.reveal().to_owned())
    };
    std::fs::write(&path, "h:*:*:*:first").unwrap();
    let config = ConnectConfig::parse("postgresql://u@h", &env).unwrap();
    assert_eq!(now(&config).await.as_deref(), Some("first"));
    std::fs::write(&path, "h:*:*:*:second").unwrap();
    assert_eq!(now(&config).await.as_deref(), Some("second"));
    std::fs::write(&path, "").unwrap();
    assert_eq!(now(&config).await, None);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(config.endpoints_now().await, Err(PgError::PasswordFile { .. })));
}

#[test]
fn a_password_file_that_cannot_be_read_is_a_problem() {
    let env = PgEnv { passfile: Some("/nowhere/at/all".into()), ..PgEnv::default() };
    let problems = ConnectConfig::parse("postgresql://u@h", &env).unwrap_err();
    assert!(problems[0].to_string().starts_with("read password file /nowhere/at/all: "));
    // If a password is given, the file is not read.
    assert!(ConnectConfig::parse("postgresql://u:p@h", &env).is_ok());
}

#[test]
fn roots_decide_what_require_means() {
    let inline = |text: &str, pem: &str| {
        let env = PgEnv { sslrootcert_pem: Some(pem.into()), ..PgEnv::default() };
        ConnectConfig::parse(text, &env)
    };
    let problems = inline("postgresql://u@h?sslmode=require", "no certificate").unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "read the inline root certificates: it holds no PEM certificate"
    );
    // Valid base64 between the markers, but not a certificate.
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let damage = inline("postgresql://u@h?sslmode=verify-full", damaged).unwrap_err();
    assert!(damage[0].to_string().contains("certificate 1 in it is damaged"), "{damage:?}");
    let encryption = |parameters| {
        parse(&format!("postgresql://u@h?{parameters}")).map(|config| config.security.encryption)
    };
    let public = Encryption::VerifyFull(RootSource::Public);
    assert_eq!(encryption("sslmode=verify-full"), Ok(public.clone()));
    assert_eq!(encryption("sslrootcert=system"), Ok(public));
    assert_eq!(encryption("ssl=true"), Ok(Encryption::Require));
    assert!(encryption("sslrootcert=system&sslmode=require").is_err());
    let missing = encryption("sslmode=verify-ca&sslrootcert=/nowhere.pem").unwrap_err();
    assert!(missing.iter().chain(&damage).all(ConninfoProblem::is_about_roots), "{missing:?}");
}

#[test]
fn a_pooler_is_recognised_by_host_port_or_user() {
    for text in [
        "postgresql://postgres@aws-0-eu-west-1.pooler.supabase.com:5432/postgres",
        "postgresql://u@h:6543/d",
        "postgresql://postgres.abcdefghijklmnopqrst@h/postgres",
    ] {
        assert!(parse(text).unwrap().looks_like_pooler().is_some(), "{text}");
    }
    let direct = parse("postgresql://postgres@db.abc.supabase.co:5432/postgres").unwrap();
    assert_eq!(direct.looks_like_pooler(), None);
}
