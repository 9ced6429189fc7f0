//! One watch of one kind, kept up whatever the server does. It passes events on and judges nothing.

use std::{fmt::Debug, time::Duration};

use futures_util::StreamExt;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, DefaultBackoff, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time};

use super::tracker::{Event, WatchId};
use crate::control::change::Object;

/// What can be watched.
pub(super) trait Watched:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static
{
}

impl<K> Watched for K where K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {}

/// How the first list is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// As events (KEP-3157): spares the server's memory and ours.
    Streamed,
    /// In pages, for servers that do not stream lists.
    Paged,
}

/// What to do after an error of the watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// The watcher goes on by itself, after a pause.
    Resume,
    /// Begin again with a list, after a pause.
    Restart,
    /// Begin again at once with pages.
    Page,
}

/// The longest pause, should the backoff ever end.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Sends the events of the objects that `fields` selects, until the receiver goes.
pub(super) async fn watch<K: Watched>(
    id: WatchId,
    api: Api<K>,
    fields: Option<String>,
    convert: fn(K) -> Object,
    events: mpsc::Sender<(WatchId, Event)>,
) {
    let kind = K::kind(&());
    let mut listing = Listing::Streamed;
    let mut pauses = DefaultBackoff::default();
    loop {
        let mut stream = watcher(api.clone(), listing.config(fields.as_deref())).default_backoff().boxed();
        while let Some(result) = stream.next().await {
            let event = match result {
                Ok(watcher::Event::Init) => Event::ListBegins,
                Ok(watcher::Event::InitApply(object)) => Event::Listed(convert(object)),
                Ok(watcher::Event::InitDone) => Event::ListEnds,
                Ok(watcher::Event::Apply(object)) => Event::Applied(convert(object)),
                Ok(watcher::Event::Delete(object)) => Event::Deleted(convert(object)),
                Err(error) => {
                    let recovery = Recovery::of(&error, listing);
                    if recovery == Recovery::Page {
                        tracing::debug!(%kind, "the server does not stream lists, asking for pages");
                        listing = Listing::Paged;
                        break;
                    }
                    tracing::warn!(%kind, ?fields, error = &error as &dyn std::error::Error, "watch failed, trying again");
                    if is_refusal(&error) && events.send((id, Event::Refused)).await.is_err() {
                        return;
                    }
                    if recovery == Recovery::Restart {
                        time::sleep(pauses.next().unwrap_or(MAX_PAUSE)).await;
                        break;
                    }
                    continue;
                }
            };
            if events.send((id, event)).await.is_err() {
                return;
            }
        }
    }
}

/// The status with which the server answered, if it did.
fn status(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

/// Whether the server will not let us, so that waiting for a list would wait for a person.
fn is_refusal(error: &watcher::Error) -> bool {
    matches!(status(error), Some(401 | 403))
}

// === impl Listing ===

impl Listing {
    fn config(self, fields: Option<&str>) -> watcher::Config {
        let config = watcher::Config::default();
        let config = match self {
            Self::Streamed => config.streaming_lists(),
            Self::Paged => config,
        };
        match fields {
            Some(fields) => config.fields(fields),
            None => config,
        }
    }
}

// === impl Recovery ===

impl Recovery {
    fn of(error: &watcher::Error, listing: Listing) -> Self {
        match (error, status(error)) {
            // How servers answer to `sendInitialEvents` that they do not know or have switched off.
            (watcher::Error::WatchStartFailed(_), Some(400 | 422)) if listing == Listing::Streamed => Self::Page,
            // The watcher handles 410 as an event of a watch, not as the answer to its beginning.
            (watcher::Error::WatchStartFailed(_), Some(410)) => Self::Restart,
            _ => Self::Resume,
        }
    }
}
