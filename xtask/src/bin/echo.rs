//! `echo-server`: the test pod as a program of its own, for images and for machines without namespaces. It only reads
//! its command line; [`xtask::lab::echo`] does the work.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Parser;
use xtask::lab::echo;

/// Answers every request with who it is and what it received
#[derive(Debug, Parser)]
#[command(
    after_help = "Paths: /bytes/N sends N bytes, /status/N answers with that status, any body is read and counted.\n\n\
Example:\n  echo-server --name pod-a --listen 127.0.0.1:8080 --listen '[::1]:8080'"
)]
struct Args {
    /// Name that the answers carry
    #[arg(long, env = "HOSTNAME", default_value = "echo")]
    name: String,
    /// Address to listen on (repeatable)
    #[arg(long, default_value = "[::]:8080")]
    listen: Vec<SocketAddr>,
}

fn main() -> anyhow::Result<()> {
    let Args { name, listen } = Args::parse();
    let listeners = listen
        .into_iter()
        .map(|addr| std::net::TcpListener::bind(addr).with_context(|| format!("cannot listen on `{addr}`")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    echo::serve(&name, listeners, std::future::pending())
}
