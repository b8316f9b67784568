//! libpq's service file: sections `[name]` of lines `keyword=value`.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::problem::ConninfoProblem;
use super::text::Pairs;

/// Maximum bytes that are read of a service file.
const BYTES_MAX: u64 = 1 << 20;

/// Returns the pairs of the first of these files that has the service.
///
/// # Errors
///
/// No file has it, a file cannot be read, or a line of the section is no pair. Never quotes a value.
pub(super) fn pairs(service: &str, files: &[PathBuf]) -> Result<Pairs, ConninfoProblem> {
    for path in files {
        let shown = path.display();
        let contents = match read(path) {
            Ok(contents) => contents,
            // As in libpq, the next file is read.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(ConninfoProblem::new(format!("read service file {shown}: {error}")));
            }
        };
        let Some(pairs) = section(&contents, service) else { continue };
        let problem = |it| ConninfoProblem::new(format!("service {service:?} in {shown}: {it}"));
        return pairs.map_err(problem);
    }
    let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    Err(ConninfoProblem::new(match files.as_slice() {
        [] => format!("service {service:?} has no file; name it in PGSERVICEFILE"),
        files => format!("service {service:?} is not in {}", files.join(" or ")),
    }))
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut contents = String::new();
    File::open(path)?.take(BYTES_MAX).read_to_string(&mut contents)?;
    Ok(contents)
}

/// Returns the pairs of a section, or none without that section.
fn section(contents: &str, service: &str) -> Option<Result<Pairs, &'static str>> {
    let header = format!("[{service}]");
    let lines = contents.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut lines = lines.skip_while(|line| *line != header);
    lines.next()?;
    let lines = lines.take_while(|line| !line.starts_with('['));
    Some(lines.map(pair).collect())
}

fn pair(line: &str) -> Result<(String, String), &'static str> {
    if line.starts_with("ldap") {
        return Err("services in LDAP are not supported");
    }
    match line.split_once('=') {
        Some(("service" | "servicefile", _)) => Err("a service cannot name another one"),
        Some((keyword, value)) => Ok((keyword.to_owned(), value.to_owned())),
        None => Err("a line has no ="),
    }
}
