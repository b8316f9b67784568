//! The module tree of a target, and the file that a path refers to.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::Files;
use crate::source::{Import, Source};

/// The maximum length of a chain of imports. The limit ends a path that refers to itself.
const STEPS_MAX: usize = 16;

/// All modules of one target, the root first.
pub(crate) struct Modules {
    all: Vec<Module>,
}

struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    source: Source,
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// A module itself.
    Module(usize),
    /// An item in a module.
    Item(usize),
}

impl Modules {
    /// Reads the target whose root is this file.
    pub(crate) fn of(files: &Files, root: &str) -> Self {
        let mut modules = Self { all: Vec::new() };
        modules.add(files, root, None);
        modules
    }

    fn add(&mut self, files: &Files, file: &str, parent: Option<usize>) -> usize {
        let source = files.get(file).map_or_else(Source::default, |text| Source::read(text));
        let folder = match parent {
            None => folder_of(file),
            Some(_) => folder_of_children(file),
        };
        let declared: Vec<_> = source
            .modules
            .iter()
            .filter_map(|module| {
                let candidates = match &module.path {
                    Some(path) => vec![joined(folder_of(file), path)],
                    None => vec![
                        format!("{folder}/{}.rs", module.name),
                        format!("{folder}/{}/mod.rs", module.name),
                    ],
                };
                let found = candidates.into_iter().find(|name| files.contains_key(name))?;
                Some((module.name.clone(), found))
            })
            .collect();
        let index = self.all.len();
        self.all.push(Module { file: file.to_owned(), parent, children: BTreeMap::new(), source });
        for (name, child) in declared {
            let child = self.add(files, &child, Some(index));
            self.all[index].children.insert(name, child);
        }
        index
    }

    /// Returns the pairs of files (user, used) with the first line of each use.
    pub(crate) fn edges(&self) -> BTreeMap<(&str, &str), usize> {
        let mut edges = BTreeMap::new();
        for (from, to, line) in (0..self.all.len()).flat_map(|index| self.uses(index)) {
            let first: &mut usize = edges.entry((from, to)).or_insert(line);
            *first = (*first).min(line);
        }
        edges
    }

    /// Returns the files that a module uses, with the lines.
    fn uses(&self, index: usize) -> impl Iterator<Item = (&str, &str, usize)> {
        let module = &self.all[index];
        let imports = module.source.imports.iter();
        let imported = imports.filter(move |import| !self.is_only_exported(index, import));
        let paths = imported.map(|import| &import.path).chain(&module.source.paths);
        let used =
            paths.filter_map(move |path| Some((self.used(index, &path.segments)?, path.line)));
        used.map(|(used, line)| (module.file.as_str(), self.all[used].file.as_str(), line))
            .filter(|(from, to, _)| from != to)
    }

    /// Returns the module whose items a path uses. Naming a module alone is not a use.
    fn used(&self, from: usize, segments: &[String]) -> Option<usize> {
        match segments.split_last() {
            Some((last, path)) if last == "*" => match self.resolve(from, path, 0)? {
                Target::Module(module) | Target::Item(module) => Some(module),
            },
            _ => match self.resolve(from, segments, 0)? {
                Target::Item(module) => Some(module),
                Target::Module(_) => None,
            },
        }
    }

    /// Reports whether an import is only a re-export: `pub use child::Name` in a module that never
    /// uses the name.
    fn is_only_exported(&self, module: usize, import: &Import) -> bool {
        let is_below = self
            .used(module, &import.path.segments)
            .is_some_and(|used| self.ancestors(used).contains(&module));
        import.is_exported && is_below && !self.all[module].source.words.contains(&import.name)
    }

    fn ancestors(&self, module: usize) -> BTreeSet<usize> {
        std::iter::successors(self.all[module].parent, |parent| self.all[*parent].parent).collect()
    }

    fn resolve(&self, from: usize, segments: &[String], steps: usize) -> Option<Target> {
        if steps > STEPS_MAX {
            return None;
        }
        let (first, mut rest) = segments.split_first()?;
        let mut module = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.all[from].parent?,
            name => match self.all[from].children.get(name) {
                Some(child) => *child,
                None => return self.through_import(from, name, rest, steps),
            },
        };
        while let Some((next, behind)) = rest.split_first() {
            rest = behind;
            module = match next.as_str() {
                "self" => module,
                "super" => self.all[module].parent?,
                name => match self.all[module].children.get(name) {
                    Some(child) => *child,
                    None if self.import_named(module, name).is_some() => {
                        return self.through_import(module, name, rest, steps);
                    }
                    None => return Some(Target::Item(module)),
                },
            };
        }
        Some(Target::Module(module))
    }

    /// Resolves a name that a module imports. `None` if the name is outside the crate.
    fn through_import(
        &self,
        module: usize,
        name: &str,
        rest: &[String],
        steps: usize,
    ) -> Option<Target> {
        let import = self.import_named(module, name)?;
        let mut segments = import.path.segments.clone();
        segments.extend_from_slice(rest);
        self.resolve(module, &segments, steps + 1)
    }

    fn import_named(&self, module: usize, name: &str) -> Option<&Import> {
        self.all[module].source.imports.iter().find(|import| import.name == name)
    }
}

fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the folder of a file's submodules: the folder of `mod.rs`, or the folder with the file's
/// name.
fn folder_of_children(file: &str) -> &str {
    file.strip_suffix("/mod.rs").unwrap_or(file.trim_end_matches(".rs"))
}

fn joined(dir: &str, path: &str) -> String {
    let mut parts: Vec<&str> = dir.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
