//! Helpers for administrative requests: pages, masks and refused fields.

use std::collections::BTreeMap;
use std::ops::Bound;

use tonic::Status;

pub(crate) struct Page<'a, T> {
    pub(crate) found: Vec<&'a T>,
    pub(crate) next_token: String,
}

/// Returns a page of named resources, sorted by name. The token is the last name of the previous
/// page.
pub(crate) fn page_of<'a, T>(
    all: &'a BTreeMap<String, T>,
    size: i32,
    token: &str,
    is_wanted: impl Fn(&str, &T) -> bool,
) -> Page<'a, T> {
    let size = usize::try_from(size).ok().filter(|size| (1..=1_000).contains(size));
    let size = size.unwrap_or(1_000);
    let after = if token.is_empty() { Bound::Unbounded } else { Bound::Excluded(token) };
    let mut wanted = all
        .range::<str, _>((after, Bound::Unbounded))
        .filter(|(name, thing)| is_wanted(name, thing));
    let page: Vec<_> = wanted.by_ref().take(size).collect();
    let has_more = wanted.next().is_some();
    let last = page.last().map(|(name, _)| (*name).clone()).unwrap_or_default();
    Page {
        found: page.into_iter().map(|(_, thing)| thing).collect(),
        next_token: if has_more { last } else { String::new() },
    }
}

/// Refuses unsupported fields whose silent omission would change which messages arrive.
pub(crate) fn refuse(unsupported: &[(bool, &str)]) -> Result<(), Status> {
    match unsupported.iter().find(|(is_set, _)| *is_set) {
        Some((_, name)) => {
            Err(Status::unimplemented(format!("the emulator does not implement {name}")))
        }
        None => Ok(()),
    }
}

/// Returns the fields that an update changes. An update of no field is refused, as in production.
pub(crate) fn masked_paths(mask: Option<prost_types::FieldMask>) -> Result<Vec<String>, Status> {
    let paths = mask.map(|mask| mask.paths).filter(|paths| !paths.is_empty());
    paths.ok_or_else(|| missing("update_mask"))
}

pub(crate) fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("{field} is missing"))
}

pub(crate) fn not_updatable(path: &str) -> Status {
    Status::invalid_argument(format!("update_mask: {path:?} cannot be updated here"))
}
