//! Stores results in a document of the repository, so that a change of them shows in review.

use std::fs;

use anyhow::Context as _;

use xtask_tools::{progress, workspace};

const END: &str = "<!-- end -->";

/// The part of a document that a command writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Path of the document below the root of the work tree.
    pub(super) path: &'static str,
    /// The command as typed by a user.
    pub(super) command: &'static str,
}

impl Part {
    /// Replaces the text between the marks with `new`, which ends in a newline.
    ///
    /// # Errors
    /// Fails if the document cannot be read or written, or lacks its marks.
    pub(super) fn write(self, new: &str) -> anyhow::Result<()> {
        let Self { path, command: _ } = self;
        let file = workspace::root().join(path);
        let old = fs::read_to_string(&file).with_context(|| format!("cannot read `{path}`"))?;
        let text = self
            .replaced(&old, new)
            .with_context(|| format!("`{path}` lacks its marks: {}", self.begin().trim_end()))?;
        fs::write(&file, text).with_context(|| format!("cannot write `{path}`"))?;
        progress::note(&format!("written to {path}"));
        Ok(())
    }

    fn begin(self) -> String {
        format!("<!-- begin: written by `{}` -->\n", self.command)
    }

    fn replaced(self, old: &str, new: &str) -> Option<String> {
        let begin = self.begin();
        let (before, rest) = old.split_once(&begin)?;
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{begin}{new}{END}{after}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernel, memory, profile, proxy, routes};

    #[test]
    fn documents_have_markers_and_keep_their_other_text() {
        for part in [kernel::PART, memory::PART, profile::PART, proxy::PART, routes::PART] {
            let file = fs::read_to_string(workspace::root().join(part.path)).expect(part.path);
            let once = part.replaced(&file, "new\n").expect(part.command);
            assert!(once.contains("-->\nnew\n<!-- end -->"));
            assert_eq!(part.replaced(&once, "new\n").as_deref(), Some(&*once));
            assert_eq!(part.replaced("no marks", "new\n"), None);
        }
    }
}
