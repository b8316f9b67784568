//! Converts the text of an option into its value, as declared.

use std::time::Duration;

use super::problem::Problems;
use crate::options;
use crate::options::declaration::{Bytes, Declaration, Fallback, Kind, Setting};

/// The word for an unset duration.
const NEVER: &str = "never";

/// The type of an option's value.
pub(super) trait Value: Sized {
    /// Returns the value. For a wrong text it reports a problem and returns some value of the type.
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self;
}

impl Problems<'_> {
    /// Returns the value of an option.
    pub(super) fn read<T: Value>(&mut self, setting: Setting<T>) -> T {
        T::read(&setting.declaration, self)
    }

    /// Checks every option of the command, so that all range errors are reported.
    pub(super) fn check_options(&mut self) {
        for option in self.given().names().filter_map(options::find) {
            self.check(option);
        }
    }

    fn check(&mut self, option: &Declaration) {
        let text = match option.default {
            Fallback::Value(_) => Some(text(option, self)),
            Fallback::Nothing(_) => given(option, self),
        };
        let Some(text) = text else { return };
        match option.kind {
            // The code that uses these options checks their values.
            Kind::Text(_) | Kind::List(..) => {}
            Kind::Duration(..) if text == NEVER => {}
            Kind::Words(_) => _ = word(option, text, self),
            Kind::Switch => _ = self.switch(option.name, text),
            Kind::Duration(..) => _ = duration(option, text, self),
            Kind::Size(low, high) => _ = self.size(option.name, text, low..=high),
            Kind::Count(..) => _ = count(option, text, self),
        }
    }
}

/// Returns the only value. None if it is missing or empty.
fn given<'a>(option: &Declaration, problems: &Problems<'a>) -> Option<&'a str> {
    let text = problems.given().values(option.name).first()?;
    (!text.trim().is_empty()).then_some(text.as_str())
}

/// Returns the only value, or an empty text.
fn text<'a>(option: &Declaration, problems: &Problems<'a>) -> &'a str {
    problems.given().values(option.name).first().map_or("", String::as_str)
}

impl Value for String {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        text(option, problems).to_owned()
    }
}

impl Value for Option<String> {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        given(option, problems).map(str::to_owned)
    }
}

impl Value for Vec<String> {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        problems.given().values(option.name).to_vec()
    }
}

impl Value for bool {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        problems.switch(option.name, text(option, problems))
    }
}

impl Value for &'static str {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        word(option, text(option, problems), problems)
    }
}

impl Value for Option<&'static str> {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        given(option, problems).map(|text| word(option, text, problems))
    }
}

fn word(option: &Declaration, text: &str, problems: &mut Problems<'_>) -> &'static str {
    let Kind::Words(words) = option.kind else { unreachable!("declared with words") };
    let pairs: Vec<_> = words.iter().map(|word| (*word, *word)).collect();
    problems.choice(option.name, text, &pairs)
}

impl Value for Duration {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        duration(option, text(option, problems), problems)
    }
}

impl Value for Option<Duration> {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        let given = given(option, problems).filter(|text| *text != NEVER)?;
        Some(duration(option, given, problems))
    }
}

fn duration(option: &Declaration, text: &str, problems: &mut Problems<'_>) -> Duration {
    let Kind::Duration(low, high) = option.kind else { unreachable!("declared as a duration") };
    problems.duration(option.name, text, low..=high)
}

impl Value for Bytes {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        let Kind::Size(low, high) = option.kind else { unreachable!("declared as a size") };
        let size = problems.size(option.name, text(option, problems), low..=high);
        Self(usize::try_from(size).unwrap_or(usize::MAX))
    }
}

impl Value for u32 {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        count(option, text(option, problems), problems)
    }
}

impl Value for Option<u32> {
    fn read(option: &Declaration, problems: &mut Problems<'_>) -> Self {
        given(option, problems).map(|text| count(option, text, problems))
    }
}

fn count(option: &Declaration, text: &str, problems: &mut Problems<'_>) -> u32 {
    let Kind::Count(low, high) = option.kind else { unreachable!("declared as a count") };
    u32::try_from(problems.count(option.name, text, low..=high)).unwrap_or(u32::MAX)
}
