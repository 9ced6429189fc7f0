//! A reader of the documentation: a shell with `kubectl` and `helm`, in which commands of a page run as they are written.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use ingress_lab::Lab;
use xtask_tools::{process, workspace};

use crate::stage::Scope;

/// A reader of one page, in the namespace of a test.
pub(crate) struct Reader<'s> {
    scope: &'s Scope<'s>,
    lab: Lab,
    page: String,
}

impl<'s> Reader<'s> {
    /// Opens a page of docs/ for a reader with the cluster as the current context, and with the namespace of `scope`.
    pub(crate) fn open(scope: &'s Scope<'s>, page: &str) -> Self {
        let lab = Lab::open(&scope.name).expect("a place for files");
        let page = fs::read_to_string(workspace::root().join("docs").join(page)).expect("the page");
        let tools = lab.home().join("bin");
        fs::create_dir_all(&tools).expect("a directory");
        symlink(xtask_setup::packagers().expect("Helm").helm, tools.join("helm")).expect("a link");
        symlink(scope.stage.cluster.kubectl_command().get_program(), tools.join("kubectl")).expect("a link");
        fs::copy(scope.stage.cluster.places().kubeconfig(), lab.home().join("kubeconfig")).expect("a copy");
        let reader = Self { scope, lab, page };
        reader.shell(&format!("kubectl config set-context --current --namespace={}", scope.name));
        reader
    }

    /// Gives the reader a further command.
    pub(crate) fn command(&self, name: &str, program: &Path) {
        symlink(program, self.lab.home().join("bin").join(name)).expect("a link");
    }

    /// Returns the commands of a section.
    pub(crate) fn commands(&self, heading: &str) -> String {
        let section = self.page.split_once(&format!("{heading}\n")).map_or("", |(_, rest)| rest);
        let section = section.split("\n## ").next().unwrap_or(section);
        let commands: String = section.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
        assert!(!commands.is_empty(), "{heading} has no commands");
        commands
    }

    /// Runs a command that the page contains, after the reader has replaced its placeholders, and returns its output.
    pub(crate) fn follow(&self, command: &str, replaced: &[(&str, &str)]) -> String {
        assert!(self.page.contains(command), "the page does not contain `{command}` any more");
        let command = replaced.iter().fold(command.to_owned(), |command, (text, with)| command.replace(text, with));
        let said = self.shell(&command);
        println!("$ {command}\n{said}");
        said
    }

    /// Runs a script where both the API server and the nodes can be reached, and returns its output.
    pub(crate) fn shell(&self, script: &str) -> String {
        let home = self.lab.home();
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell.args(["-euc", script]).current_dir(home);
        shell.env("PATH", path).env("KUBECONFIG", home.join("kubeconfig")).env("KUBECACHEDIR", home.join("cache"));
        let control = self.scope.stage.cluster.control().expect("the control plane's namespace");
        control.run(|| process::capture(&mut shell)).unwrap_or_else(|error| panic!("{script}\n{error:#}"))
    }

    /// Demands that the page contains a text that the product showed, or the cure that helped.
    pub(crate) fn finds(&self, text: &str) {
        assert!(self.page.contains(text), "the page does not contain `{text}`");
    }
}
