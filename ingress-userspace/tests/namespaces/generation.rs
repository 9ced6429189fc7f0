//! Any of several consecutive processes on a node, as of the pods of a DaemonSet: same admin address, same pins, a
//! probe socket of its own.

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Command, ExitStatus},
    thread::JoinHandle,
    time::Duration,
};

use ingress_lab::{
    Process,
    client::{Ask, Connection, Protocol, Trust, block_on},
    topology::Family,
    until_within,
};

use crate::net::{Net, http};

/// Longest wait for a process to become ready: loading the programs is the slow part.
const START: Duration = Duration::from_secs(30);
/// Longest wait for the end of a process that has no work left.
const END: Duration = Duration::from_secs(30);

pub(crate) struct Generation {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
}

impl Generation {
    /// Starts the process `name` and waits until its own socket reports readiness.
    pub(crate) fn start(net: &Net, name: &str, more: &[&str]) -> Self {
        let mut generation = Self::spawn(net, name, more);
        let socket = generation.socket.clone();
        let ready = || probe("ready", &socket).is_ok();
        generation.process.wait_until(START, "the process is ready", ready).expect("it becomes ready");
        generation
    }

    pub(crate) fn spawn(net: &Net, name: &str, more: &[&str]) -> Self {
        Self::spawn_in(net, name, more, |command| command)
    }

    /// Spawns the process; `wrap` modifies the command.
    pub(crate) fn spawn_in(net: &Net, name: &str, more: &[&str], wrap: impl FnOnce(Command) -> Command) -> Self {
        let pod = net.lab.home().join(name);
        fs::create_dir_all(&pod).expect("a directory for the pod");
        let socket = pod.join("probe.sock");
        let mut command = net.options(name, 9110).command();
        command.arg("--probe-socket").arg(&socket).args(more);
        let process = net.lab.spawn(&net.topology.node, name, wrap(command)).expect("the process starts");
        Self { process, socket }
    }

    /// Runs the probe. Returns its complaint as the error.
    pub(crate) fn probe(&self, what: &str) -> Result<(), String> {
        probe(what, &self.socket)
    }

    /// Waits until the process has ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until_within(END, "the process to end", || self.process.exited())
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.process.log_tail(20)))
    }
}

/// Runs `xdp-ingress probe`.
fn probe(what: &str, socket: &PathBuf) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    let output = command.args(["probe", what, "--socket"]).arg(socket).output().expect("the probe runs");
    assert!(output.stdout.is_empty(), "one line, on standard error");
    let said = String::from_utf8(output.stderr).expect("text");
    match output.status.code() {
        Some(0) => Ok(()),
        Some(1) if said.lines().count() == 1 => Err(said.trim_end().to_owned()),
        _ => panic!("{:?}: {said}", output.status),
    }
}

/// Returns the command, run by a program that takes it as its last arguments.
pub(crate) fn under(program: &str, args: &[OsString], command: &Command) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(args).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        value.map(|value| wrapped.env(name, value));
    }
    wrapped
}

/// A download that has begun and continues on request.
pub(crate) struct Download {
    go_on: tokio::sync::oneshot::Sender<()>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

impl Download {
    /// Far more than all buffers hold between pod and client.
    pub(crate) const LEN: u64 = 30_000_000;

    /// Returns when the first piece has arrived.
    pub(crate) fn begin(net: &Net, host: &'static str) -> Self {
        let (go_on, told) = tokio::sync::oneshot::channel();
        let (begun, has_begun) = std::sync::mpsc::channel();
        let work = async move {
            let mut connection = Connection::open(http(Family::V4), Protocol::Http1, host, &Trust::none()).await?;
            let mut body = connection.start(&Ask::get(host, &format!("/bytes/{}", Self::LEN))).await?;
            let first = body.next().await?.map_or(0, |data| data.len() as u64);
            begun.send(())?;
            told.await?;
            Ok(first + body.rest().await?)
        };
        let thread = net.topology.client.thread("download", move || block_on(work)).expect("a thread");
        has_begun.recv_timeout(Duration::from_secs(20)).expect("the download begins");
        Self { go_on, thread }
    }

    /// Reads the rest. Returns the number of bytes, or the error that ended it.
    pub(crate) fn finish(self) -> anyhow::Result<u64> {
        let Self { go_on, thread } = self;
        go_on.send(()).ok();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
