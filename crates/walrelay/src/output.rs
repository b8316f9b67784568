//! Standard output: what a command was asked for, and nothing else.

use std::io::{self, Write as _};

use crate::error::Error;

/// Prints what a command was asked for. A reader that has gone away, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Io { action: "write to standard output".into(), source: error })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
