//! Reads Rust source for the import rules: words without comments and strings, and the paths that a
//! file names.
//!
//! This is not a full parser: it misses code that macros generate, and method calls.

use std::collections::BTreeSet;

/// A word, sign or string with its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
    is_string: bool,
}

/// Returns the string literals of a file without its unit tests.
pub(crate) fn strings(text: &str) -> Vec<Token<'_>> {
    let mut tokens = without_unit_tests(tokens(text));
    tokens.retain(|token| token.is_string);
    tokens
}

/// The references from a file to other files.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) modules: Vec<ModuleDeclaration>,
    pub(crate) imports: Vec<Import>,
    /// The paths in expressions and types.
    pub(crate) paths: Vec<UsedPath>,
    /// The words outside imports, which show whether a file uses a name that it re-exports.
    pub(crate) words: BTreeSet<String>,
}

/// A declaration `mod name;`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ModuleDeclaration {
    pub(crate) name: String,
    /// The value of `#[path = "…"]`.
    pub(crate) path: Option<String>,
}

/// One name of a `use`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) path: UsedPath,
    /// The local name, or `*` for a glob import.
    pub(crate) name: String,
    pub(crate) is_exported: bool,
}

/// A path with its line, relative to the file's own module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsedPath {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
}

impl Source {
    /// Reads a file without its unit tests.
    pub(crate) fn read(text: &str) -> Self {
        let mut tokens = without_unit_tests(tokens(text));
        tokens.retain(|token| !token.is_string);
        let mut reader = Reader { tokens: &tokens, at: 0, depth: Depth::default() };
        let mut source = Self::default();
        while reader.at < tokens.len() {
            reader.step(text, &mut source);
        }
        source
    }
}

/// The nesting of inline modules in a file. The first `super` in an inline module leaves only that
/// module.
#[derive(Default)]
struct Depth {
    braces: usize,
    /// The number of open braces at the start of each inline module.
    inline_modules: Vec<usize>,
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    depth: Depth,
}

impl<'a> Reader<'a> {
    fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |token| token.text)
    }

    fn step(&mut self, text: &str, source: &mut Source) {
        let token = self.tokens[self.at];
        let follows = self.text(self.at + 1);
        let starts = self.at == 0 || !["::", "."].contains(&self.text(self.at - 1));
        match token.text {
            "{" => self.depth.braces += 1,
            "}" => {
                self.depth.braces = self.depth.braces.saturating_sub(1);
                if self.depth.inline_modules.last() == Some(&self.depth.braces) {
                    self.depth.inline_modules.pop();
                }
            }
            "mod" if self.text(self.at + 2) == ";" => {
                let path = path_attribute(text, token.line);
                source.modules.push(ModuleDeclaration { name: follows.to_owned(), path });
                self.at += 1;
            }
            "mod" if self.text(self.at + 2) == "{" => {
                self.depth.inline_modules.push(self.depth.braces);
            }
            // `use<…>` in a type captures lifetimes.
            "use" if starts && follows != "<" => return self.import(source),
            word if is_word(word) && starts && follows == "::" => return self.path(source),
            word if is_word(word) => {
                source.words.insert(word.to_owned());
            }
            _ => {}
        }
        self.at += 1;
    }

    fn import(&mut self, source: &mut Source) {
        let is_exported =
            self.at > 0 && (self.text(self.at - 1) == "pub" || self.text(self.at - 1) == ")");
        self.at += 1;
        let mut found = Vec::new();
        self.use_tree(&mut Vec::new(), &mut found);
        source.imports.extend(found.into_iter().map(|(path, name)| {
            let segments = self.seen_from_the_file(path.segments);
            let path = UsedPath { segments, line: path.line };
            Import { path, name, is_exported }
        }));
    }

    /// Reads a tree such as `a::{b, c::d as e}` into paths and local names.
    fn use_tree(&mut self, prefix: &mut Vec<String>, found: &mut Vec<(UsedPath, String)>) {
        let length = prefix.len();
        loop {
            let token = self.text(self.at);
            self.at += 1;
            match token {
                "::" => {}
                "{" => {
                    self.use_group(prefix, found);
                    break;
                }
                "as" => {
                    let name = self.text(self.at).to_owned();
                    self.at += 1;
                    self.named(prefix, name, found);
                    break;
                }
                word => prefix.push(word.to_owned()),
            }
            if [",", "}", ";", ""].contains(&self.text(self.at)) {
                let name = prefix.last().cloned().unwrap_or_default();
                self.named(prefix, name, found);
                break;
            }
        }
        prefix.truncate(length);
    }

    /// Reads the part of a `use` between braces.
    fn use_group(&mut self, prefix: &mut Vec<String>, found: &mut Vec<(UsedPath, String)>) {
        while !["}", ""].contains(&self.text(self.at)) {
            match self.text(self.at) {
                "," => self.at += 1,
                _ => self.use_tree(prefix, found),
            }
        }
        self.at += 1;
    }

    fn named(&self, path: &[String], name: String, found: &mut Vec<(UsedPath, String)>) {
        let line = self.tokens[self.at - 1].line;
        let mut segments = path.to_vec();
        let mut name = name;
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
            if name == "self" {
                name = segments.last().cloned().unwrap_or_default();
            }
        }
        found.push((UsedPath { segments, line }, name));
    }

    fn path(&mut self, source: &mut Source) {
        let line = self.tokens[self.at].line;
        let mut segments = vec![self.text(self.at).to_owned()];
        self.at += 1;
        while self.text(self.at) == "::" && is_word(self.text(self.at + 1)) {
            segments.push(self.text(self.at + 1).to_owned());
            self.at += 2;
        }
        source.words.insert(segments[0].clone());
        let segments = self.seen_from_the_file(segments);
        source.paths.push(UsedPath { segments, line });
        // Skips the `::` before generic arguments.
        if self.text(self.at) == "::" {
            self.at += 1;
        }
    }

    /// Rewrites a path from an inline module `mod inline { … }`, where the first `super` is the
    /// file.
    fn seen_from_the_file(&self, mut segments: Vec<String>) -> Vec<String> {
        for _ in &self.depth.inline_modules {
            match segments.as_slice() {
                [first, second, ..] if first == "super" && second == "super" => {
                    segments.remove(0);
                }
                [first, ..] if first == "super" => "self".clone_into(&mut segments[0]),
                _ => {}
            }
        }
        segments
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the value of `#[path = "…"]` above a declaration in this line.
fn path_attribute(text: &str, line: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let above = lines.get(..line - 1)?.iter().rev();
    let attributes = above.take_while(|above| above.trim_start().starts_with("#["));
    attributes
        .filter_map(|attribute| attribute.trim().strip_prefix("#[path = \""))
        .next()
        .map(|rest| rest.trim_end_matches("\"]").to_owned())
}

/// Removes every item with `#[cfg(test)]`.
fn without_unit_tests(tokens: Vec<Token<'_>>) -> Vec<Token<'_>> {
    const CFG_TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let ahead = tokens[at..].iter().map(|token| token.text);
        if ahead.take(CFG_TEST.len()).eq(CFG_TEST) {
            at = end_of_item(&tokens, at + CFG_TEST.len());
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Returns the index after the `;` or the last `}` of the item that starts at `start`.
fn end_of_item(tokens: &[Token<'_>], start: usize) -> usize {
    let mut braces = 0;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.text {
            "{" => braces += 1,
            "}" if braces == 1 => return at + 1,
            "}" => braces -= 1,
            ";" if braces == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Splits the text into words, signs and strings, without comments and characters.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest, 0),
            'r' | 'b' | 'c' if literal(rest) > 0 => literal(rest),
            '\'' => character(rest),
            _ => 0,
        };
        let is_string = length > 0 && rest[..length].ends_with(['"', '#']);
        let skipped = length > 0 && !is_string || first.is_whitespace();
        let length = match () {
            () if length > 0 => length,
            () if is_word(rest) => {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            () if rest.starts_with("::") => 2,
            () => first.len_utf8(),
        };
        if !skipped {
            found.push(Token { text: &rest[..length], line, is_string });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        match text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the end of a string with escapes whose opening quote is at `open`.
fn string(text: &str, open: usize) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(open + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a literal with a prefix, such as `r#"…"#` or `b"…"`. Zero if there is
/// none.
fn literal(text: &str) -> usize {
    let prefix = ["br", "cr", "r", "b", "c"].into_iter().find(|prefix| {
        let behind = text.strip_prefix(*prefix).unwrap_or("");
        behind.trim_start_matches('#').starts_with('"')
    });
    let Some(prefix) = prefix else { return 0 };
    let behind = &text[prefix.len()..];
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    if !prefix.contains('r') {
        return if hashes == 0 { string(text, prefix.len()) } else { 0 };
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let open = prefix.len() + hashes + 1;
    text[open..].find(&end).map_or(text.len(), |at| open + at + end.len())
}

/// Returns the length of a character literal, or of a lifetime's quote.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => text[3..].find('\'').map_or(text.len(), |at| at + 4),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod reads {
    use super::*;

    fn imports(text: &str) -> Vec<(String, String, bool)> {
        let imports = Source::read(text).imports.into_iter();
        imports.map(|it| (it.path.segments.join("::"), it.name, it.is_exported)).collect()
    }

    fn paths(text: &str) -> Vec<(String, usize)> {
        let paths = Source::read(text).paths.into_iter();
        paths.map(|it| (it.segments.join("::"), it.line)).collect()
    }

    #[test]
    fn every_name_of_a_use_tree() {
        let text = "pub(crate) use a::{self, b::C as D, e::*};\nuse crate::f;\nuse self::g::H;";
        let names = imports(text);
        let expected = [
            ("a", "a", true),
            ("a::b::C", "D", true),
            ("a::e::*", "*", true),
            ("crate::f", "f", false),
            ("self::g::H", "H", false),
        ];
        assert_eq!(names, expected.map(|(path, name, out)| (path.into(), name.into(), out)));
    }

    #[test]
    fn paths_in_code_but_not_in_comments_and_strings() {
        let text = "fn f<'a>(x: &'a crate::A) {\n  // crate::no\n  b::c::<u8>('\"', \"crate::no\", r#\"crate::\"no\"#);\n  /* crate::no /* */ */ super::d() }";
        let expected = [("crate::A", 1), ("b::c", 3), ("super::d", 4)];
        assert_eq!(paths(text), expected.map(|(path, line)| (path.to_owned(), line)));
    }

    #[test]
    fn no_unit_tests_and_modules_with_their_files() {
        let text = "#[path = \"../x/y.rs\"]\nmod y;\nmod z;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nmod more { use super::z; }\nuse z::Z;";
        let source = Source::read(text);
        let y = ModuleDeclaration { name: "y".into(), path: Some("../x/y.rs".into()) };
        assert_eq!(source.modules, [y, ModuleDeclaration { name: "z".into(), path: None }]);
        assert_eq!(source.imports.len(), 1);
    }

    #[test]
    fn super_in_an_inline_module_is_the_file() {
        let text = "mod inline { use super::a::B; fn f() { super::super::c() } }\nuse super::d;";
        assert_eq!(imports(text)[0].0, "self::a::B");
        assert_eq!(paths(text)[0].0, "super::c");
        assert_eq!(imports(text)[1].0, "super::d");
    }
}
