//! Runs the programs that pages show, with the clients that `scripts/install-servers.sh` installs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use walrelay_testkit::{random_name, skip};

use crate::blocks::Language;

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.servers/clients")
}

/// A program, ready to start. Its files are removed with it.
pub(crate) struct Program {
    pub(crate) command: Command,
    _folder: Folder,
}

/// Creates the program for a block. Reports the program as skipped if the clients of its language
/// are missing.
pub(crate) fn program(language: Language, text: &str, place: &str) -> Option<Program> {
    let folder = Folder::create();
    let command = match language {
        Language::Python => python(&folder, text),
        Language::TypeScript => typescript(&folder, text, place),
        Language::Sql | Language::Shell => unreachable!("{place}: no program"),
    };
    let Some(command) = command else {
        return skip(&format!(
            "{place}: no clients for {language:?}; scripts/install-servers.sh gets them"
        ));
    };
    Some(Program { command, _folder: folder })
}

fn python(folder: &Folder, text: &str) -> Option<Command> {
    let python = clients().join("python/bin/python");
    if !python.exists() {
        return None;
    }
    let script = folder.write("recipe.py", text);
    let mut command = Command::new(python);
    command.arg(script);
    Some(command)
}

/// Checks the program in strict mode and compiles it next to the packages.
fn typescript(folder: &Folder, text: &str, place: &str) -> Option<Command> {
    let packages = clients().join("node/node_modules");
    let compiler = packages.join("typescript/bin/tsc");
    if !compiler.exists() {
        return None;
    }
    symlink(fs::canonicalize(&packages).expect("the packages"), folder.0.join("node_modules"))
        .expect("a link to the packages");
    let script = folder.write("recipe.ts", text);
    let compiled = Command::new("node")
        .arg(compiler)
        .args(["--strict", "--skipLibCheck", "--esModuleInterop"])
        .args(["--target", "es2022", "--module", "commonjs"])
        .arg(&script)
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .output()
        .expect("node starts");
    assert!(compiled.status.success(), "{place}: {}", text_of(&compiled));
    let mut command = Command::new("node");
    command.arg(script.with_extension("js"));
    Some(command)
}

pub(crate) fn text_of(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).join("\n")
}

/// A folder that is removed with its owner.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn create() -> Self {
        let path = std::env::temp_dir().join(random_name("walrelay-recipe"));
        fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // An error is ignored, because a panic here would hide the test's own failure.
        drop(fs::remove_dir_all(&self.0));
    }
}
