//! `echo-server`: the test pod as a separate program, for images and for machines without namespaces. It only reads its
//! command line and waits for its end; [`ingress_lab::echo`] does the work.

use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use ingress_lab::echo::{self, Security};
use tokio::signal::unix::{SignalKind, signal};

const AFTER_HELP: &str = "\
Paths: /bytes/N sends N bytes, /status/N answers with that status, /ready says whether it is ready, /ready/0 and
/ready/1 make it so; any body is read and counted. WebSocket messages come back as they are.

Example:
  echo-server --name pod-a --listen 127.0.0.1:8080 --listen '[::1]:8080' --listen-tls 127.0.0.1:8443";

/// Answer every request with the server's name and the received request
#[derive(Debug, Parser)]
#[command(after_help = AFTER_HELP)]
struct Args {
    /// Name to put into the answers
    #[arg(long, env = "HOSTNAME", default_value = "echo")]
    name: String,
    /// Address for HTTP/1.1 and HTTP/2 by prior knowledge (repeatable)
    #[arg(long, default_value = "[::]:8080")]
    listen: Vec<SocketAddr>,
    /// Address for the same over TLS, with a self-signed certificate (repeatable)
    #[arg(long)]
    listen_tls: Vec<SocketAddr>,
    /// Seconds to keep serving after SIGTERM, while others learn that this pod is going
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    linger: u64,
}

fn main() -> anyhow::Result<()> {
    let Args { name, listen, listen_tls, linger } = Args::parse();
    let plain = listen.into_iter().map(|addr| (addr, Security::Plain));
    let tls = listen_tls.into_iter().map(|addr| (addr, Security::Tls));
    let listeners = plain.chain(tls).map(|(addr, security)| echo::bind(addr, security)).collect::<Result<_, _>>()?;
    echo::serve(&name, listeners, async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            // Without the handler SIGTERM ends the process directly.
            Err(_) => std::future::pending().await,
        }
        tokio::time::sleep(Duration::from_secs(linger)).await;
    })
}
