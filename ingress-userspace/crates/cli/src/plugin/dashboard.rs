//! `kubectl xdp-ingress dashboard`: forwards a local port to the admin address of a pod.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    arguments::DashboardArgs,
    fleet::{Fleet, forward, warn},
    pods::ControllerPod,
};
use crate::{palette::Tone, print};

/// Path of the dashboard on the admin address.
const PATH: &str = "/dashboard";
/// Maximum number of forwarded connections at a time; a browser opens six.
const CONNECTIONS_MAX: usize = 64;

/// Forwards connections until the user interrupts the command.
///
/// # Errors
/// Fails if there is no pod, or the local port is taken.
pub(super) fn run(fleet: &Fleet, args: &DashboardArgs) -> Result<()> {
    let DashboardArgs { port, open, installation: _ } = args;
    let pods = fleet.pods()?;
    let pod = pods.iter().find(|pod| pod.is_ready).or_else(|| pods.first()).context("there is no pod")?;
    fleet.wait_for(async {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        let taken = || format!("cannot listen on `{address}`; take a free port with `--port 0`");
        let listener = TcpListener::bind(address).await.with_context(taken)?;
        let url = format!("http://localhost:{}{PATH}", listener.local_addr()?.port());
        print::text(&format!("{url} shows node {}; press Ctrl-C to end\n", pod.node))?;
        if *open {
            browse(&url);
        }
        tokio::select! {
            result = serve(&listener, fleet.api(), pod) => result,
            interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot wait for Ctrl-C"),
        }
    })
}

async fn serve(listener: &TcpListener, api: &Api<Pod>, pod: &ControllerPod) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        let (stream, _) = listener.accept().await.context("cannot accept a connection")?;
        let (api, pod) = (api.clone(), pod.clone());
        connections.spawn(async move {
            if let Err(error) = carry(stream, &api, &pod).await {
                warn(format_args!("{error:#}"), Tone::Error);
            }
        });
    }
}

async fn carry(mut stream: TcpStream, api: &Api<Pod>, pod: &ControllerPod) -> Result<()> {
    let (mut to_pod, mut carrier) = forward(api, pod).await?;
    match copy_bidirectional(&mut stream, &mut to_pod).await {
        // Browsers close connections as they like.
        Ok((_, 1..)) => Ok(()),
        Ok((0, 0)) => Ok(()),
        Ok((_, 0)) => Err(carrier.failure(anyhow::anyhow!("the connection ended")).await),
        Err(_closed) => Ok(()),
    }
}

/// Opens `url` in the user's browser, if there is one.
fn browse(url: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started =
        Command::new(program).arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    if let Err(error) = started {
        warn(format_args!("cannot open a browser with `{program}`: {error}"), Tone::Warning);
    }
}
