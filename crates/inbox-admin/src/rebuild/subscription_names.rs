//! The names of subscriptions that rebuilds create.

/// Returns the next name: `billing`, `billing-g2`, `billing-g3`. The suffix of an earlier rebuild
/// is replaced.
pub(crate) fn successor_name(old: &str, generation: i64) -> String {
    format!("{}-g{}", base(old, generation), generation + 1)
}

/// Removes the suffix of an earlier rebuild. The suffix may be older than the current generation,
/// because a rebuild from the outbox keeps the subscription.
fn base(name: &str, generation: i64) -> &str {
    match name.rsplit_once("-g").map(|(base, number)| (base, number.parse::<i64>())) {
        Some((base, Ok(number))) if (2..=generation).contains(&number) => base,
        Some(_) | None => name,
    }
}

/// Returns whether rebuilds derived the name `reads` from the subscription `first`, with which the
/// consumer was set up.
#[must_use]
pub fn succeeds(reads: &str, first: &str, generation: i64) -> bool {
    reads != first && base(reads, generation) == base(first, generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_subscriptions_do_not_grow_with_rebuilds() {
        assert_eq!(successor_name("billing", 1), "billing-g2");
        assert_eq!(successor_name("billing-g2", 2), "billing-g3");
        assert_eq!(successor_name("billing-g9", 9), "billing-g10");
        // Rebuilds from the outbox began the generations in between.
        assert_eq!(successor_name("billing-g2", 7), "billing-g8");
        // The suffix belongs to the user's own name.
        assert_eq!(successor_name("billing-g2", 1), "billing-g2-g2");
    }

    #[test]
    fn a_consumer_is_known_again_by_the_subscription_it_was_set_up_with() {
        for (reads, first, generation) in
            [("billing-g2", "billing", 2), ("billing-g3", "billing-g2", 3)]
        {
            assert!(succeeds(reads, first, generation), "{reads} after {first}");
        }
        for (reads, first, generation) in
            [("billing", "billing", 2), ("ledger", "billing", 2), ("billing-g2", "billing", 1)]
        {
            assert!(!succeeds(reads, first, generation), "{reads} after {first}");
        }
    }
}
