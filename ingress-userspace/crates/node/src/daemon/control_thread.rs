//! The control thread: it watches the configuration, publishes snapshots, and gives numbers of hosts back.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use ingress_control::status::FAREWELL;
use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, interval, timeout},
};
use tracing::error;

use super::{privileges, publish::Publisher};

/// Interval of the check for removed hosts.
const TIDIED: Duration = Duration::from_mins(1);

/// Handle of the control thread.
pub(super) struct Control {
    first: oneshot::Receiver<()>,
    ended: oneshot::Receiver<Result<(), ingress_control::SourceError>>,
    shutdown: oneshot::Sender<()>,
}

impl Control {
    pub(super) fn start(
        source: ingress_control::SourceConfig,
        options: ingress_control::Options,
        publisher: Arc<Mutex<Publisher>>,
    ) -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let (first_sender, first) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let (shutdown, shutdown_receiver) = oneshot::channel::<()>();
        let mut first_sender = Some(first_sender);
        let publishing = Arc::clone(&publisher);
        let publish = move |translation, received: tokio::time::Instant| {
            publishing.lock().unwrap_or_else(PoisonError::into_inner).apply(translation, received.into_std());
            if let Some(sender) = first_sender.take() {
                // The receiver is only gone when the process is ending.
                let _gone = sender.send(()).is_err();
            }
        };
        let shutdown_signal = async {
            // Both a message and a closed channel mean shutdown.
            let _dropped = shutdown_receiver.await.is_err();
        };
        thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                privileges::keep_for_control();
                let result = runtime.block_on(async {
                    tokio::select! {
                        result = ingress_control::run(source, &options, publish, shutdown_signal) => result,
                        never = give_numbers_back(&publisher) => match never {},
                    }
                });
                let _gone = ended_sender.send(result).is_err();
            })
            .context("cannot start the control thread")?;
        Ok(Self { first, ended, shutdown })
    }

    /// Resolves once the first snapshot is published. Must be called once only.
    pub(super) async fn first_snapshot(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            Ok(()) = &mut self.first => Ok(()),
            result = &mut self.ended => Err(Self::why(result)),
        }
    }

    /// Resolves when the control path has failed. The published snapshot stays in use.
    pub(super) async fn ended(&mut self) -> anyhow::Result<()> {
        let error = Self::why((&mut self.ended).await);
        error!("{error:#}");
        Err(error)
    }

    fn why(result: Result<Result<(), ingress_control::SourceError>, oneshot::error::RecvError>) -> anyhow::Error {
        match result {
            Ok(Err(error)) => anyhow::Error::new(error).context("cannot watch the configuration"),
            Ok(Ok(())) => anyhow::anyhow!("the source of the configuration ended"),
            Err(_) => anyhow::anyhow!("the control thread ended; its panic message is above"),
        }
    }

    /// Stops the control path, which releases its claims in the cluster within bounded time.
    pub(super) async fn stop(self) {
        let Self { first: _, ended, shutdown } = self;
        drop(shutdown);
        if !ended.is_terminated() {
            // The process ends regardless of the result.
            let _ended = timeout(FAREWELL + Duration::from_secs(2), ended).await.is_ok();
        }
    }
}

/// Releases the numbers of removed hosts periodically. The task runs on the control thread, which also assigns numbers,
/// so that its waits never delay the liveness signals of the main thread.
async fn give_numbers_back(publisher: &Mutex<Publisher>) -> Infallible {
    let mut timer = interval(TIDIED);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        publisher.lock().unwrap_or_else(PoisonError::into_inner).give_back(Instant::now());
    }
}
