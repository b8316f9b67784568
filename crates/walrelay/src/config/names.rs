//! Checks names of Postgres objects in options.

/// Longest Postgres identifier in bytes (NAMEDATALEN - 1). Postgres silently truncates longer ones.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Returns whether Postgres accepts this as the name of a slot.
#[must_use]
pub(super) fn is_slot_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits)
}

/// Returns whether this can name a publication or a column, taken verbatim.
#[must_use]
pub(super) fn is_identifier(text: &str) -> bool {
    (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && !text.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_names_are_lower_case_letters_digits_and_underscores() {
        assert!(is_slot_name("walrelay_2"));
        assert!(!is_slot_name("Walrelay"));
        assert!(!is_slot_name("wal-relay"));
        assert!(!is_slot_name(""));
        assert!(!is_slot_name(&"x".repeat(64)));
    }
}
