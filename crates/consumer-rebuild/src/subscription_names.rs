//! The names of subscriptions that rebuilds create.

/// Returns the next name: `billing`, `billing-g2`, `billing-g3`. The suffix of an earlier rebuild
/// is replaced.
pub(crate) fn successor_name(old: &str, generation: i64) -> String {
    format!("{}-g{}", base(old, generation), generation + 1)
}

/// Removes the suffix of an earlier rebuild. The suffix may be older than the current generation,
/// because refills keep the name.
fn base(name: &str, generation: i64) -> &str {
    match name.rsplit_once("-g").map(|(base, number)| (base, number.parse::<i64>())) {
        Some((base, Ok(number))) if (2..=generation).contains(&number) => base,
        Some(_) | None => name,
    }
}

/// Returns the subscription that the consumer reads outside a refill, by removing the suffix of an
/// unfinished refill.
pub(crate) fn usual(reads: &str, generation: i64) -> &str {
    reads.strip_suffix(&format!("-refill-g{generation}")).unwrap_or(reads)
}

/// Returns whether rebuilds derived the name `reads` from the subscription `first`, with which the
/// consumer was set up.
#[must_use]
pub fn succeeds(reads: &str, first: &str, generation: i64) -> bool {
    reads != first && base(usual(reads, generation), generation) == base(first, generation)
}

/// The subscription of a refill, and the usual one that is read before and after.
#[derive(Debug)]
pub(crate) struct RefillNames {
    pub(crate) usual: String,
    pub(crate) refill: String,
}

impl RefillNames {
    /// Returns the names: `billing` is refilled from `billing-refill-g2`. The suffix of an earlier
    /// attempt is replaced.
    pub(crate) fn of(reads: &str, generation: i64) -> Self {
        let usual = usual(reads, generation);
        let refill = format!("{usual}-refill-g{}", generation + 1);
        Self { usual: usual.to_owned(), refill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_subscriptions_do_not_grow_with_rebuilds() {
        assert_eq!(successor_name("billing", 1), "billing-g2");
        assert_eq!(successor_name("billing-g2", 2), "billing-g3");
        assert_eq!(successor_name("billing-g9", 9), "billing-g10");
        // Refills began the generations in between.
        assert_eq!(successor_name("billing-g2", 7), "billing-g8");
        assert_eq!(successor_name(usual("billing-g2-refill-g7", 7), 7), "billing-g8");
        // The suffix belongs to the user's own name.
        assert_eq!(successor_name("billing-g2", 1), "billing-g2-g2");
    }

    #[test]
    fn a_consumer_is_known_again_by_the_subscription_it_was_set_up_with() {
        for (reads, first, generation) in [
            ("billing-g2", "billing", 2),
            ("billing-g3", "billing-g2", 3),
            ("billing-refill-g2", "billing", 2),
            ("billing-g2-refill-g3", "billing", 3),
        ] {
            assert!(succeeds(reads, first, generation), "{reads} after {first}");
        }
        for (reads, first, generation) in
            [("billing", "billing", 2), ("ledger", "billing", 2), ("billing-g2", "billing", 1)]
        {
            assert!(!succeeds(reads, first, generation), "{reads} after {first}");
        }
    }

    #[test]
    fn an_attempt_that_was_ended_does_not_change_what_is_read_afterwards() {
        for (reads, generation, refill) in
            [("billing", 1, "billing-refill-g2"), ("billing-refill-g2", 2, "billing-refill-g3")]
        {
            let names = RefillNames::of(reads, generation);
            assert_eq!((names.usual.as_str(), names.refill.as_str()), ("billing", refill));
        }
    }
}
