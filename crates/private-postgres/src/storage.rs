//! Manages a server's files: one folder per server, copied from one template per version.
//!
//! `initdb` takes a second or more, a copy takes about ten milliseconds. The template stays in the
//! temporary folder for the next start. All other files are removed with the server.

use std::collections::hash_map::RandomState;
use std::env;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::account::Account;
use crate::{Installation, StartError};

/// The maximum length of the folder path. A Unix socket path, here the folder plus
/// `.s.PGSQL.12345.lock`, must fit into 107 bytes.
const BASE_PATH_BYTES_MAX: usize = 80;

/// The number of log or output lines in an error.
const TAIL_LINES: usize = 25;

/// One server's folder with data, socket and log. Dropping the value removes the folder.
#[derive(Debug)]
pub(crate) struct Storage {
    base: PathBuf,
}

impl Storage {
    pub(crate) fn create(account: &Account) -> Result<Self, StartError> {
        let mut base = env::temp_dir().join(format!("walrelay-postgres-{}", random_name()));
        if base.as_os_str().len() > BASE_PATH_BYTES_MAX {
            base = Path::new("/tmp").join(format!("walrelay-postgres-{}", random_name()));
        }
        make_dir(&base, account)?;
        Ok(Self { base })
    }

    /// Returns the folder of the Unix socket.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.base.join("data")
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.base.join("server.log")
    }

    pub(crate) fn log_tail(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        tail(&String::from_utf8_lossy(&bytes))
    }

    /// Creates the data directory from the version's template. Creates the template first if it is
    /// missing.
    pub(crate) fn fill_from_template(
        &self,
        installation: &Installation,
        account: &Account,
    ) -> Result<(), StartError> {
        let template = template(installation, account)?;
        self.fill_from(&template, account)
    }

    /// Creates the data directory as a copy of another one, which no server may be using.
    pub(crate) fn fill_from(&self, data: &Path, account: &Account) -> Result<(), StartError> {
        let mut copy = account.command(Path::new("cp"));
        copy.arg("-a").arg(data).arg(self.data_dir());
        run(copy, Path::new("cp"))
    }

    /// Creates the data directory with `initdb`, which gives it a new system identifier.
    pub(crate) fn fill_with_initdb(
        &self,
        installation: &Installation,
        account: &Account,
    ) -> Result<(), StartError> {
        self.fill_with(installation, account, &[])
    }

    /// As [`Self::fill_with_initdb`], with more options for `initdb`.
    pub(crate) fn fill_with(
        &self,
        installation: &Installation,
        account: &Account,
        options: &[&str],
    ) -> Result<(), StartError> {
        initdb(installation, account, &self.data_dir(), options)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // An error here is ignored: the folder is in the temporary directory.
        drop(fs::remove_dir_all(&self.base));
    }
}

/// Returns the template of a version, creating it if needed. If several processes create it at
/// once, the first rename into place wins.
fn template(installation: &Installation, account: &Account) -> Result<PathBuf, StartError> {
    let owner = account.uid().unwrap_or_default();
    let name = format!("walrelay-postgres-template-{}-{owner}", installation.version);
    let template = env::temp_dir().join(name);
    // The name is predictable, so a folder that another user owns is not trusted.
    if fs::metadata(template.join("PG_VERSION")).is_ok_and(|file| file.uid() == owner) {
        return Ok(template);
    }

    let workplace = Storage::create(account)?;
    initdb(installation, account, &workplace.data_dir(), &[])?;
    match fs::rename(workplace.data_dir(), &template) {
        Ok(()) => Ok(template),
        Err(_) if template.join("PG_VERSION").exists() => Ok(template),
        Err(source) => Err(StartError::Storage { path: template, source }),
    }
}

fn initdb(
    installation: &Installation,
    account: &Account,
    data: &Path,
    options: &[&str],
) -> Result<(), StartError> {
    let program = installation.bin_dir.join("initdb");
    let mut command = account.command(&program);
    command.arg("-D").arg(data);
    command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]);
    command.args(["--no-sync", "--no-instructions"]).args(options);
    run(command, &program)
}

/// Runs a program to its end. The error contains the end of its output.
pub(crate) fn run(mut command: Command, program: &Path) -> Result<(), StartError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| StartError::Run { program: program.to_path_buf(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(StartError::Failed {
        program: program.to_path_buf(),
        status: output.status.to_string(),
        output: tail(&text),
    })
}

fn make_dir(path: &Path, account: &Account) -> Result<(), StartError> {
    let make = || -> io::Result<()> {
        fs::create_dir(path)?;
        // All users may reach the socket in this folder. Only the server may read the data
        // directory inside.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        match account.owner() {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    };
    make().map_err(|source| StartError::Storage { path: path.to_path_buf(), source })
}

/// Returns a random number from the hash seeds, because the standard library has no random number
/// generator.
pub(crate) fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn random_name() -> String {
    format!("{:012x}", random_number() & 0xffff_ffff_ffff)
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
