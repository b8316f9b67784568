//! Which user the server runs as: Postgres refuses to run as root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::StartError;

/// Who runs the server's programs and owns its files.
#[derive(Debug, Clone)]
pub(crate) enum Account {
    /// The user we are.
    Own,
    /// We are root; the server is this user.
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

    /// A command that runs `program` as this account.
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
        // Root's working directory may be closed to the account.
        command.current_dir("/");
        command
    }

    /// The owner to give files to; `None` when ours are right already.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        match self {
            Self::Own => None,
            Self::Other { uid, gid, .. } => Some((*uid, *gid)),
        }
    }

    /// The user id that the server's files belong to.
    pub(crate) fn uid(&self) -> Option<u32> {
        match self {
            Self::Own => id(&["-u"]),
            Self::Other { uid, .. } => Some(*uid),
        }
    }
}

/// `su` takes a shell command only, so the shell hands the words on unchanged.
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
            // Only root may become somebody else without a password.
            return;
        }
        let mut command = su("nobody", Path::new("/usr/bin/printf"));
        let output = command.args(["%s|", "two words", "-x", "$HOME"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "two words|-x|$HOME|");
    }
}
