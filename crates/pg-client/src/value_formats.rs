//! The settings that determine the text of values.

/// The settings with which every value has the text that the relay publishes and archives. The router
/// reads these formats. They replace the settings of the role and the database.
pub const VALUE_FORMATS: [(&str, &str); 6] = [
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("lc_monetary", "C"),
];

/// Returns the statements that give the open transaction these settings.
#[must_use]
pub fn local_value_formats_sql() -> String {
    VALUE_FORMATS.map(|(name, value)| format!("SET LOCAL {name} = '{value}'; ")).concat()
}

/// Returns the statements that give the session these settings.
pub(crate) fn value_formats_sql() -> String {
    VALUE_FORMATS.map(|(name, value)| format!("SET {name} = '{value}'; ")).concat()
}
