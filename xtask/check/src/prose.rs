//! Checks the English of pages and doc comments by measures that other well-known projects meet. It judges shares of
//! many sentences, so that a single sentence may be an exception. Guides address their readers. It does not check
//! spelling.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::walls::rust_files;
use xtask_tools::workspace;

/// Pages beside those in `docs`.
const PAGES: [&str; 6] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"];
const FOLDERS: [&str; 7] =
    ["docs", "docs/adr", "docs/guides", "docs/install", "docs/operate", "docs/runbooks", "docs/start"];
/// Folders with nothing but guides.
const GUIDE_FOLDERS: [&str; 4] = ["docs/guides", "docs/install", "docs/operate", "docs/start"];
/// Pages on which a reader acts, and is addressed as "you", besides those of [`GUIDE_FOLDERS`]. All others are reference.
const GUIDES: [&str; 12] = [
    "README.md",
    "CONTRIBUTING.md",
    "deploy/README.md",
    "docs/balancing.md",
    "docs/bpftool.md",
    "docs/cross-namespace.md",
    "docs/rbac.md",
    "docs/sharing-hosts.md",
    "docs/streams.md",
    "docs/tls.md",
    "docs/tokens.md",
    "docs/tracing.md",
];
/// Directories with doc comments, each of which is measured as a whole.
const SOURCES: [&str; 16] = [
    "ingress-common/src",
    "ingress-ebpf/src",
    "ingress-userspace/benches",
    "ingress-userspace/tests",
    "ingress-userspace/crates/control",
    "ingress-userspace/crates/datapath",
    "ingress-userspace/crates/http3",
    "ingress-userspace/crates/lab",
    "ingress-userspace/crates/model",
    "ingress-userspace/crates/node",
    "ingress-userspace/crates/panics",
    "ingress-userspace/crates/proxy",
    "ingress-userspace/crates/proxy-testing",
    "ingress-userspace/crates/quic",
    "ingress-userspace/fuzz/fuzz_targets",
    "xtask",
];

/// Limits of a page: words per sentence on average, percent of sentences above [`LONG`] words, and clauses or words per
/// 1,000 words.
const WORDS_MAX: f64 = 16.0;
const LONG_MAX: f64 = 5.0;
const HEADLESS_MAX: f64 = 0.5;
const RELATIVE_MAX: f64 = 0.3;
/// Least number of "you" and "your" per 1,000 words of a guide.
const YOU_MIN: f64 = 10.0;
/// Limits of doc comments: percent of blocks that begin with "What", and with another word of [`ODD`].
const WHAT_MAX: f64 = 0.2;
const ODD_MAX: f64 = 2.0;

/// Words that make a sentence long.
const LONG: usize = 30;
/// Shorter pages say too little about their style.
const SENTENCES_MIN: usize = 20;

/// Clauses without a noun: a word of the first list before one of the second ("what is", "who has").
const HEADS: [&str; 4] = ["what", "who", "whoever", "whatever"];
const VERBS: [&str; 23] = [
    "is", "was", "are", "were", "it", "they", "has", "have", "had", "does", "do", "did", "come", "comes", "goes",
    "can", "may", "must", "would", "cannot", "nobody", "other", "others",
];
const RELATIVE: [&str; 5] = ["whoever", "whom", "whose", "whatever", "whichever"];
const READER: [&str; 3] = ["you", "your", "yours"];
const ODD: [&str; 18] = [
    "What", "Who", "Whoever", "Whom", "Whose", "Whatever", "That", "Those", "Of", "By", "As", "Some", "None", "One",
    "It", "They", "Nobody", "Nothing",
];

/// Measures of a page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    sentences: usize,
    words: usize,
    /// Sentences above [`LONG`] words.
    long: usize,
    headless: usize,
    relative: usize,
    /// Words of [`READER`].
    reader: usize,
}

/// Measures of doc comments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Openings {
    blocks: usize,
    what: usize,
    odd: usize,
}

/// Measures all pages and doc comments.
///
/// # Errors
/// Fails if a page or a directory is past a limit.
pub(super) fn run() -> Result<()> {
    let root = workspace::root();
    let mut objections = Vec::new();
    if let Some(gone) = GUIDES.iter().find(|guide| !root.join(guide).exists()) {
        objections.push(format!("`{gone}` is a guide of `xtask/check/src/prose.rs`, but does not exist"));
    }
    for path in pages(root)? {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let page = Page::of(&text);
        let path = path.strip_prefix(root).unwrap_or(&path);
        if page.sentences >= SENTENCES_MIN && !page.is_within_limits() {
            objections.push(format!("`{}`: {page}", path.display()));
        }
        let is_guide = GUIDES.iter().any(|guide| path == Path::new(guide))
            || GUIDE_FOLDERS.iter().any(|folder| path.starts_with(folder));
        if is_guide && !page.addresses_its_reader() {
            let you = share(page.reader, page.words, 1000.0);
            objections.push(format!(
                "`{}`: of 1,000 words {you:.1} are \"you\" or \"your\" (at least {YOU_MIN}); address readers where they act",
                path.display()
            ));
        }
    }
    for source in SOURCES {
        let mut openings = Openings::default();
        for file in rust_files(&root.join(source))? {
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
            openings.add(&text);
        }
        if !openings.is_within_limits() {
            objections.push(format!("`{source}`: {openings}"));
        }
    }
    if !objections.is_empty() {
        bail!("prose is past the limits of `xtask/check/src/prose.rs`:\n  {}", objections.join("\n  "));
    }
    Ok(())
}

fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages: Vec<_> = PAGES.iter().map(|page| root.join(page)).collect();
    for folder in FOLDERS {
        for entry in fs::read_dir(root.join(folder)).with_context(|| format!("cannot list `{folder}`"))? {
            let path = entry?.path();
            pages.extend(path.extension().is_some_and(|extension| extension == "md").then_some(path));
        }
    }
    pages.sort();
    Ok(pages)
}

// === text ===

/// Returns the paragraphs of Markdown, without code, tables, headings, quotes and targets of links.
fn paragraphs(markdown: &str) -> Vec<String> {
    let (mut paragraphs, mut is_code) = (vec![String::new()], false);
    for line in markdown.lines() {
        let text = line.trim();
        if text.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let is_other = text.is_empty() || text.starts_with(['|', '#', '>']) || line.starts_with("    ");
        let item = text.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(". ");
        let item = item.or_else(|| ["- ", "* ", "+ "].iter().find_map(|mark| text.strip_prefix(mark)));
        if is_code || is_other || item.is_some() {
            paragraphs.push(String::new());
        }
        if let Some(paragraph) = paragraphs.last_mut().filter(|_| !is_code && !is_other) {
            paragraph.push(' ');
            paragraph.push_str(item.unwrap_or(text));
        }
    }
    paragraphs.iter().map(|paragraph| without_targets(&without_code(paragraph))).collect()
}

/// Replaces each code span by a word.
fn without_code(text: &str) -> String {
    let spans = text.split('`').enumerate();
    spans.map(|(number, span)| if number % 2 == 0 { span } else { "X" }).collect()
}

/// Keeps the text of links and drops their targets.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| kept + part.split_once(')').map_or("", |(_target, rest)| rest))
}

fn sentences(paragraph: &str) -> Vec<&str> {
    let (mut sentences, mut from) = (Vec::new(), 0);
    for (at, _) in paragraph.match_indices(['.', '!', '?', ':', ';']) {
        let rest = &paragraph[at + 1..];
        let next = rest.strip_prefix(' ').and_then(|rest| rest.trim_start().chars().next());
        if next.is_some_and(|next| next.is_ascii_uppercase() || matches!(next, '"' | '“' | '(')) {
            sentences.push(&paragraph[from..=at]);
            from = at + 1;
        }
    }
    sentences.push(&paragraph[from..]);
    sentences
}

fn words(sentence: &str) -> Vec<&str> {
    let is_of_word = |c: char| c.is_ascii_alphabetic() || matches!(c, '\'' | '’' | '-');
    let words = sentence.split(|c| !is_of_word(c)).map(|word| word.trim_matches(['\'', '’', '-']));
    words.filter(|word| !word.is_empty()).collect()
}

/// Returns the first words of the doc comments' blocks, which end at empty lines.
fn first_words(source: &str) -> Vec<&str> {
    let (mut first, mut is_amid, mut is_code) = (Vec::new(), false, false);
    for line in source.lines().map(str::trim_start) {
        let Some(text) = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")) else {
            (is_amid, is_code) = (false, false);
            continue;
        };
        if text.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if text.trim().is_empty() {
            is_amid = false;
        } else if !is_code && !text.starts_with("     ") && !std::mem::replace(&mut is_amid, true) {
            first.extend(text.split_whitespace().next());
        }
    }
    first
}

// === measures ===

#[expect(clippy::cast_precision_loss, reason = "counts of words are small")]
fn share(count: usize, of: usize, per: f64) -> f64 {
    count as f64 * per / of.max(1) as f64
}

impl Page {
    fn of(markdown: &str) -> Self {
        let mut page = Self::default();
        for paragraph in paragraphs(markdown) {
            for words in sentences(&paragraph).into_iter().map(words).filter(|words| words.len() >= 3) {
                page.sentences += 1;
                page.words += words.len();
                page.long += usize::from(words.len() > LONG);
            }
            let words: Vec<_> = words(&paragraph).into_iter().map(str::to_ascii_lowercase).collect();
            let is_headless = |pair: &&[String]| HEADS.contains(&&*pair[0]) && VERBS.contains(&&*pair[1]);
            page.headless += words.windows(2).filter(is_headless).count();
            page.relative += words.iter().filter(|word| RELATIVE.contains(&&***word)).count();
            page.reader += words.iter().filter(|word| READER.contains(&&***word)).count();
        }
        page
    }

    fn is_within_limits(&self) -> bool {
        let Self { sentences, words, long, headless, relative, reader: _ } = *self;
        share(words, sentences, 1.0) <= WORDS_MAX
            && share(long, sentences, 100.0) <= LONG_MAX
            && share(headless, words, 1000.0) <= HEADLESS_MAX
            && share(relative, words, 1000.0) <= RELATIVE_MAX
    }

    fn addresses_its_reader(&self) -> bool {
        share(self.reader, self.words, 1000.0) >= YOU_MIN
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sentences, words, long, headless, relative, reader: _ } = *self;
        write!(
            f,
            "{:.1} words a sentence (at most {WORDS_MAX}), {:.1} % of sentences above {LONG} words ({LONG_MAX}); of 1,000 words {:.2} clauses without a noun such as \"what is\" ({HEADLESS_MAX}), {:.2} times \"whose\" or \"whatever\" ({RELATIVE_MAX})",
            share(words, sentences, 1.0),
            share(long, sentences, 100.0),
            share(headless, words, 1000.0),
            share(relative, words, 1000.0)
        )
    }
}

impl Openings {
    fn add(&mut self, source: &str) {
        for word in first_words(source) {
            self.blocks += 1;
            self.what += usize::from(word == "What");
            self.odd += usize::from(ODD.contains(&word));
        }
    }

    fn is_within_limits(&self) -> bool {
        share(self.what, self.blocks, 100.0) <= WHAT_MAX && share(self.odd, self.blocks, 100.0) <= ODD_MAX
    }
}

impl fmt::Display for Openings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} % of {} blocks of doc comments begin with \"What\" (at most {WHAT_MAX}), {:.1} % with a word such as \"Of\" or \"Those\" ({ODD_MAX}); begin with the noun that the item is",
            share(self.what, self.blocks, 100.0),
            self.blocks,
            share(self.odd, self.blocks, 100.0)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_prose_is_measured() {
        let page = "# What is a heading\n\nA [link](what/is/this.md) and `what is` code. It ends: Here is more.\n\n\
            | what is | a table |\n\n```sh\nwhat is this\n```\n\n- Who has one item has two.\n";
        assert_eq!(Page::of(page), Page { sentences: 3, words: 14, long: 0, headless: 1, relative: 0, reader: 0 });
    }

    #[test]
    fn pages_past_a_limit_are_found() {
        let plain = "The proxy closes the connection. ";
        let page = |odd: &str| Page::of(&[plain.repeat(1000), odd.to_owned()].concat()).is_within_limits();
        assert!(page("") && page("What is too much is refused."));
        assert!(!page(&"What is too much is refused. ".repeat(3)));
        assert!(!page(&"A client, whose address is known. ".repeat(2)));
        assert!(!page(&"A word and another one ".repeat(2400)));
        assert!(!page(&format!("{}. ", "It has many words ".repeat(8)).repeat(60)));
    }

    #[test]
    fn guides_address_their_reader() {
        let page = |text: &str| Page::of(&[text, &"The proxy closes the connection. ".repeat(10)].concat());
        assert!(page("You set your limits here. ").addresses_its_reader());
        assert!(!page("Limits are set here. ").addresses_its_reader());
    }

    #[test]
    fn openings_of_blocks_are_found() {
        let source = "//! Head of a module.\n//!\n//! What follows.\n\n/// Of an item,\n/// whose second line counts not.\nfn f() {}\n\
            /// ```\n/// What is code\n/// ```\n";
        assert_eq!(first_words(source), ["Head", "What", "Of"]);
        let mut openings = Openings::default();
        openings.add(source);
        assert_eq!(openings, Openings { blocks: 3, what: 1, odd: 2 });
        assert!(!openings.is_within_limits());
    }
}
