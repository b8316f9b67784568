//! Runs the programs that pages show, with the clients that `scripts/install-servers.sh` and
//! `scripts/install-clients.sh` install.

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
        Language::Go => go(&folder, text),
        Language::Java => java(&folder, text),
        Language::CSharp => csharp(&folder, text),
        Language::Sql | Language::Shell => unreachable!("{place}: no program"),
    };
    let Some(command) = command else {
        return skip(&format!(
            "{place}: no clients for {language:?}; `make test` installs them where it can"
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

/// Runs the program in a module with the versions of `tests/docs/recipes/go`. Nothing is downloaded.
fn go(folder: &Folder, text: &str) -> Option<Command> {
    if !clients().join("go/recipes").exists() {
        return None;
    }
    folder.copy(&["go/go.mod", "go/go.sum"]);
    folder.write("main.go", text);
    let mut command = Command::new("go");
    command.args(["run", "."]).env("GOPROXY", "off").current_dir(&folder.0);
    Some(command)
}

fn java(folder: &Folder, text: &str) -> Option<Command> {
    let libraries = clients().join("java/recipes/lib");
    if !libraries.exists() {
        return None;
    }
    let source = folder.write("Recipe.java", text);
    let compiled = Command::new("javac")
        .args(["-Xlint:all,-serial", "-Werror", "-d"])
        .arg(&folder.0)
        .arg(source)
        .output()
        .expect("javac starts");
    assert!(compiled.status.success(), "{}", text_of(&compiled));
    let class_path = format!("{}:{}/*", folder.0.display(), libraries.display());
    let mut command = Command::new("java");
    command.args(["-cp", &class_path, "Recipe"]);
    Some(command)
}

fn csharp(folder: &Folder, text: &str) -> Option<Command> {
    if !clients().join("csharp/recipes").exists() {
        return None;
    }
    folder.copy(&["csharp/recipe.csproj"]);
    folder.write("Program.cs", text);
    let mut command = Command::new("dotnet");
    command.arg("run").current_dir(&folder.0);
    Some(command)
}

/// Returns the variables in which programs on JDBC and Npgsql expect the database.
pub(crate) fn connection_variables(port: u16) -> [(&'static str, String); 2] {
    [
        ("JDBC_URL", format!("jdbc:postgresql://127.0.0.1:{port}/postgres?user=postgres")),
        (
            "NPGSQL_CONNECTION",
            format!("Host=127.0.0.1;Port={port};Database=postgres;Username=postgres"),
        ),
    ]
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

    /// Copies files of `tests/docs/recipes`.
    fn copy(&self, files: &[&str]) {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes");
        for file in files {
            let name = Path::new(file).file_name().expect("the name of a file");
            fs::copy(sources.join(file), self.0.join(name)).expect("a copy");
        }
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
