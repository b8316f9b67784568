//! `walrelay config`: shows, checks and describes the configuration.

use crate::config::{ConfigAction, EffectiveValue};
use crate::error::Error;
use crate::reference;
use serde::Serialize;

use crate::output::{print, print_result};

/// Prints the configuration. It was read and checked before.
///
/// # Errors
///
/// Standard output cannot be written.
pub(crate) fn execute(action: ConfigAction) -> Result<(), Error> {
    match action {
        ConfigAction::Show { values, format } => print_result(format, &values, || table(&values)),
        ConfigAction::Check { command, format } => {
            let text = format!("the configuration of `walrelay {command}` is valid\n");
            print_result(format, &CheckedConfigJson { command: &command, is_valid: true }, || text)
        }
        ConfigAction::Schema => print(&reference::schema()),
    }
}

/// A valid configuration, as `-o json` prints it.
#[derive(Debug, Serialize)]
struct CheckedConfigJson<'a> {
    command: &'a str,
    is_valid: bool,
}

fn table(values: &[EffectiveValue]) -> String {
    let shown = |value: &EffectiveValue| value.value.clone().unwrap_or_else(|| "-".to_owned());
    let width = |text: &dyn Fn(&EffectiveValue) -> usize| values.iter().map(text).max();
    let option = width(&|value| value.option.len()).unwrap_or_default();
    let text = width(&|value| shown(value).chars().count()).unwrap_or_default();
    let line = |value: &EffectiveValue| {
        format!("{:option$}  {:text$}  {}\n", value.option, shown(value), value.source)
    };
    values.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let value = EffectiveValue {
            option: "slot".to_owned(),
            value: Some("walrelay".to_owned()),
            source: "default".to_owned(),
        };
        assert_documented("config show", &[value]);
        let checked = CheckedConfigJson { command: "run", is_valid: true };
        assert_documented("config check", &checked);
    }
}
