//! The command lines of `walrelay dispatch`.

use clap::error::ErrorKind;

use super::Dispatch;
use crate::cli::CommandArgs;
use crate::config::Refusal;
use crate::config::tests::{URL, checked, config, parse, texts};

/// Returns the rows that `dispatch list` asks for.
fn listed(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let taken = checked(arguments, variables, |command, checks| {
        let CommandArgs::Dispatch(command) = command else { panic!("{command:?}") };
        let Dispatch::List(list) = *command else { panic!("{command:?}") };
        Some(format!("{:?}", list.asked(checks)))
    });
    taken.unwrap()
}

#[test]
fn arguments_that_choose_rows_come_from_the_command_line_alone() {
    let variables = [("DATABASE_URL", URL), ("WALRELAY_TOPIC", "t"), ("WALRELAY_STATUS", "dead")];
    let debug = listed(&["dispatch", "list"], &variables);
    assert!(debug.contains("state: NeedsPerson") && debug.contains("topic: None"), "{debug}");
}

#[test]
fn an_error_that_is_named_is_listed_in_every_state_unless_one_is_named_too() {
    let listed = |more: &[&str]| {
        let arguments = [&["dispatch", "list", "--error", "SPILLED"], more].concat();
        listed(&arguments, &[("DATABASE_URL", URL)])
    };
    assert!(listed(&[]).contains("state: Any"), "{}", listed(&[]));
    let dead = listed(&["--status", "dead"]);
    assert!(dead.contains("state: Only(Dead)"), "{dead}");
}

#[test]
fn a_new_topic_without_a_project_is_refused_under_the_name_of_its_option() {
    let given = [("DATABASE_URL", URL)];
    for (arguments, start) in [
        (&["dispatch", "edit", "e-1", "--set-topic", "a.b"][..], "--set-topic \"a.b\""),
        (&["dispatch", "list", "--topic", "a.b"], "--topic \"a.b\""),
    ] {
        let problems = texts(&config(arguments, &given).unwrap_err());
        assert!(problems[0].starts_with(start), "{problems:?}");
    }
}

#[test]
fn arguments_of_dispatch_that_contradict_each_other_are_refused() {
    for arguments in [
        &["dispatch", "retry", "--all-dead", "--status", "discarded"],
        &["dispatch", "retry", "--all-dead", "--status", "retrying"],
        &["dispatch", "list", "--all", "--limit", "5"],
    ] {
        let Err(Refusal::Clap(error)) = parse(arguments, &[("DATABASE_URL", URL)]) else {
            panic!("{arguments:?} was accepted");
        };
        assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
    }
}
