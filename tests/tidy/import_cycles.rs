//! Checks that the files of a target do not import each other in a cycle. A reader can then always
//! read a file's dependencies first.
//!
//! A file uses another file by an import or a path to one of its items, also through a re-export.
//! `mod child;` does not count as a use. `pub use child::Name` does not count either if the file
//! itself never uses the name. Unit tests do not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::modules::Modules;
use crate::repository::{Files, Finding};

/// Accepted uses in a cycle: from, to, and the reason. The list only gets shorter.
const ALLOWED: &[(&str, &str, &str)] = &[];

/// For each pair of files (user, used), the first line of the use.
type FileUses<'a> = BTreeMap<(&'a str, &'a str), usize>;

pub(crate) fn files_have_no_import_cycles(files: &Files) -> Vec<Finding> {
    circles(files, ALLOWED)
}

fn circles(files: &Files, allowed: &[(&str, &str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needed = BTreeSet::new();
    for root in roots(files) {
        let modules = Modules::of(files, root);
        let uses: FileUses<'_> = modules.edges();
        needed.extend(
            edges_in_cycles(&uses).into_iter().map(|(from, to)| [from, to].map(str::to_owned)),
        );
        let is_allowed =
            |edge: &(&str, &str)| allowed.iter().any(|(from, to, _)| (*from, *to) == *edge);
        let judged = uses.into_iter().filter(|(edge, _)| !is_allowed(edge)).collect();
        findings.extend(cycles(&judged));
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings.dedup();
    let mended = allowed
        .iter()
        .filter(|(from, to, _)| !needed.contains(&[(*from).to_owned(), (*to).to_owned()]))
        .map(|(from, to, _)| {
            let remedy = format!("no longer in a circle with {to}: remove it from ALLOWED");
            Finding::new(from, 1, remedy)
        });
    findings.extend(mended);
    findings
}

/// Returns the root files of the targets.
fn roots(files: &Files) -> impl Iterator<Item = &str> {
    let names = files.keys().map(String::as_str);
    names.filter(|path| {
        let mut parts = path.rsplit('/');
        let (name, folder) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let stands_alone = ["bin", "tests", "benches", "examples", "fuzz_targets"];
        let is_rust = name.ends_with(".rs");
        is_rust && (["lib.rs", "main.rs"].contains(&name) || stands_alone.contains(&folder))
    })
}

/// Returns one finding per set of files in a cycle, with the shortest cycle.
fn cycles(uses: &FileUses<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut told = BTreeSet::new();
    let files: BTreeSet<&str> = uses.keys().map(|(from, _)| *from).collect();
    for file in files {
        if told.contains(file) {
            continue;
        }
        let Some(way) = shortest_cycle(uses, file) else { continue };
        told.extend(reachable(uses, file).into_iter().filter(|other| leads_to(uses, other, file)));
        let steps = way.windows(2).map(|step| {
            let line = uses.get(&(step[0], step[1])).copied().unwrap_or(1);
            format!("{}:{line}", step[0])
        });
        let line = uses.get(&(way[0], way[1])).copied().unwrap_or(1);
        let remedy = format!(
            "imports lead back here ({} → here): move what both need into a file of its own",
            steps.collect::<Vec<_>>().join(" → "),
        );
        findings.push(Finding::new(file, line, remedy));
    }
    findings
}

fn edges_in_cycles<'a>(uses: &FileUses<'a>) -> Vec<(&'a str, &'a str)> {
    uses.keys().copied().filter(|(from, to)| leads_to(uses, to, from)).collect()
}

fn leads_to(uses: &FileUses<'_>, from: &str, to: &str) -> bool {
    from == to || reachable(uses, from).contains(to)
}

fn used_by<'a>(uses: &FileUses<'a>, file: &str) -> Vec<&'a str> {
    let of_file = uses.keys().filter(|(from, _)| *from == file);
    of_file.map(|(_, to)| *to).collect()
}

fn reachable<'a>(uses: &FileUses<'a>, file: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = used_by(uses, file);
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(used_by(uses, next));
        }
    }
    found
}

/// Returns the shortest cycle from a file back to itself. The file is at both ends.
fn shortest_cycle<'a>(uses: &FileUses<'a>, file: &'a str) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = VecDeque::from([file]);
    while let Some(at) = open.pop_front() {
        for next in used_by(uses, at) {
            if came_from.contains_key(next) {
                continue;
            }
            came_from.insert(next, at);
            open.push_back(next);
        }
    }
    let mut way = vec![file];
    loop {
        let before = came_from.get(way.last()?)?;
        way.push(before);
        if *before == file {
            way.reverse();
            return Some(way);
        }
    }
}

#[cfg(test)]
mod planted_faults {
    use super::*;
    use crate::repository::{files, places};

    const LIB: &str = "crates/a/src/lib.rs";

    fn found(texts: &[(&str, &str)]) -> Vec<(String, usize)> {
        let findings = circles(&files(texts), &[]);
        places(&findings).into_iter().map(|(path, line)| (path.to_owned(), line)).collect()
    }

    fn at(path: &str, line: usize) -> Vec<(String, usize)> {
        vec![(path.to_owned(), line)]
    }

    #[test]
    fn two_files_that_import_each_other_are_found() {
        let texts = [
            (LIB, "mod b;\nmod c;"),
            ("crates/a/src/b.rs", "\nuse crate::c::C;\npub struct B;"),
            ("crates/a/src/c.rs", "use super::b;\nfn f(_: b::B) {}\npub struct C;"),
        ];
        assert_eq!(found(&texts), at("crates/a/src/b.rs", 2));
    }

    #[test]
    fn a_circle_of_three_by_paths_alone_is_found() {
        let texts = [
            ("bench/src/main.rs", "mod b;\nmod c;\nmod d;"),
            ("bench/src/b.rs", "fn f() { crate::c::f() }"),
            ("bench/src/c.rs", "fn f() { super::d::f() }"),
            ("bench/src/d.rs", "fn f() -> Option<crate::b::B> { None }"),
        ];
        assert_eq!(found(&texts), at("bench/src/b.rs", 1));
    }

    #[test]
    fn a_parent_and_a_child_that_use_each_other_are_found() {
        let child = ("crates/a/src/b/c.rs", "use super::B;\npub struct C;");
        let user = "mod c;\nuse c::C;\npub struct B(C);";
        let texts = [(LIB, "mod b;"), ("crates/a/src/b.rs", user), child];
        assert_eq!(found(&texts), at("crates/a/src/b.rs", 2));
    }

    #[test]
    fn a_parent_that_exports_what_it_uses_itself_is_found() {
        let child = ("crates/a/src/b/c.rs", "use super::B;\npub struct C;");
        let exporter = "mod c;\npub use c::C;\npub struct B(C);";
        let texts = [(LIB, "mod b;"), ("crates/a/src/b/mod.rs", exporter), child];
        assert_eq!(found(&texts), at("crates/a/src/b/c.rs", 1));
    }

    #[test]
    fn a_root_that_children_import_from_is_no_circle_unless_it_uses_them() {
        let child = ("crates/a/src/b.rs", "use crate::LIMIT;\npub fn b() {}");
        assert_eq!(found(&[(LIB, "mod b;\nconst LIMIT: u8 = 1;\npub use b::b;"), child]), []);
        let uses_it = "mod b;\nconst LIMIT: u8 = 1;\nfn f() { b::b() }";
        assert_eq!(found(&[(LIB, uses_it), child]), at("crates/a/src/b.rs", 1));
    }

    #[test]
    fn a_reexport_belongs_to_its_defining_file() {
        let texts = [
            (LIB, "mod b;\nmod c;\npub use b::B;\npub use c::C;"),
            ("crates/a/src/b.rs", "use crate::C;\npub struct B(C);"),
            ("crates/a/src/c.rs", "pub struct C;"),
        ];
        assert_eq!(found(&texts), []);
        let back = ("crates/a/src/c.rs", "use crate::B;\npub struct C(B);");
        assert_eq!(found(&[texts[0], texts[1], back]), at("crates/a/src/b.rs", 1));
    }

    #[test]
    fn unit_tests_do_not_count() {
        let texts = [
            (LIB, "mod b;\nmod c;"),
            ("crates/a/src/b.rs", "#[cfg(test)]\nmod tests { use crate::c::C; }\npub struct B;"),
            ("crates/a/src/c.rs", "use crate::b::B;\npub struct C(B);\n#[cfg(test)]\nmod tests;"),
            ("crates/a/src/c/tests.rs", "use super::C;"),
        ];
        assert_eq!(found(&texts), []);
    }

    #[test]
    fn an_allowed_cycle_that_no_longer_exists_is_found() {
        let both = [
            (LIB, "mod b;\nmod c;"),
            ("crates/a/src/b.rs", "use crate::c::C;\npub struct B;"),
            ("crates/a/src/c.rs", "use crate::b::B;\npub struct C;"),
        ];
        let allowed = [("crates/a/src/c.rs", "crates/a/src/b.rs", "being mended")];
        assert_eq!(circles(&files(&both), &allowed), []);
        let mended = [both[0], both[1], ("crates/a/src/c.rs", "pub struct C;")];
        let findings = circles(&files(&mended), &allowed);
        assert_eq!(places(&findings), [("crates/a/src/c.rs", 1)]);
    }
}
