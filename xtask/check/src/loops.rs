//! Limits the loops of imports: the largest set of files of a crate that import each other. A path counts for the file
//! that defines the item, through re-exports; tests and methods of values do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Ident, ImplItemFn, Item, ItemConst, ItemEnum, ItemFn, ItemImpl, ItemMacro, ItemMod, ItemStatic,
    ItemStruct, ItemTrait, ItemType, ItemUse, Macro, PatIdent, Signature, UseGroup, UseName, UsePath, UseRename,
    UseTree, Visibility,
    visit::{self, Visit},
};
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

/// Target of a path.
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
        let largest = largest_loop(&imports(&files)?);
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
fn imports(files: &BTreeMap<String, String>) -> Result<BTreeMap<&str, BTreeSet<String>>> {
    let mut modules = Modules::default();
    modules.add_file(files, "lib.rs", Vec::new())?;
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
    Ok(imports)
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

/// Returns whether an item is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

// === impl Module ===

impl Module {
    /// Adds the names of a `use`.
    fn add_tree(&mut self, tree: &UseTree, prefix: &[String], is_exported: bool) {
        let path = |name: &Ident| [prefix, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(UsePath { ident, tree, .. }) => self.add_tree(tree, &path(ident), is_exported),
            UseTree::Name(UseName { ident }) if ident == "self" => {
                self.uses.push((prefix.last().cloned().unwrap_or_default(), prefix.to_vec(), is_exported));
            }
            UseTree::Name(UseName { ident }) => self.uses.push((ident.to_string(), path(ident), is_exported)),
            UseTree::Rename(UseRename { ident, rename, .. }) => {
                let path = if ident == "self" { prefix.to_vec() } else { path(ident) };
                self.uses.push((rename.to_string(), path, is_exported));
            }
            UseTree::Glob(_) => self.globs.push(prefix.to_vec()),
            UseTree::Group(UseGroup { items, .. }) => {
                items.iter().for_each(|tree| self.add_tree(tree, prefix, is_exported));
            }
        }
    }

    fn add_path(&mut self, path: Names) {
        self.words.extend(path.first().cloned());
        self.paths.extend((path.len() > 1).then_some(path));
    }

    /// Adds the paths among the tokens of a macro, of which nothing else is known.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Names::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 => path.push(name.to_string()),
                TokenTree::Ident(name) => self.add_path(std::mem::replace(&mut path, vec![name.to_string()])),
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.add_path(std::mem::take(&mut path)),
            }
            colons = 0;
        }
        self.add_path(path);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_tree(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add_path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    /// A lone name in a pattern may be a constant.
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.words.insert(pattern.ident.to_string());
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }
}

// === impl Modules ===

impl Modules {
    fn add_file(&mut self, files: &BTreeMap<String, String>, file: &str, at: Names) -> Result<()> {
        let Some(text) = files.get(file) else { return Ok(()) };
        let parsed = syn::parse_file(text).with_context(|| format!("`{file}` is no Rust"))?;
        self.add(files, file, at, &parsed.items)
    }

    fn add(&mut self, files: &BTreeMap<String, String>, file: &str, here: Names, items: &[Item]) -> Result<()> {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            let (name, attributes) = match item {
                Item::Mod(ItemMod { attrs, .. }) if is_test(attrs) => continue,
                Item::Mod(ItemMod { ident, content, .. }) => {
                    let child = [&here[..], &[ident.to_string()]].concat();
                    match content {
                        Some((_, items)) => self.add(files, file, child, items)?,
                        None => {
                            let path = child.join("/");
                            self.add_file(files, &format!("{path}.rs"), child.clone())?;
                            self.add_file(files, &format!("{path}/mod.rs"), child)?;
                        }
                    }
                    continue;
                }
                Item::Const(ItemConst { ident, attrs, .. })
                | Item::Enum(ItemEnum { ident, attrs, .. })
                | Item::Fn(ItemFn { sig: Signature { ident, .. }, attrs, .. })
                | Item::Static(ItemStatic { ident, attrs, .. })
                | Item::Struct(ItemStruct { ident, attrs, .. })
                | Item::Trait(ItemTrait { ident, attrs, .. })
                | Item::Type(ItemType { ident, attrs, .. }) => (Some(ident), attrs),
                Item::Impl(ItemImpl { attrs, .. })
                | Item::Macro(ItemMacro { attrs, .. })
                | Item::Use(ItemUse { attrs, .. }) => (None, attrs),
                _ => continue,
            };
            if !is_test(attributes) {
                module.items.extend(name.map(Ident::to_string));
                module.visit_item(item);
            }
        }
        self.0.insert(here, module);
        Ok(())
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
        let imports = imports(&files).expect("Rust");
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
