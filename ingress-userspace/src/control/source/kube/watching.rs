//! One watch of one kind, kept up whatever the server does. It passes events on and judges no object.
//!
//! An error never takes anything away. A list that met an error is begun again, because it may lack what the error was
//! about; and an empty list after an error, where there were objects before, is believed only when a second list says
//! the same. (A server whose store was lost answers so, until somebody restores it.)
//!
//! Pauses after answers that are errors grow from 0.8 s to 30 s, each longer by a random part of up to itself, so that
//! neither the watches of one process nor those of many nodes come back together. They begin anew once a watch works
//! again. A server that does not answer at all is asked every 0.8 to 1.6 s: it is spared nothing by longer pauses, and
//! routes are out of date until it is found again.

use std::{fmt::Debug, time::Duration};

use futures_util::StreamExt;
use kube::{
    Api, Resource,
    core::Status,
    runtime::{
        utils::Backoff,
        watcher::{self, DefaultBackoff, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time};

use super::tracker::{Event, Version, WatchId};
use crate::control::change::Object;

/// What can be watched.
pub(super) trait Watched:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static
{
}

impl<K> Watched for K where K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {}

/// Which objects of a kind are watched, and what for.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) fields: Option<String>,
    pub(super) labels: Option<String>,
    /// What is lost without these objects, for people.
    pub(super) lost: &'static str,
}

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

const INCOMPLETE: &str = "the list ended before it was complete";

/// The longest pause, should the backoff ever end.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Sends the events of the selected objects, until the receiver goes.
pub(super) async fn watch<K: Watched>(
    id: WatchId,
    api: Api<K>,
    selection: Selection,
    convert: fn(K) -> Object,
    events: mpsc::Sender<(WatchId, Event)>,
) {
    let mut progress = Progress::new(K::kind(&()).into_owned(), selection);
    let mut listing = Listing::Streamed;
    'lists: loop {
        let mut stream = watcher(api.clone(), listing.config(&progress.selection)).boxed();
        progress.is_listing = false;
        while let Some(result) = stream.next().await {
            let event = match result {
                Ok(event @ watcher::Event::Init) => {
                    if progress.is_listing {
                        // The stream of a list ended before its end. The watcher asks again at once, and so for ever.
                        progress.fail(INCOMPLETE);
                        progress.is_unanswered = false;
                        progress.pause().await;
                    }
                    progress.on(event, convert)
                }
                Ok(event) => progress.on(event, convert),
                Err(error) => {
                    let recovery = Recovery::of(&error, listing, progress.is_listing);
                    if recovery == Recovery::Page {
                        tracing::debug!(kind = %progress.kind, "the server does not stream lists, asking for pages");
                        listing = Listing::Paged;
                        continue 'lists;
                    }
                    progress.fail(&describe(&error));
                    progress.is_unanswered = is_silence(&error);
                    if is_refusal(&error) && events.send((id, Event::Refused)).await.is_err() {
                        return;
                    }
                    if recovery == Recovery::Restart {
                        break;
                    }
                    progress.pause().await;
                    continue;
                }
            };
            let Some(event) = event else { break };
            if events.send((id, event)).await.is_err() {
                return;
            }
        }
        progress.pause().await;
    }
}

/// How a watch fares.
struct Progress {
    kind: String,
    selection: Selection,
    pauses: DefaultBackoff,
    is_listing: bool,
    /// Whether the list under way holds anything.
    is_filled: bool,
    /// Whether there is anything that an empty list would take away.
    has_objects: bool,
    /// Whether an error has come since the last complete list.
    has_failed: bool,
    /// Whether the last error was that there was no answer.
    is_unanswered: bool,
    /// Whether an empty list is waiting for a second one.
    is_in_doubt: bool,
    /// Whether the log has said that the watch fails.
    is_told: bool,
}

/// The status with which the server answered, if it did.
fn status(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// What the server said, or why it said nothing. The errors' own texts repeat themselves at every level.
fn describe(error: &watcher::Error) -> String {
    match status(error) {
        Some(Status { message, code, .. }) => format!("{message} (status {code})"),
        None => {
            let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
            chain.last().map_or_else(String::new, ToString::to_string)
        }
    }
}

/// Whether the server will not let us, so that waiting for a list would wait for a person.
fn is_refusal(error: &watcher::Error) -> bool {
    matches!(status(error).map(|status| status.code), Some(401 | 403))
}

/// Whether there was no answer: no connection, or one that broke.
fn is_silence(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => {
            matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_))
        }
        _ => false,
    }
}

/// Whether the server knows less than we do, as after its store was restored: a watch from our version would wait for a
/// past that does not come again (apimachinery, `CauseTypeResourceVersionTooLarge`).
fn is_ahead(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
        || status.message.contains("Too large resource version")
}

// === impl Progress ===

impl Progress {
    fn new(kind: String, selection: Selection) -> Self {
        Self {
            kind,
            selection,
            pauses: DefaultBackoff::default(),
            is_listing: false,
            is_filled: false,
            has_objects: false,
            has_failed: false,
            is_unanswered: false,
            is_in_doubt: false,
            is_told: false,
        }
    }

    /// What to tell of an event of the watcher; `None` to ask for another list first.
    fn on<K: Watched>(&mut self, event: watcher::Event<K>, convert: fn(K) -> Object) -> Option<Event> {
        let version = |object: &K| Version::of(object.meta().resource_version.as_deref());
        Some(match event {
            watcher::Event::Init => {
                (self.is_listing, self.is_filled) = (true, false);
                Event::ListBegins
            }
            watcher::Event::InitApply(object) => {
                self.is_filled = true;
                let version = version(&object);
                Event::Listed(convert(object), version)
            }
            watcher::Event::InitDone => {
                if !self.is_filled && self.has_objects && self.has_failed && !self.is_in_doubt {
                    self.is_in_doubt = true;
                    let kind = &self.kind;
                    tracing::warn!(%kind, "the list is empty after an error; nothing is removed until a second list says so");
                    return None;
                }
                self.has_objects = self.is_filled;
                (self.is_listing, self.has_failed, self.is_in_doubt) = (false, false, false);
                self.recovered();
                Event::ListEnds
            }
            watcher::Event::Apply(object) => {
                self.has_objects = true;
                self.recovered();
                let version = version(&object);
                Event::Applied(convert(object), version)
            }
            watcher::Event::Delete(object) => {
                self.recovered();
                let version = version(&object);
                Event::Deleted(convert(object), version)
            }
        })
    }

    fn fail(&mut self, error: &str) {
        self.has_failed = true;
        // Two empty lists count only if nothing went wrong between them.
        self.is_in_doubt = false;
        let Self { kind, selection: Selection { fields, labels, lost }, .. } = self;
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(%kind, ?fields, ?labels, error, "watch failed again");
        } else {
            tracing::warn!(%kind, ?fields, ?labels, error, "watch failed, trying again; meanwhile {lost}");
        }
    }

    fn recovered(&mut self) {
        self.pauses.reset();
        if std::mem::take(&mut self.is_told) {
            tracing::info!(kind = %self.kind, fields = ?self.selection.fields, "watch works again");
        }
    }

    async fn pause(&mut self) {
        let pause = if self.is_unanswered { DefaultBackoff::default().next() } else { self.pauses.next() };
        time::sleep(pause.unwrap_or(MAX_PAUSE)).await;
    }
}

// === impl Listing ===

impl Listing {
    fn config(self, selection: &Selection) -> watcher::Config {
        let Selection { fields, labels, lost: _ } = selection;
        let mut config = watcher::Config::default();
        if self == Self::Streamed {
            config = config.streaming_lists();
        }
        if let Some(fields) = fields {
            config = config.fields(fields);
        }
        if let Some(labels) = labels {
            config = config.labels(labels);
        }
        config
    }
}

// === impl Recovery ===

impl Recovery {
    fn of(error: &watcher::Error, listing: Listing, is_listing: bool) -> Self {
        let status = status(error);
        let code = status.map(|status| status.code);
        match error {
            // How servers answer to `sendInitialEvents` that they do not know or have switched off.
            watcher::Error::WatchStartFailed(_)
                if listing == Listing::Streamed && !is_listing && matches!(code, Some(400 | 422)) =>
            {
                Self::Page
            }
            // The watcher handles 410 as an event of a watch, not as the answer to its beginning.
            watcher::Error::WatchStartFailed(_) if code == Some(410) => Self::Restart,
            _ if status.is_some_and(is_ahead) => Self::Restart,
            // An event that could not be read was about an object that is now out of date.
            watcher::Error::WatchFailed(kube::Error::SerdeError(_)) => Self::Restart,
            _ if is_listing => Self::Restart,
            _ => Self::Resume,
        }
    }
}
