//! `cargo xtask docs`: the documentation as a site with search, by mdBook. The sources keep the layout of the
//! repository, so that the same links work there and on the site. The pages are not checked here, see
//! `pages.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::pages::{self, Pages, SUMMARY};
use super::terms;
use xtask_tools::{process, progress, published, workspace};

/// The page with all search terms, which only the site has.
const INDEX: &str = "terms.md";
const README: &str = "README.md";

/// Text below the options in `docs --help`.
pub const AFTER_HELP: &str = "\
The site is in target/book/index.html; no server is needed to read it. The first time, cargo
builds mdBook (MPL-2.0, a tool beside the product) into the cache, which takes some minutes.
`cargo xtask check --only pages` checks links, contents and search terms.";

/// Build the site of the documentation, with search, into `target/book`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Registry of the release that the pages are about, in place of the placeholder
    #[arg(long, value_name = "REGISTRY", default_value = published::REGISTRY)]
    registry: String,
}

/// Runs `cargo xtask docs`.
///
/// # Errors
/// Fails if mdBook is missing and cannot be built, or fails.
pub fn run(args: &Args) -> Result<()> {
    let (root, target) = (workspace::root(), workspace::target_dir());
    let (sources, book) = (target.join("book-sources"), target.join("book"));
    let mut pages = pages::all()?;
    for text in pages.values_mut() {
        *text = text.replace(published::REGISTRY, &args.registry);
    }
    if sources.exists() {
        fs::remove_dir_all(&sources).with_context(|| format!("cannot remove `{}`", sources.display()))?;
    }
    let put = |path: &Path, content: &[u8]| {
        let path = sources.join(path);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, content));
        written.with_context(|| format!("cannot write `{}`", path.display()))
    };
    for (path, text) in pages.iter().filter(|(path, _)| *path != Path::new(SUMMARY)) {
        put(&staged(path), with_links_of_the_site(path, text, &pages).as_bytes())?;
    }
    for path in pages::files_below(Path::new("docs"))?.iter().filter(|path| !pages.contains_key(*path)) {
        put(path, &fs::read(root.join(path)).with_context(|| format!("cannot read `{}`", path.display()))?)?;
    }
    let index = with_links_of_the_site(Path::new(INDEX), &terms::index(&pages), &pages);
    put(Path::new(INDEX), index.as_bytes())?;
    put(Path::new("SUMMARY.md"), summary(&pages).as_bytes())?;
    let mut mdbook = Command::new(xtask_setup::book_builder()?);
    mdbook.arg("build").arg(root).arg("--dest-dir").arg(&book).env("MDBOOK_BOOK__SRC", &sources);
    process::run(&mut mdbook)?;
    progress::note(&format!("the site is {}", book.join("index.html").display()));
    Ok(())
}

/// Returns the contents of the site, with links from its root, the pages of folders below their lists, and the index.
fn summary(pages: &Pages) -> String {
    let mut summary = String::new();
    for line in pages.get(Path::new(SUMMARY)).map_or("", String::as_str).lines() {
        let link =
            pages::links(line).first().and_then(|link| Some((*link, pages::target(Path::new(SUMMARY), link)?.0)));
        let Some((link, path)) = link else {
            summary.extend([line, "\n"]);
            continue;
        };
        summary.push_str(&line.replace(&format!("]({link})"), &format!("]({})", staged(&path).display())));
        summary.push('\n');
        let indent = " ".repeat(2 + line.len() - line.trim_start().len());
        for (below, text) in pages.iter().filter(|(each, _)| pages::list_of(each).as_ref() == Some(&path)) {
            let title = pages::headings(text).first().copied().unwrap_or_default();
            summary.push_str(&format!("{indent}- [{title}]({})\n", below.display()));
        }
    }
    summary.push_str(&format!("\n[Index of terms]({INDEX})\n"));
    summary
}

/// Adapts links to the site: links to files that it does not have, such as sources, become their texts, and those to a
/// `README.md` lead to the [`index.md`](staged) in its place.
fn with_links_of_the_site(page: &Path, text: &str, pages: &Pages) -> String {
    let is_on_site = |path: &Path| {
        path != Path::new(SUMMARY)
            && (pages.contains_key(path) || (path.starts_with("docs") && path.extension().is_some()))
    };
    let mut text = text.to_owned();
    for link in pages::links(&text.clone()) {
        let Some((path, _)) = pages::target(page, link) else { continue };
        let end = format!("]({link})");
        if is_on_site(&path) {
            if path.ends_with(README) {
                text = text.replace(&end, &end.replace(README, "index.md"));
            }
            continue;
        }
        while let Some(at) = text.find(&end) {
            let Some(begin) = text[..at].rfind('[') else { break };
            text.replace_range(at..at + end.len(), "");
            text.remove(begin);
        }
    }
    text
}

/// Returns the path of a page on the site: a `README.md` is the index of its folder, which mdBook names so, but not in
/// links.
fn staged(path: &Path) -> PathBuf {
    if path.ends_with(README) { path.with_file_name("index.md") } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        [
            (SUMMARY, "# Summary\n\n[Home](../README.md)\n- [TLS](tls.md)\n- [Decisions](adr/README.md)\n"),
            ("README.md", "# Home\n"),
            ("docs/tls.md", "# TLS\n"),
            ("docs/adr/README.md", "# Decisions\n"),
            ("docs/adr/0001-x.md", "# 1. A reason\n"),
        ]
        .map(|(path, text)| (path.into(), text.to_owned()))
        .into()
    }

    #[test]
    fn the_summary_has_links_from_the_root_and_all_decisions() {
        let expect = "# Summary\n\n[Home](index.md)\n- [TLS](docs/tls.md)\n- [Decisions](docs/adr/index.md)\n  \
                      - [1. A reason](docs/adr/0001-x.md)\n\n[Index of terms](terms.md)\n";
        assert_eq!(summary(&pages()), expect);
    }

    #[test]
    fn links_lead_to_pages_of_the_site_or_become_text() {
        let text = "[a](tls.md#x) [`b`](../src/lib.rs), ![c](images/c.svg) [d](../src/lib.rs) [e](https://e.test/) \
                    [f](SUMMARY.md) [g](adr/README.md#h)";
        let expect = "[a](tls.md#x) `b`, ![c](images/c.svg) d [e](https://e.test/) f [g](adr/index.md#h)";
        assert_eq!(with_links_of_the_site(Path::new("docs/page.md"), text, &pages()), expect);
    }
}
