//! Checks the pages of the documentation as a site. Each relative link leads to a file, and to a heading there.
//! Each page is in `docs/SUMMARY.md`, or in a folder below `docs` with its `README.md` there. Each value of the
//! chart exists. Each address of a release begins with the one placeholder. Each response of the proxy is explained. Each search term has a heading ([`terms`](super::terms)).
//! The check does not ask other servers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::terms;
use xtask_tools::{published, workspace};

/// The contents of the site, in order. Its links are relative to `docs`.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";
/// Reasons for decisions.
pub(crate) const DECISIONS: &str = "docs/adr";

/// Pages with values of ingress-nginx' chart.
const FOREIGN_VALUES: [&str; 3] = ["docs/migrate/values.md", "docs/migrate/remove.md", "docs/migrate/back.md"];

/// Values of the chart, with their defaults.
const VALUES: &str = "deploy/chart/values.yaml";
/// Beginning of the paths of most values.
const VALUE: &str = "controller.";

/// The texts of the proxy's own responses, and the pages for users who see one.
const RESPONSES: &str = "ingress-userspace/crates/proxy/src/request/error.rs";
const RESPONSE_PAGES: [&str; 2] = ["docs/operate/answers.md", "docs/operate/troubleshooting.md"];

/// Texts of all pages, by their path in the repository.
pub(crate) type Pages = BTreeMap<PathBuf, String>;

/// Checks all pages.
///
/// # Errors
/// Fails if a page has a dead link or is not in the summary, or a search term has no heading.
pub(super) fn run() -> Result<()> {
    let (root, pages) = (workspace::root(), all()?);
    let mut objections = dead_links(&pages, |path| root.join(path).exists());
    let summary = pages.get(Path::new(SUMMARY)).with_context(|| format!("`{SUMMARY}` is missing"))?;
    let listed: Vec<_> = links(summary).into_iter().filter_map(|link| target(Path::new(SUMMARY), link)).collect();
    let is_listed = |path: &Path| listed.iter().any(|(listed, _)| listed == path);
    let is_below_list = |path: &Path| list_of(path).is_some_and(|list| is_listed(&list));
    let unlisted = pages.keys().filter(|path| *path != Path::new(SUMMARY) && !is_listed(path) && !is_below_list(path));
    objections.extend(unlisted.map(|path| format!("`{}` is not in `{SUMMARY}`", path.display())));
    let values = fs::read_to_string(root.join(VALUES)).with_context(|| format!("cannot read `{VALUES}`"))?;
    let values: Value = serde_saphyr::from_str(&values).with_context(|| format!("`{VALUES}` is no YAML"))?;
    objections.extend(unknown_values(&pages, &values));
    let responses = fs::read_to_string(root.join(RESPONSES)).with_context(|| format!("cannot read `{RESPONSES}`"))?;
    let explained: String = RESPONSE_PAGES.iter().filter_map(|page| pages.get(Path::new(page)).cloned()).collect();
    objections.extend(response_texts(&responses).into_iter().filter(|text| !explained.contains(text)).map(|text| {
        format!("no page explains the response `{text}` of `{RESPONSES}`; `{}` has the others", RESPONSE_PAGES[0])
    }));
    let texts = pages.iter().filter(|(path, _)| *path != Path::new(SUMMARY));
    let headings: Vec<_> = texts.flat_map(|(_, text)| headings(text)).collect();
    objections.extend(terms::missing(&headings).into_iter().map(|term| {
        format!("no heading has the search term \"{term}\"; write it into one, or see `xtask/check/src/terms.rs`")
    }));
    objections.extend(pages.iter().flat_map(|(path, text)| {
        registries(text).into_iter().map(move |name| {
            format!("`{}` has `{name}`; the placeholder for a release is `{}/…`", path.display(), published::REGISTRY)
        })
    }));
    if !objections.is_empty() {
        bail!("the pages have faults:\n  {}", objections.join("\n  "));
    }
    Ok(())
}

/// Returns the names in the registry of the placeholder that no release has.
fn registries(text: &str) -> Vec<&str> {
    let host = published::REGISTRY.split('/').next().unwrap_or_default();
    let is_end = |letter: char| letter.is_whitespace() || "`\"'()<>,".contains(letter);
    let names = text.match_indices(host).map(|(at, _)| text[at..].split(is_end).next().unwrap_or_default());
    let of_release = |name: &&str| match name.strip_prefix(published::REGISTRY) {
        Some(rest) => {
            ["/xdp-ingress", "/charts/xdp-ingress"].iter().any(|path| rest.starts_with(path)) || rest.is_empty()
        }
        None => *name == host,
    };
    names.filter(|name| !of_release(name)).collect()
}

/// Returns the `README.md` of a page's folder, if that can stand for the page in the summary: the site lists such pages
/// below it by itself.
pub(crate) fn list_of(page: &Path) -> Option<PathBuf> {
    let folder = page.parent().filter(|folder| folder.parent() == Some(Path::new("docs")))?;
    Some(folder.join("README.md")).filter(|list| list != page)
}

/// Reads all pages: those of `docs`, and those elsewhere that the summary lists.
///
/// # Errors
/// Fails if a page or a folder cannot be read.
pub(crate) fn all() -> Result<Pages> {
    let root = workspace::root();
    let read =
        |path: &Path| fs::read_to_string(root.join(path)).with_context(|| format!("cannot read `{}`", path.display()));
    let summary = read(Path::new(SUMMARY))?;
    let listed = links(&summary).into_iter().filter_map(|link| Some(target(Path::new(SUMMARY), link)?.0));
    let mut paths: Vec<_> = listed.filter(|path| !path.starts_with("docs") && root.join(path).exists()).collect();
    paths.extend(files_below(Path::new("docs"))?);
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.into_iter().map(|path| Ok((path.clone(), read(&path)?))).collect()
}

/// Returns all files below a folder of the repository, by their path in the repository.
///
/// # Errors
/// Fails if a folder cannot be listed.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(workspace::root().join(folder));
    for entry in entries.with_context(|| format!("cannot list `{}`", folder.display()))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the headings of a page, without those in code.
pub(crate) fn headings(markdown: &str) -> Vec<&str> {
    let lines = without_fences(markdown).filter(|line| line.starts_with('#'));
    lines.map(|line| line.trim_start_matches('#').trim()).collect()
}

/// Returns the targets of links and pictures, without those in code.
pub(crate) fn links(markdown: &str) -> Vec<&str> {
    let mut links = Vec::new();
    for line in without_fences(markdown) {
        let mut parts = line.split("](");
        let mut before = parts.next().unwrap_or_default().matches('`').count();
        for part in parts {
            if before.is_multiple_of(2) {
                links.extend(part.split_once(')').map(|(target, _)| target));
            }
            before += part.matches('`').count();
        }
    }
    links
}

/// Returns the path in the repository, and the heading, that a link of `page` leads to; nothing for other servers.
pub(crate) fn target<'a>(page: &Path, link: &'a str) -> Option<(PathBuf, Option<&'a str>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    if path.is_empty() {
        return Some((page.to_owned(), heading));
    }
    let mut found = PathBuf::new();
    for part in page.parent().unwrap_or(Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => drop(found.pop()),
            Component::Normal(name) => found.push(name),
            _ => {}
        }
    }
    Some((found, heading))
}

/// Returns the paths of values that the chart does not have. The changelog may name former ones, and decisions, too.
fn unknown_values(pages: &Pages, values: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let exempt = [&[DECISIONS, "CHANGELOG.md"][..], &FOREIGN_VALUES].concat();
    for (page, text) in pages.iter().filter(|(page, _)| !exempt.iter().any(|exempt| page.starts_with(exempt))) {
        for path in value_paths(text) {
            let mut value = Some(values);
            for key in path.split('.') {
                // Below a value that is no map, or an empty map, users write what they like.
                match value.and_then(Value::as_object).filter(|map| !map.is_empty()) {
                    Some(map) => value = map.get(key),
                    None => break,
                }
            }
            if value.is_none() {
                unknown.push(format!("`{}`: `{path}` is not in `{VALUES}`", page.display()));
            }
        }
    }
    unknown
}

/// Returns the paths of values of the chart that a page names: below [`VALUE`], after `--set`, or in a file of values.
fn value_paths(markdown: &str) -> Vec<String> {
    let path = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(text.len());
        text[..end].trim_end_matches('.').to_owned()
    };
    let mut paths: Vec<_> = markdown.match_indices(VALUE).map(|(at, _)| path(&markdown[at..])).collect();
    let options = markdown.split("--set").skip(1).filter_map(|rest| rest.split_once(' '));
    let set = options.filter(|(option, _)| matches!(*option, "" | "-string" | "-json"));
    paths.extend(set.map(|(_, rest)| path(rest.trim_start_matches('\''))));
    for block in markdown.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let Ok(Value::Object(block)) = serde_saphyr::from_str(block) else { continue };
        if let Some(below) = block.get(VALUE.trim_end_matches('.')).and_then(Value::as_object) {
            paths.extend(block.keys().cloned());
            paths.extend(below.keys().map(|key| format!("{VALUE}{key}")));
        }
    }
    paths.retain(|path| path.as_str() != VALUE.trim_end_matches('.'));
    paths
}

/// Returns the texts of several words in a source, without its tests: the bodies of responses, and no values of fields.
fn response_texts(source: &str) -> Vec<&str> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let texts = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
    let is_body = |text: &&str| {
        text.contains(' ') && !text.contains(['{', '=', '/']) && text.contains(|c: char| c.is_ascii_lowercase())
    };
    texts.filter(is_body).collect()
}

fn dead_links(pages: &Pages, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for (page, text) in pages {
        for link in links(text) {
            let Some((path, heading)) = target(page, link) else { continue };
            let has_heading = |heading: &str| {
                let mut of_page = pages.get(&path).into_iter().flat_map(|text| headings(text));
                of_page.any(|text| anchor(text) == heading)
            };
            if !exists(&path) {
                dead.push(format!("`{}`: `{link}` leads to no file", page.display()));
            } else if heading.is_some_and(|heading| pages.contains_key(&path) && !has_heading(heading)) {
                dead.push(format!("`{}`: `{link}` leads to no heading", page.display()));
            }
        }
    }
    dead
}

/// Returns the anchor of a heading, as GitHub and mdBook form it: of links, only the text counts.
pub(crate) fn anchor(heading: &str) -> String {
    let mut parts = heading.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest));
    let kept = text.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

fn without_fences(markdown: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    markdown.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_release_begin_with_the_placeholder() {
        let good = "oci://registry.example.com/xdp-ingress/charts/xdp-ingress, `registry.example.com/xdp-ingress/xdp-ingress:0.1.0` \
                    of registry.example.com/xdp-ingress at registry.example.com";
        assert_eq!(registries(good), Vec::<&str>::new());
        for wrong in
            ["registry.example.com/x", "registry.example.com/xdp-ingress:1", "registry.example.com/xdp-ingress/chart"]
        {
            assert_eq!(registries(&format!("docker://{wrong} x")), [wrong]);
        }
    }

    #[test]
    fn links_and_headings_in_code_do_not_count() {
        let page = "# A page\n\n[one](a.md) `[no](b.md)` ![two](c.svg)\n\n```sh\n# no\n[no](d.md)\n```\n## Next `x`\n";
        assert_eq!(links(page), ["a.md", "c.svg"]);
        assert_eq!(headings(page), ["A page", "Next `x`"]);
    }

    #[test]
    fn targets_are_paths_of_the_repository() {
        let page = Path::new("docs/start/faq.md");
        for (link, expect) in [
            ("../tls.md#names", Some(("docs/tls.md", Some("names")))),
            ("../../deploy", Some(("deploy", None))),
            ("#top", Some(("docs/start/faq.md", Some("top")))),
            ("https://example.com/x", None),
        ] {
            let expect = expect.map(|(path, heading)| (PathBuf::from(path), heading));
            assert_eq!(target(page, link), expect, "{link}");
        }
    }

    #[test]
    fn a_list_stands_for_the_pages_of_its_folder() {
        for (page, expect) in [
            ("docs/runbooks/NoOwner.md", Some("docs/runbooks/README.md")),
            ("docs/runbooks/README.md", None),
            ("docs/tls.md", None),
            ("README.md", None),
            ("deploy/chart/notes.md", None),
        ] {
            assert_eq!(list_of(Path::new(page)), expect.map(PathBuf::from), "{page}");
        }
    }

    #[test]
    fn anchors_are_those_of_github() {
        for (heading, expect) in [
            ("Session affinity (sticky sessions)", "session-affinity-sticky-sessions"),
            ("`--steer rewrite`: past DNAT", "--steer-rewrite-past-dnat"),
            ("See [TLS](tls.md) 1.3", "see-tls-13"),
        ] {
            assert_eq!(anchor(heading), expect, "{heading}");
        }
    }

    #[test]
    fn values_that_the_chart_lacks_are_found() {
        let values = serde_json::json!({"controller": {"steer": "auto", "service": {"type": ""}, "labels": {}}});
        let text = "the controller. `controller.steer`, --set controller.service.type=x,controller.labels.a=b\n\
                    `controller.steering` controller.service.kind controller.steer.\n--set-string 'imag.tag=1'\n\
                    ```yaml\ncontroller:\n  steer: auto\n  workerz: 1\n```\n";
        let pages = [("docs/a.md", text), ("CHANGELOG.md", text), (FOREIGN_VALUES[0], text)];
        let pages: Pages = pages.map(|(path, text)| (path.into(), text.to_owned())).into();
        let expect = ["controller.steering", "controller.service.kind", "imag.tag", "controller.workerz"];
        let expect = expect.map(|path| format!("`docs/a.md`: `{path}` is not in `{VALUES}`"));
        assert_eq!(unknown_values(&pages, &values), expect);
    }

    #[test]
    fn bodies_of_responses_are_found() {
        let source = "// \"no comment at all\"\nfn f() { answer(\"two words\") }\n\
                      let a = \"GET, HEAD\", \"text/plain; x\";\n\
                      r#\"Bearer error=\"invalid_token\"\"#, \"a token, again\"\n#[cfg(test)]\nlet no = \"a test\";";
        assert_eq!(response_texts(source), ["two words", "a token, again"]);
    }

    #[test]
    fn dead_links_are_found() {
        let pages: Pages = [("a.md", "# A\n[x](b.md#b) [y](b.md#c) [z](c.md) [dir](src)"), ("b.md", "# B\n")]
            .map(|(path, text)| (path.into(), text.to_owned()))
            .into();
        let dead = dead_links(&pages, |path| path != Path::new("c.md"));
        assert_eq!(dead, ["`a.md`: `b.md#c` leads to no heading", "`a.md`: `c.md` leads to no file"]);
    }
}
