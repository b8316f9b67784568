//! Reads the files that a command line names.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Error;

/// Largest payload file in bytes: the limit of a Pub/Sub message.
const FILE_BYTES_MAX: u64 = 10_000_000;

pub(in crate::commands) fn read_attributes(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    serde_json::from_slice(&read(path)?).map_err(|error| {
        Error::unfit(
            format!("{}: {error}", path.display()),
            "write a JSON object whose values are all strings",
        )
    })
}

pub(in crate::commands) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::File { path: path.display().to_string(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Error::unfit(
            format!("{} has {bytes} bytes", path.display()),
            "a message of Pub/Sub has at most 10,000,000",
        ));
    }
    std::fs::read(path).map_err(unreadable)
}
