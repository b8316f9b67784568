//! The repository's own rules, which neither the compiler nor clippy checks.
//!
//! Each finding names file, line and fix. A rule receives the text of all files and returns
//! findings, so that unit tests can plant a violation of each rule.

mod command_names;
mod error_codes;
mod file_places;
mod import_cycles;
mod language;
mod layers;
mod messages;
mod modules;
mod prose;
mod repository;
mod source;
mod sql_statements;
mod table_bounds;
mod text;

use std::path::Path;

use repository::{Files, Finding};

type Rule = fn(&Files) -> Vec<Finding>;

/// Every rule. A new rule is added here, with a unit test that plants a violation.
const RULES: &[Rule] = &[
    text::files_are_short,
    text::modules_are_documented,
    text::no_leftovers,
    text::glossary_words_have_no_synonyms,
    language::comments_have_short_sentences,
    language::comments_use_the_words_of_the_field,
    language::comments_name_their_actors,
    prose::pages_have_short_sentences,
    prose::pages_use_the_words_of_the_field,
    prose::pages_name_their_actors,
    prose::pages_are_short,
    messages::messages_have_short_sentences,
    messages::messages_use_the_words_of_the_field,
    file_places::files_are_in_a_module_tree,
    file_places::folders_are_small,
    file_places::test_files_are_targets,
    file_places::members_inherit_the_lints,
    file_places::pages_are_linked,
    command_names::only_the_shell_names_commands,
    error_codes::error_codes_are_used,
    error_codes::logged_errors_have_codes,
    error_codes::messages_name_no_files,
    layers::crates_depend_downwards,
    import_cycles::files_have_no_import_cycles,
    sql_statements::long_statements_are_in_sql_files,
    sql_statements::named_statements_are_used_once,
    sql_statements::own_objects_are_in_the_chosen_schema,
    table_bounds::tables_are_described_and_bounded,
];

#[test]
fn the_repository_keeps_its_own_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Files::new();
    repository::read_dir(&root, "", &mut files);
    assert!(files.contains_key("Cargo.toml"), "the root of the checkout is not where it was");

    let findings: Vec<String> =
        RULES.iter().flat_map(|rule| rule(&files)).map(|finding| finding.to_string()).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}
