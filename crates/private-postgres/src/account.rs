//! Chooses the user that the server runs as, because Postgres refuses to run as root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::StartError;

/// The user that runs the server's programs and owns its files.
#[derive(Debug, Clone)]
pub(crate) enum Account {
    /// The current user.
    Own,
    /// Another user, because the current user is root.
    Other { name: String, uid: u32, gid: u32 },
}

impl Account {
    pub(crate) fn choose() -> Result<Self, StartError> {
        if id(&["-u"]) != Some(0) {
            return Ok(Self::Own);
        }
        let candidate = |name: &str| {
            Some(Self::Other {
                name: name.to_owned(),
                uid: id(&["-u", name])?,
                gid: id(&["-g", name])?,
            })
        };
        candidate("postgres").or_else(|| candidate("nobody")).ok_or(StartError::NoUnprivilegedUser)
    }

    /// Returns a command that runs `program` as this account.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = match self {
            Self::Own => Command::new(program),
            Self::Other { uid, gid, .. } if has_setpriv() => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
                command.args(["--clear-groups", "--"]).arg(program);
                command
            }
            Self::Other { name, .. } => su(name, program),
        };
        // The account may have no access to root's working directory.
        command.current_dir("/");
        command
    }

    /// Returns the owner to set on files. `None` when files already get the right owner.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        match self {
            Self::Own => None,
            Self::Other { uid, gid, .. } => Some((*uid, *gid)),
        }
    }

    /// Returns the id of the user that owns the server's files.
    pub(crate) fn uid(&self) -> Option<u32> {
        match self {
            Self::Own => id(&["-u"]),
            Self::Other { uid, .. } => Some(*uid),
        }
    }
}

/// Runs `program` through `su`, which accepts only a shell command. The shell passes all arguments
/// on unchanged.
fn su(name: &str, program: &Path) -> Command {
    let mut command = Command::new("su");
    command.args(["-s", "/bin/sh", name, "-c", r#"exec "$0" "$@""#, "--"]).arg(program);
    command
}

fn has_setpriv() -> bool {
    ["/usr/bin/setpriv", "/bin/setpriv", "/usr/local/bin/setpriv"]
        .into_iter()
        .map(PathBuf::from)
        .any(|path| path.exists())
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn su_hands_every_word_on_unchanged() {
        if id(&["-u"]) != Some(0) {
            // Only root can switch to another user without a password.
            return;
        }
        let mut command = su("nobody", Path::new("/usr/bin/printf"));
        let output = command.args(["%s|", "two words", "-x", "$HOME"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "two words|-x|$HOME|");
    }
}
