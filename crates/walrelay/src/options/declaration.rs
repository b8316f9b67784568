//! The declaration of an option: one [`Setting`] with its name, default, range and meaning.
//!
//! Flag, variable, key of the file, help, checks, the docs page and the schema are generated from
//! it.

use std::marker::PhantomData;
use std::time::Duration;

use clap::{Arg, ArgAction, Command};

use super::units::{show_duration, show_size};

/// A declared option whose value is a `T`.
#[derive(Debug)]
pub struct Setting<T> {
    /// The declaration, without the type of the value.
    pub declaration: Declaration,
    value: PhantomData<fn() -> T>,
}

// Derived implementations would require `T: Clone` and `T: Copy`.
impl<T> Clone for Setting<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Setting<T> {}

/// The properties of an option.
#[derive(Debug, Clone, Copy)]
pub struct Declaration {
    /// The flag without its dashes, which is also the key of the file.
    pub name: &'static str,
    /// The allowed values.
    pub kind: Kind,
    /// The value of an unset option.
    pub default: Fallback,
    /// Established variables, which count after the option's own variable.
    pub variables: &'static [&'static str],
    /// The placeholder of the value in the help.
    pub value_name: &'static str,
    /// The effect, without a full stop.
    pub meaning: &'static str,
    /// Further information, such as a reason or a cost, in whole sentences.
    pub detail: &'static str,
    /// A limit that `kind` does not express.
    pub besides: &'static str,
    /// A heading, and another default for the commands that take the option under this heading.
    pub elsewhere: Option<(&'static str, &'static str)>,
    /// Special behaviour.
    pub nature: OptionScope,
}

/// Special behaviour of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionScope {
    /// A flag of the commands that declare it, a variable, and a key of the file.
    Ordinary,
    /// A flag of every command, which may also come before the command.
    Everywhere,
    /// A value that may be a secret, and is never printed.
    Secret,
}

/// The value of an unset option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// This value.
    Value(&'static str),
    /// No value. Holds its description for the help and the page.
    Nothing(&'static str),
}

/// The allowed values of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text. Holds a description, because `config` checks the value.
    Text(&'static str),
    /// Several texts. Holds a description of each, and the separator.
    List(&'static str, ListSeparator),
    /// One of these words.
    Words(&'static [&'static str]),
    /// On or off.
    Switch,
    /// A duration in this range.
    Duration(Duration, Duration),
    /// A size in bytes in this range.
    Size(u64, u64),
    /// A whole number in this range.
    Count(u64, u64),
}

/// How one text is split into several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListSeparator {
    /// At commas, also on the command line.
    ByCommas,
    /// At commas. The bare flag means `true`, and values need an equals sign.
    ByCommasOrBare,
    /// Never on the command line. Elsewhere at semicolons, for values that contain commas.
    BySemicolons,
}

impl<T> Setting<T> {
    const fn of(
        name: &'static str,
        kind: Kind,
        default: Fallback,
        value_name: &'static str,
    ) -> Self {
        let declaration = Declaration {
            name,
            kind,
            default,
            variables: &[],
            value_name,
            meaning: "",
            detail: "",
            besides: "",
            elsewhere: None,
            nature: OptionScope::Ordinary,
        };
        Self { declaration, value: PhantomData }
    }

    /// Sets the effect, without a full stop.
    #[must_use]
    pub const fn means(mut self, meaning: &'static str) -> Self {
        self.declaration.meaning = meaning;
        self
    }

    /// Sets further information.
    #[must_use]
    pub const fn detail(mut self, detail: &'static str) -> Self {
        self.declaration.detail = detail;
        self
    }

    /// Sets a limit that the kind does not express.
    #[must_use]
    pub const fn besides(mut self, limit: &'static str) -> Self {
        self.declaration.besides = limit;
        self
    }

    /// Sets another default for the commands that take the option under this heading.
    #[must_use]
    pub const fn under(mut self, heading: &'static str, default: &'static str) -> Self {
        self.declaration.elsewhere = Some((heading, default));
        self
    }

    /// Sets established variables.
    #[must_use]
    pub const fn also(mut self, variables: &'static [&'static str]) -> Self {
        self.declaration.variables = variables;
        self
    }

    /// Sets the placeholder of the value in the help.
    #[must_use]
    pub const fn shown_as(mut self, value_name: &'static str) -> Self {
        self.declaration.value_name = value_name;
        self
    }

    /// Makes it a flag of every command, which may also come before the command.
    #[must_use]
    pub const fn everywhere(mut self) -> Self {
        self.declaration.nature = OptionScope::Everywhere;
        self
    }

    /// Marks the value as a possible secret.
    #[must_use]
    pub const fn secret(mut self) -> Self {
        self.declaration.nature = OptionScope::Secret;
        self
    }
}

impl Setting<String> {
    /// Declares any text that `config` accepts.
    #[must_use]
    pub const fn text(name: &'static str, default: &'static str, allowed: &'static str) -> Self {
        Self::of(name, Kind::Text(allowed), Fallback::Value(default), "TEXT")
    }
}

impl Setting<Option<String>> {
    /// Declares any text that `config` accepts, or none.
    #[must_use]
    pub const fn optional_text(
        name: &'static str,
        unset: &'static str,
        allowed: &'static str,
    ) -> Self {
        Self::of(name, Kind::Text(allowed), Fallback::Nothing(unset), "TEXT")
    }
}

impl Setting<Vec<String>> {
    /// Declares several texts.
    #[must_use]
    pub const fn list(
        name: &'static str,
        default: Fallback,
        allowed: &'static str,
        parted: ListSeparator,
    ) -> Self {
        Self::of(name, Kind::List(allowed, parted), default, "TEXT")
    }
}

impl Setting<&'static str> {
    /// Declares one of a few words.
    #[must_use]
    pub const fn word(
        name: &'static str,
        default: &'static str,
        words: &'static [&'static str],
    ) -> Self {
        Self::of(name, Kind::Words(words), Fallback::Value(default), "WORD")
    }
}

impl Setting<Option<&'static str>> {
    /// Declares one of a few words, or none.
    #[must_use]
    pub const fn optional_word(
        name: &'static str,
        unset: &'static str,
        words: &'static [&'static str],
    ) -> Self {
        Self::of(name, Kind::Words(words), Fallback::Nothing(unset), "WORD")
    }
}

impl Setting<bool> {
    /// Declares a switch, off by default.
    #[must_use]
    pub const fn switch(name: &'static str) -> Self {
        Self::of(name, Kind::Switch, Fallback::Value("false"), "BOOL")
    }
}

impl Setting<Duration> {
    /// Declares a duration from `low` to `high`.
    #[must_use]
    pub const fn duration(
        name: &'static str,
        default: &'static str,
        low: Duration,
        high: Duration,
    ) -> Self {
        Self::of(name, Kind::Duration(low, high), Fallback::Value(default), "DURATION")
    }
}

impl Setting<Option<Duration>> {
    /// Declares a duration from `low` to `high`, or the word for none.
    #[must_use]
    pub const fn optional_duration(
        name: &'static str,
        unset: &'static str,
        low: Duration,
        high: Duration,
    ) -> Self {
        Self::of(name, Kind::Duration(low, high), Fallback::Nothing(unset), "DURATION")
    }
}

/// A number of bytes, as an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl Setting<Bytes> {
    /// Declares a size from `low` to `high` bytes.
    #[must_use]
    pub const fn size(name: &'static str, default: &'static str, low: u64, high: u64) -> Self {
        Self::of(name, Kind::Size(low, high), Fallback::Value(default), "SIZE")
    }
}

impl Setting<u32> {
    /// Declares a whole number from `low` to `high`.
    #[must_use]
    pub const fn count(name: &'static str, default: &'static str, low: u32, high: u32) -> Self {
        Self::of(name, Kind::Count(low as u64, high as u64), Fallback::Value(default), "COUNT")
    }
}

impl Setting<Option<u32>> {
    /// Declares a whole number from `low` to `high`, or none.
    #[must_use]
    pub const fn optional_count(
        name: &'static str,
        unset: &'static str,
        low: u32,
        high: u32,
    ) -> Self {
        Self::of(name, Kind::Count(low as u64, high as u64), Fallback::Nothing(unset), "COUNT")
    }
}

impl Declaration {
    /// Returns the variable of the option: `park-after` → `WALRELAY_PARK_AFTER`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("WALRELAY_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// Returns the lowest and highest value as text, if the option has a range.
    #[must_use]
    pub fn range(&self) -> Option<(String, String)> {
        match self.kind {
            Kind::Duration(low, high) => Some((show_duration(low), show_duration(high))),
            Kind::Size(low, high) => Some((show_size(low), show_size(high))),
            Kind::Count(low, high) => Some((low.to_string(), high.to_string())),
            Kind::Text(_) | Kind::List(..) | Kind::Words(_) | Kind::Switch => None,
        }
    }

    /// Returns the clap argument.
    #[must_use]
    pub fn argument(&self) -> Arg {
        let argument = Arg::new(self.name)
            .long(self.name)
            .value_name(self.value_name)
            .global(self.nature == OptionScope::Everywhere)
            .hide_default_value(self.nature == OptionScope::Secret || self.kind == Kind::Switch)
            .help(self.help());
        let argument = match self.detail {
            "" => argument,
            detail => argument.long_help(format!("{}\n\n{detail}", self.help())),
        };
        let argument = match self.kind {
            Kind::List(_, parted) => parted.shape(argument.action(ArgAction::Append)),
            Kind::Switch => {
                argument.num_args(0..=1).require_equals(true).default_missing_value("true")
            }
            Kind::Text(_)
            | Kind::Words(_)
            | Kind::Duration(..)
            | Kind::Size(..)
            | Kind::Count(..) => argument,
        };
        match self.default {
            Fallback::Value(value) => argument.default_value(value),
            Fallback::Nothing(_) => argument,
        }
    }

    fn help(&self) -> String {
        let range = match self.range() {
            Some((low, high)) => format!("; {low} to {high}"),
            None => String::new(),
        };
        let unset = match self.default {
            Fallback::Nothing(unset) if !unset.is_empty() => {
                format!(" [default: {}]", unset.replace('`', ""))
            }
            Fallback::Nothing(_) | Fallback::Value(_) => String::new(),
        };
        format!("{}{range}{unset}", self.meaning)
    }
}

impl ListSeparator {
    fn shape(self, argument: Arg) -> Arg {
        match self {
            Self::ByCommas => argument.value_delimiter(','),
            Self::BySemicolons => argument,
            Self::ByCommasOrBare => argument
                .value_delimiter(',')
                .num_args(0..)
                .require_equals(true)
                .default_missing_value("true"),
        }
    }
}

/// Options that commands take together.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// The heading in the help and on the page.
    pub heading: &'static str,
    /// The options in display order.
    pub options: &'static [Declaration],
}

impl Group {
    /// Adds these options to a command.
    #[must_use]
    pub fn augment(self, command: Command) -> Command {
        let under = |option: &Declaration| {
            let argument = option.argument().help_heading(self.heading);
            match option.elsewhere {
                Some((heading, default)) if heading == self.heading => {
                    argument.default_value(default)
                }
                Some(_) | None => argument,
            }
        };
        command.args(self.options.iter().map(under))
    }
}

/// Declares a group: a type for clap's `#[command(flatten)]`, and a constant for each option.
macro_rules! options {
    (
        $(#[$doc:meta])*
        $group:ident $heading:literal
        $($(#[$option_doc:meta])* $name:ident: $value:ty = $setting:expr;)+
    ) => {
        $(
            #[doc = concat!("An option under \"", $heading, "\".")]
            pub const $name: Setting<$value> = $setting;
        )+
        $crate::options::declaration::group!($(#[$doc])* $group $heading $($name)+);
    };
}

/// Declares a group of options that are declared already.
macro_rules! group {
    ($(#[$doc:meta])* $group:ident $heading:literal $($name:ident)+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $group;

        impl $group {
            /// The options of the group.
            pub const GROUP: Group =
                Group { heading: $heading, options: &[$($name.declaration),+] };
        }

        impl clap::Args for $group {
            fn augment_args(command: clap::Command) -> clap::Command {
                Self::GROUP.augment(command)
            }

            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::GROUP.augment(command)
            }
        }

        // The values are read by name, in `config::layers`.
        impl clap::FromArgMatches for $group {
            fn from_arg_matches(_: &clap::ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self)
            }

            fn update_from_arg_matches(&mut self, _: &clap::ArgMatches) -> Result<(), clap::Error> {
                Ok(())
            }
        }
    };
}

pub(crate) use {group, options};
