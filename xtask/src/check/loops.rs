//! Import loops are kept small: the largest set of files of a crate that import each other has a limit. A path counts
//! for the file that defines the item, through re-exports; tests and methods of values do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use xtask_tools::workspace;

/// Crates, with the number of files that their largest loop may have.
const LIMITS: [(&str, usize); 3] = [("control", 15), ("datapath", 5), ("proxy", 10)];

/// Re-exports followed one after the other. Deeper ones are loops of names.
const MAX_DEPTH: usize = 16;

/// Path of a module or an item, from the root of the crate.
type Names = Vec<String>;

#[derive(Default)]
struct Module {
    file: String,
    items: BTreeSet<String>,
    /// Names, the paths that they stand for, and whether others may use them.
    uses: Vec<(String, Names, bool)>,
    globs: Vec<Names>,
    /// Paths of two or more names, outside of `use`.
    paths: BTreeSet<Names>,
    words: BTreeSet<String>,
}

/// What a path leads to.
enum Target {
    Module(Names),
    /// An item, which this file defines.
    Item(String),
}

#[derive(Default)]
struct Modules(BTreeMap<Names, Module>);

/// Checks the loops of all crates with a limit.
///
/// # Errors
/// Fails if a loop is larger; the error names its files.
pub(super) fn run() -> Result<()> {
    let mut findings = Vec::new();
    for (name, limit) in LIMITS {
        let mut files = BTreeMap::new();
        read(&workspace::root().join("ingress-userspace/crates").join(name).join("src"), "", &mut files)?;
        let largest = largest_loop(&imports(&files));
        if largest.len() > limit {
            let (count, list) = (largest.len(), largest.join(", "));
            findings.push(format!("`{name}`: {count} files import each other, {limit} are allowed: {list}"));
        }
    }
    if !findings.is_empty() {
        bail!("move what these files share to a file that imports none of them:\n  {}", findings.join("\n  "));
    }
    Ok(())
}

/// Reads the Rust files of a directory, by their paths below it.
fn read(directory: &Path, prefix: &str, files: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list `{}`", directory.display()))? {
        let path = entry?.path();
        let name = format!("{prefix}{}", path.file_name().unwrap_or_default().display());
        if path.is_dir() {
            read(&path, &format!("{name}/"), files)?;
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
            files.insert(name, text);
        }
    }
    Ok(())
}

/// Returns the files that each file imports.
fn imports(files: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<String>> {
    let mut modules = Modules::default();
    modules.add_file(files, "lib.rs", Vec::new());
    let mut imports: BTreeMap<_, BTreeSet<_>> = files.keys().map(|file| (file.as_str(), BTreeSet::new())).collect();
    for (at, module) in &modules.0 {
        let used = module.uses.iter().filter(|(alias, _, is_exported)| !is_exported || module.words.contains(alias));
        let words = module.words.iter().filter(|_| !module.globs.is_empty()).map(|word| vec![word.clone()]);
        let paths = used.map(|(_, path, _)| path.clone()).chain(module.paths.iter().cloned()).chain(words);
        for path in paths {
            if let Some(Target::Item(file)) = modules.resolve(at, &path, 0)
                && file != module.file
                && let Some(imported) = imports.get_mut(module.file.as_str())
            {
                imported.insert(file);
            }
        }
    }
    imports
}

/// Returns the largest set of files that import each other; empty if there is none.
fn largest_loop(imports: &BTreeMap<&str, BTreeSet<String>>) -> Vec<String> {
    let of = |file: &str| imports.get(file).into_iter().flatten().cloned();
    let reached = |file: &str| {
        let (mut reached, mut open) = (BTreeSet::new(), of(file).collect::<Vec<_>>());
        while let Some(next) = open.pop() {
            open.extend(of(&next).filter(|_| !reached.contains(&next)));
            reached.insert(next);
        }
        reached
    };
    let all: BTreeMap<_, _> = imports.keys().map(|file| (*file, reached(file))).collect();
    let mutual =
        |a: &str, b: &str| all.get(a).is_some_and(|a| a.contains(b)) && all.get(b).is_some_and(|b| b.contains(a));
    let loops = all.keys().map(|a| all.keys().filter(|b| mutual(a, b)).map(|b| (*b).to_owned()).collect());
    loops.max_by_key(Vec::len).unwrap_or_default()
}

/// Returns the identifiers and the punctuation of a text, without comments, literals and lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let mark = if rest.starts_with("::") { 2 } else { first.len_utf8() };
        let length = skipped(rest).unwrap_or_else(|| {
            let length = if word > 0 { word } else { mark };
            tokens.extend((!first.is_whitespace()).then_some(&rest[..length]));
            length
        });
        rest = &rest[length..];
    }
    tokens
}

/// Returns the length of the comment, literal or lifetime at the beginning of a text.
fn skipped(text: &str) -> Option<usize> {
    let behind = |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    let comment = [("//", "\n"), ("/*", "*/")].into_iter().find(|(begin, _)| text.starts_with(begin));
    let raw = text.trim_start_matches(['b', 'c']).strip_prefix('r').map(|raw| raw.trim_start_matches('#'));
    if let Some((begin, end)) = comment {
        return Some(behind(begin.len(), end));
    }
    if let Some(quoted) = raw.filter(|raw| raw.starts_with('"')) {
        let begin = text.len() - quoted.len();
        return Some(behind(begin + 1, &format!("\"{}", "#".repeat(text[..begin].matches('#').count()))));
    }
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = &text[1..];
    if quote == '\'' && !inner.starts_with('\\') && inner.chars().nth(1) != Some('\'') {
        return Some(1 + inner.find(|c| !is_name(c)).unwrap_or(0));
    }
    let mut is_escaped = false;
    let end = inner.find(|c| {
        let (ends, escapes) = (c == quote && !is_escaped, c == '\\' && !is_escaped);
        is_escaped = escapes;
        ends
    });
    Some(end.map_or(text.len(), |end| end + 2))
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the index behind the item at `at`: behind its block or its semicolon.
fn behind(tokens: &[&str], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" if depth == 0 => return index,
            "}" if depth == 1 => return index + 1,
            "}" | ")" | "]" => depth -= 1,
            ";" if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

// === impl Module ===

impl Module {
    /// Adds the tree of a `use` that begins at `at`; returns the index behind it.
    fn add_tree(&mut self, tokens: &[&str], mut at: usize, prefix: &[String], is_exported: bool) -> usize {
        let mut path = prefix.to_vec();
        while let Some(&token) = tokens.get(at) {
            at += 1;
            match token {
                "{" => {
                    while tokens.get(at).is_some_and(|token| *token != "}") {
                        at = self.add_tree(tokens, at, &path, is_exported);
                        at += usize::from(tokens.get(at) == Some(&","));
                    }
                    return at + 1;
                }
                "*" => {
                    self.globs.push(path);
                    return at;
                }
                "::" => {}
                name => {
                    if name != "self" || path.is_empty() {
                        path.push(name.to_owned());
                    }
                    if tokens.get(at) != Some(&"::") {
                        let renamed = if tokens.get(at) == Some(&"as") { tokens.get(at + 1) } else { None };
                        let alias = renamed.map_or_else(|| path.last().cloned(), |name| Some((*name).to_owned()));
                        self.uses.push((alias.unwrap_or_default(), path, is_exported));
                        return at + if renamed.is_some() { 2 } else { 0 };
                    }
                }
            }
        }
        at
    }
}

// === impl Modules ===

impl Modules {
    fn add_file(&mut self, files: &BTreeMap<String, String>, file: &str, at: Names) {
        let Some(text) = files.get(file) else { return };
        self.add(files, file, at, &tokens(text));
    }

    fn add(&mut self, files: &BTreeMap<String, String>, file: &str, here: Names, tokens: &[&str]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let (mut at, mut depth) = (0, 0_usize);
        while let Some(&token) = tokens.get(at) {
            let before = at.checked_sub(1).and_then(|before| tokens.get(before)).copied().unwrap_or_default();
            let next = tokens.get(at + 1).copied().unwrap_or_default();
            at += 1;
            match token {
                "#" if tokens[at..].starts_with(&["[", "cfg", "(", "test"]) => {
                    // Other attributes of the item may follow.
                    while tokens.get(at - 1) == Some(&"#") {
                        at += tokens[at..].iter().position(|token| *token == "]").map_or(1, |end| end + 2);
                    }
                    at = behind(tokens, at - 1);
                }
                "use" if next != "<" => at = module.add_tree(tokens, at, &[], matches!(before, "pub" | ")")),
                "mod" if depth == 0 && next.starts_with(is_name) => {
                    let end = behind(tokens, at);
                    let child: Names = here.iter().cloned().chain([next.to_owned()]).collect();
                    if tokens.get(at + 1) == Some(&"{") {
                        self.add(files, file, child, &tokens[at + 2..end - 1]);
                    } else {
                        let path = child.join("/");
                        let own = [format!("{path}.rs"), format!("{path}/mod.rs")];
                        own.iter().for_each(|file| self.add_file(files, file, child.clone()));
                    }
                    at = end;
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" if depth == 0 => {
                    module.items.insert(next.to_owned());
                }
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                name if name.starts_with(is_name) && !matches!(before, "." | "::") => {
                    let mut path = vec![name.to_owned()];
                    while let Some(["::", name]) = tokens.get(at..at + 2)
                        && name.starts_with(is_name)
                    {
                        path.push((*name).to_owned());
                        at += 2;
                    }
                    module.words.insert(name.to_owned());
                    module.paths.extend((path.len() > 1).then_some(path));
                }
                _ => {}
            }
        }
        self.0.insert(here, module);
    }

    /// Returns the target of a path that module `at` names; `None` if it is outside of the crate.
    fn resolve(&self, at: &[String], path: &[String], depth: usize) -> Option<Target> {
        let mut here = at.to_vec();
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => here.clear(),
                "self" => {}
                "super" => drop(here.pop()?),
                name => match self.find(&here, name, index + 1 == path.len(), depth)? {
                    Target::Module(module) => here = module,
                    item @ Target::Item(_) => return Some(item),
                },
            }
        }
        Some(Target::Module(here))
    }

    /// Finds a name in module `at`. The last name of a path is rather an item than a module.
    fn find(&self, at: &[String], name: &str, is_last: bool, depth: usize) -> Option<Target> {
        let module = self.0.get(at).filter(|_| depth < MAX_DEPTH)?;
        let child: Names = at.iter().cloned().chain([name.to_owned()]).collect();
        let is_module = self.0.contains_key(&child);
        if module.items.contains(name) && (is_last || !is_module) {
            return Some(Target::Item(module.file.clone()));
        }
        if is_module {
            return Some(Target::Module(child));
        }
        let mut uses = module.uses.iter().filter(|(alias, ..)| alias == name);
        let used = uses.find_map(|(_, path, _)| self.resolve(at, path, depth + 1));
        used.or_else(|| {
            module.globs.iter().find_map(|glob| match self.resolve(at, glob, depth + 1)? {
                Target::Module(module) if module != at => self.find(&module, name, is_last, depth + 1),
                Target::Module(_) | Target::Item(_) => None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the imports of these files, as `from > to`, and the largest loop.
    fn found(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let files = files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        let imports = imports(&files);
        let pairs = imports.iter().flat_map(|(from, to)| to.iter().map(move |to| format!("{from} > {to}")));
        (pairs.collect(), largest_loop(&imports))
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines_the_item() {
        let (imports, largest) = found(&[
            ("lib.rs", "mod a;\npub mod b;\npub use a::X as Y;"),
            ("a.rs", "use super::b::{self, c::{Z, W}};\npub struct X(Z);"),
            ("b/mod.rs", "pub mod c;"),
            ("b/c.rs", "pub enum Z { One }\npub const W: u8 = 0;\nfn f() -> crate::Y { todo!() }"),
        ]);
        assert_eq!(imports, ["a.rs > b/c.rs", "b/c.rs > a.rs"]);
        assert_eq!(largest, ["a.rs", "b/c.rs"]);
    }

    #[test]
    fn tests_comments_and_literals_are_no_imports() {
        let text = "// crate::b::B\n/* crate::b::B */ pub fn a<'l>(c: char) -> &'l str {\n\
                    if c == '\"' || c == '\\'' { r#\"crate::b::\"B\"# } else { \"\\\" crate::b::B\" } }\n\
                    #[cfg(test)]\n#[allow(unused)]\nfn t(b: crate::b::B) {}\n#[cfg(test)]\nmod tests { use crate::b::B; }";
        let (imports, largest) = found(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", text),
            ("b.rs", "use crate::a::a;\npub struct B;\nfn b() -> impl Sized + use<> { a('b') }"),
        ]);
        assert_eq!((imports, largest.len()), (vec!["b.rs > a.rs".to_owned()], 0));
    }

    #[test]
    fn globs_inner_modules_and_modules_with_the_name_of_an_item_are_resolved() {
        let (imports, _) = found(&[
            ("lib.rs", "mod a; mod b; mod c;\nuse a::*;\nfn f() { x(); c::c::y(); }"),
            ("a.rs", "pub fn x() { inner::z() }\nmod inner { pub fn z() { super::super::c::c() } }"),
            ("b.rs", "use crate::c;"),
            ("c/mod.rs", "pub mod c;\npub fn c() {}"),
            ("c/c.rs", "pub fn y() { self::y(); Self::y() }"),
        ]);
        assert_eq!(imports, ["a.rs > c/mod.rs", "lib.rs > a.rs", "lib.rs > c/c.rs"]);
    }
}
