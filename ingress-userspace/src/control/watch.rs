//! The loop of the control path: batches in, translations out. It neither reads objects nor publishes by itself.

use std::future::Future;

use tokio::sync::mpsc;

use super::{
    Error, Options, SourceConfig,
    change::Batch,
    cluster::Cluster,
    outcome::Outcome,
    source::{self, kube, manifests},
    translate::{Translation, translate},
};

/// Batches that are applied before a translation is due whatever comes: bounds the delay of a stream without a pause.
const MAX_BATCHES: usize = 64;

/// Follows `source` and hands every new translation to `publish`, until `shutdown` is ready.
///
/// The first translation is published when everything has been read once, even if it is empty. Later ones are published
/// only if they differ from the one before. An error of the source, once it runs, never takes routes away.
///
/// # Errors
/// If the source cannot be read at the start: see [`Error`].
pub async fn run(
    source: SourceConfig,
    options: &Options,
    mut publish: impl FnMut(Translation) + Send,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let (sender, mut receiver) = source::queue();
    let source = async {
        match source {
            SourceConfig::Manifests(root) => manifests::follow(root, sender).await,
            SourceConfig::Kubernetes(config) => kube::follow(config, sender).await,
        }
    };
    let translations = async {
        let mut state = State::default();
        while let Some(batch) = receiver.recv().await {
            state.apply(batch);
            drain(&mut receiver, &mut state);
            if let Some(translation) = state.translate(options) {
                publish(translation);
            }
        }
    };
    tokio::select! {
        () = shutdown => Ok(()),
        result = async { tokio::join!(source, translations).0 } => result,
    }
}

/// Applies what is there already. Sources wait for pauses themselves, so there is nothing to wait for here.
fn drain(receiver: &mut mpsc::Receiver<Batch>, state: &mut State) {
    for _ in 0..MAX_BATCHES {
        let Ok(batch) = receiver.try_recv() else { return };
        state.apply(batch);
    }
}

#[derive(Default)]
struct State {
    cluster: Cluster,
    remarks: Vec<Outcome>,
    published: Option<Translation>,
}

// === impl State ===

impl State {
    fn apply(&mut self, batch: Batch) {
        let Batch { changes, remarks } = batch;
        for change in changes {
            self.cluster.apply(change);
        }
        if let Some(remarks) = remarks {
            self.remarks = remarks;
        }
    }

    /// The translation of what is known now, if it differs from the last.
    fn translate(&mut self, options: &Options) -> Option<Translation> {
        let mut translation = translate(&self.cluster, &options.translate);
        translation.outcomes.extend(self.remarks.iter().cloned());
        translation.outcomes.sort();
        translation.outcomes.dedup();
        if self.published.as_ref() == Some(&translation) {
            return None;
        }
        self.published = Some(translation.clone());
        Some(translation)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use tokio::time;

    use super::*;

    const WEB: &str = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\n\
        spec:\n  ingressClassName: xdp\n  rules: [{host: HOST, http: {paths: [{path: /, pathType: Prefix, \
        backend: {service: {name: web, port: {number: 80}}}}]}}]\n";

    async fn next(published: &mut mpsc::UnboundedReceiver<Translation>) -> String {
        let translation =
            time::timeout(Duration::from_secs(10), published.recv()).await.expect("in time").expect("more");
        let outcomes = translation.outcomes.iter().map(|outcome| format!("{}\n", outcome.reason));
        translation.table.to_string() + &outcomes.collect::<String>()
    }

    fn write(root: &Path, name: &str, host: &str) {
        fs::write(root.join(name), WEB.replace("HOST", host)).expect("a file");
    }

    #[tokio::test]
    async fn translations_are_published_from_the_first_on_until_the_shutdown() {
        let root = tempfile::TempDir::new().expect("a directory");
        let (sender, mut published) = mpsc::unbounded_channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let source = SourceConfig::Manifests(root.path().into());
        let task = tokio::spawn(async move {
            let publish = |translation| drop(sender.send(translation));
            run(source, &Options::for_manifests(), publish, async { drop(stopped.await) }).await
        });
        assert_eq!(next(&mut published).await, "", "the first is published even if it is empty");
        write(root.path(), "web.yaml", "a.test");
        let refused = "  /                        -> refuse: no such service  # default/web\nServiceNotFound\n";
        assert_eq!(next(&mut published).await, format!("host a.test\n{refused}"));
        // Written again without a change: what comes next is the change after it.
        write(root.path(), "web.yaml", "a.test");
        write(root.path(), "web.yaml", "b.test");
        assert_eq!(next(&mut published).await, format!("host b.test\n{refused}"));
        stop.send(()).expect("it runs");
        let ended = time::timeout(Duration::from_secs(10), task).await.expect("in time").expect("no panic");
        assert!(ended.is_ok(), "{ended:?}");
    }

    #[tokio::test]
    async fn a_source_that_cannot_start_is_an_error() {
        let source = SourceConfig::Manifests("/nonexistent".into());
        let result = run(source, &Options::default(), |_| panic!("nothing to publish"), std::future::pending()).await;
        assert!(matches!(result, Err(Error::Manifests { .. })), "{result:?}");
    }
}
