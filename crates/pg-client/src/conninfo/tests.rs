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
    assert_eq!(config.encryption, Encryption::Require);
    let defaults = parse("postgresql://u@h").unwrap();
    assert_eq!(defaults.application_name, "walrelay");
    assert_eq!(defaults.connect_timeout, CONNECT_TIMEOUT_DEFAULT);
    assert_eq!(defaults.encryption, Encryption::Prefer);
    let for_ever = parse("postgresql://u@h?connect_timeout=0").unwrap();
    assert_eq!(for_ever.connect_timeout, CONNECT_TIMEOUT_DEFAULT);
}

#[test]
fn inert_parameters_pass_and_their_active_values_do_not() {
    assert!(parse("postgresql://u@h?keepalives_idle=3&gssencmode=prefer&sslsni=1").is_ok());
    assert_eq!(
        problems("postgresql://u@h?channel_binding=require"),
        ["channel_binding is not supported here except as disable or prefer"]
    );
}

#[test]
fn every_problem_is_told_at_once() {
    assert_eq!(
        problems("postgresql://h:99999/d?sslmode=strict&sslkey=k&connect_timeout=soon&bogus=1"),
        [
            "the port of host number 1 is not a number from 1 to 65535",
            "sslmode is \"strict\"; it must be disable, prefer, require, verify-ca or verify-full",
            "connect_timeout is \"soon\"; it must be whole seconds",
            "unknown parameter \"sslkey\"",
            "unknown parameter \"bogus\"",
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
        "host=a hostaddr=1.1.1.1 user=u",
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
        let endpoint = Endpoint { host: host.into(), port, password: None };
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

#[test]
fn the_password_file_is_read_again_before_every_connection() {
    let name = format!("walrelay-passfile-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let env = PgEnv { passfile: Some(path.clone()), ..PgEnv::default() };
    let now = |config: &ConnectConfig| {
        let found = config.endpoints_now().expect("the file is there");
        found[0].password.as_ref().map(|secret| secret.reveal().to_owned())
    };
    std::fs::write(&path, "h:*:*:*:first").unwrap();
    let config = ConnectConfig::parse("postgresql://u@h", &env).unwrap();
    assert_eq!(now(&config).as_deref(), Some("first"));
    std::fs::write(&path, "h:*:*:*:second").unwrap();
    assert_eq!(now(&config).as_deref(), Some("second"));
    std::fs::write(&path, "").unwrap();
    assert_eq!(now(&config), None);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(config.endpoints_now(), Err(PgError::PasswordFile { .. })));
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
        parse(&format!("postgresql://u@h?{parameters}")).map(|config| config.encryption)
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
