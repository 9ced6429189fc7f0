//! A watch of one kind, which is kept up through all server failures. It passes events on and does not judge objects.
//!
//! An error never removes an object. A list that met an error is begun again, because it may lack the objects that the
//! error was about. If a list is empty after an error, and there were objects before, it is believed only when a second
//! list is empty, too. (A server that lost its store sends empty lists until the store is restored.)
//!
//! An object that cannot be read stops no other. What was known of it stays until it can be read again or is deleted.
//!
//! Pauses after error responses grow from 0.8 s to 30 s. Each is prolonged by a random part of up to its own length, so
//! that neither the watches of one process nor those of many nodes come back together. They begin anew once a watch
//! works again. A server that does not answer at all is tried every 0.8 to 1.6 s. Longer pauses would not relieve it,
//! and routes are out of date until it is found again.

use std::time::Duration;

use futures_util::StreamExt;
use kube::{
    Resource as _,
    core::Status,
    runtime::{
        utils::Backoff,
        watcher::{self, DefaultBackoff, watcher},
    },
};
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use super::{
    tracker::{TrackerEvent, Version, WatchId},
    watched_kind::WatchedKind,
};
use crate::{
    change::Object,
    wire_object::{UnreadableLog, WireObject},
};

/// The objects of a kind that are watched, and their purpose.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchSelection {
    pub(super) fields: Option<String>,
    pub(super) labels: Option<String>,
    /// The function that is lost without these objects, for messages.
    pub(super) lost: &'static str,
    /// Whether the server may lack this kind.
    pub(super) may_be_unknown: bool,
}

/// Reason why a watch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchEnd {
    /// The receiver was dropped.
    Unheard,
    /// The server does not know the kind, which is allowed. It may have known it before.
    Unknown { has_worked: bool },
}

/// Form of the first list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// Events (KEP-3157), which save memory in the server and in this process.
    Streamed,
    /// Pages, for servers that do not stream lists.
    Paged,
}

/// Reaction to an error of the watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// The watcher continues by itself, after a pause.
    Resume,
    /// Begin again with a list, after a pause.
    Restart,
    /// Begin again at once with pages.
    Page,
}

const INCOMPLETE: &str = "the list ended before it was complete";

/// The longest pause, in case the backoff ever ends.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// For how long a server must not know a kind before its objects count as gone. A server that is just starting, or one of
/// several, may not know the kind yet.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// Sends the events of the selected objects until the receiver is dropped. The server may not know the kind, or may
/// know it only in the `older` version, if there is one. Once the server is known to lack the kind, no other part waits
/// for its objects.
pub(super) async fn watch_if_known(
    id: WatchId,
    newer: WatchedKind,
    older: Option<WatchedKind>,
    selection: WatchSelection,
    events: mpsc::Sender<(WatchId, TrackerEvent)>,
) {
    let selection = WatchSelection { may_be_unknown: true, ..selection };
    let mut pauses = DefaultBackoff::default();
    let mut unknown_since = None;
    loop {
        let end = watch(id, &newer, selection.clone(), events.clone()).await;
        let WatchEnd::Unknown { mut has_worked } = end else { return };
        if let Some(older) = &older {
            let end = watch(id, older, selection.clone(), events.clone()).await;
            let WatchEnd::Unknown { has_worked: older_has_worked } = end else { return };
            has_worked |= older_has_worked;
        }
        if has_worked {
            unknown_since = None;
            pauses.reset();
        }
        if unknown_since.is_none() {
            tracing::info!(
                kind = %newer.kind.as_str(),
                "the API server does not know this kind; it is asked again, at least each minute"
            );
        }
        let is_gone = unknown_since.get_or_insert_with(Instant::now).elapsed() >= GONE_AFTER;
        let answers: &[TrackerEvent] =
            if is_gone { &[TrackerEvent::ListBegins, TrackerEvent::ListEnds] } else { &[TrackerEvent::Refused] };
        for answer in answers {
            if events.send((id, answer.clone())).await.is_err() {
                return;
            }
        }
        time::sleep(pauses.next().unwrap_or(MAX_PAUSE)).await;
    }
}

/// Sends the events of the selected objects, until the receiver is dropped.
pub(super) async fn watch(
    id: WatchId,
    watched: &WatchedKind,
    selection: WatchSelection,
    events: mpsc::Sender<(WatchId, TrackerEvent)>,
) -> WatchEnd {
    let mut progress = WatchProgress::new(watched.kind.as_str(), selection);
    let mut listing = Listing::Streamed;
    'lists: loop {
        let mut stream = watcher(watched.api.clone(), listing.config(&progress.selection)).boxed();
        progress.is_listing = false;
        while let Some(result) = stream.next().await {
            let event = match result {
                Ok(event @ watcher::Event::Init) => {
                    if progress.is_listing {
                        // The stream of a list ended before its end. Without a pause here, the watcher would ask again
                        // at once, without end.
                        progress.fail(INCOMPLETE, "");
                        progress.is_unanswered = false;
                        progress.pause().await;
                    }
                    progress.on(event, watched)
                }
                Ok(event) => progress.on(event, watched),
                Err(error) => {
                    let recovery = Recovery::of(&error, listing, progress.is_listing);
                    if recovery == Recovery::Page {
                        tracing::debug!(kind = %progress.kind, "the server does not stream lists; requesting pages");
                        listing = Listing::Paged;
                        continue 'lists;
                    }
                    if progress.selection.may_be_unknown && is_unknown(&error) {
                        return WatchEnd::Unknown { has_worked: progress.has_worked };
                    }
                    progress.fail(&describe(&error), remedy(&error));
                    progress.is_unanswered = is_silence(&error);
                    if is_refusal(&error) && events.send((id, TrackerEvent::Refused)).await.is_err() {
                        return WatchEnd::Unheard;
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
                return WatchEnd::Unheard;
            }
        }
        progress.pause().await;
    }
}

/// State of a watch.
struct WatchProgress {
    kind: &'static str,
    selection: WatchSelection,
    pauses: DefaultBackoff,
    is_listing: bool,
    /// Whether the list in progress holds any object.
    is_filled: bool,
    /// Whether there are objects that an empty list would remove.
    has_objects: bool,
    /// Whether an error has occurred since the last complete list.
    has_failed: bool,
    /// Whether the last error was a missing response.
    is_unanswered: bool,
    /// Whether an empty list is waiting for a second one.
    is_in_doubt: bool,
    /// Whether the failure of this watch has been logged.
    is_reported: bool,
    /// Whether the server has ever answered this watch successfully.
    has_worked: bool,
    unreadable: UnreadableLog,
}

/// Returns the resource version of an object.
fn version(object: &WireObject) -> Version {
    Version::of(object.meta().resource_version.as_deref())
}

/// Returns the status of the server's response, if there was one.
fn status(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// Describes an error by the server's message, or by the innermost cause. The errors' own texts repeat themselves at
/// every level.
fn describe(error: &watcher::Error) -> String {
    match status(error) {
        // kube takes an object of JSON that is no event for a status without fields.
        Some(Status { message, code: 0, .. }) if message.is_empty() => "an event cannot be read".into(),
        Some(Status { message, code, .. }) => format!("{message} (status {code})"),
        None => {
            let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
            chain.last().map_or_else(String::new, ToString::to_string)
        }
    }
}

/// Returns `true` if the server denies access, so that waiting for a list would mean waiting for an administrator.
fn is_refusal(error: &watcher::Error) -> bool {
    matches!(status(error).map(|status| status.code), Some(401 | 403))
}

/// Returns the end of the message about an error that only an administrator of the cluster can mend.
fn remedy(error: &watcher::Error) -> &'static str {
    match status(error) {
        Some(Status { code: 403, .. }) => "; grant `list` and `watch` in the role (docs/rbac.md)",
        _ => "",
    }
}

/// Returns `true` if the server does not have the kind in this version.
fn is_unknown(error: &watcher::Error) -> bool {
    status(error).is_some_and(|status| status.code == 404)
}

/// Returns `true` if there was no response: no connection, or one that broke.
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

/// Returns `true` if the server is behind this process, as after its store was restored. A watch from this process's
/// version would wait for versions that may never come (apimachinery, `CauseTypeResourceVersionTooLarge`).
fn is_ahead(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
        || status.message.contains("Too large resource version")
}

// === impl WatchProgress ===

impl WatchProgress {
    fn new(kind: &'static str, selection: WatchSelection) -> Self {
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
            is_reported: false,
            has_worked: false,
            unreadable: UnreadableLog::default(),
        }
    }

    /// Converts an event of the watcher. Returns `None` if another list is needed first.
    fn on(&mut self, event: watcher::Event<WireObject>, watched: &WatchedKind) -> Option<TrackerEvent> {
        Some(match event {
            watcher::Event::Init => {
                (self.is_listing, self.is_filled) = (true, false);
                TrackerEvent::ListBegins
            }
            watcher::Event::InitApply(object) => {
                self.is_filled = true;
                self.read(&object, watched, TrackerEvent::Listed)
            }
            watcher::Event::InitDone => {
                if !self.is_filled && self.has_objects && self.has_failed && !self.is_in_doubt {
                    self.is_in_doubt = true;
                    let kind = &self.kind;
                    tracing::warn!(%kind, "the list is empty after an error; objects are removed only if a second list \
                     confirms it");
                    return None;
                }
                self.has_objects = self.is_filled;
                (self.is_listing, self.has_failed, self.is_in_doubt) = (false, false, false);
                self.recovered();
                TrackerEvent::ListEnds
            }
            watcher::Event::Apply(object) => {
                self.has_objects = true;
                self.recovered();
                self.read(&object, watched, TrackerEvent::Applied)
            }
            watcher::Event::Delete(object) => {
                self.recovered();
                TrackerEvent::Deleted(watched.id(&object), version(&object))
            }
        })
    }

    /// Decodes the object of an event. One that cannot be decoded is reported, and stops no other.
    fn read(
        &mut self,
        object: &WireObject,
        watched: &WatchedKind,
        event: fn(Object, Version) -> TrackerEvent,
    ) -> TrackerEvent {
        match watched.decode(object) {
            Ok(read) => event(read, version(object)),
            Err(error) => {
                let id = watched.id(object);
                self.unreadable.report(self.kind, &id.name, &error);
                TrackerEvent::Unreadable(id, version(object))
            }
        }
    }

    fn fail(&mut self, error: &str, remedy: &'static str) {
        self.has_failed = true;
        // Two empty lists count only without an error between them.
        self.is_in_doubt = false;
        let Self { kind, selection: WatchSelection { fields, labels, lost, may_be_unknown: _ }, .. } = self;
        if std::mem::replace(&mut self.is_reported, true) {
            tracing::debug!(%kind, ?fields, ?labels, error, "watch failed again");
        } else {
            tracing::warn!(%kind, ?fields, ?labels, error, "watch failed and is tried again; meanwhile {lost}{remedy}");
        }
    }

    fn recovered(&mut self) {
        self.has_worked = true;
        self.pauses.reset();
        if std::mem::take(&mut self.is_reported) {
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
    fn config(self, selection: &WatchSelection) -> watcher::Config {
        let WatchSelection { fields, labels, lost: _, may_be_unknown: _ } = selection;
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
            // The response of servers that do not know `sendInitialEvents`, or have it switched off.
            watcher::Error::WatchStartFailed(_)
                if listing == Listing::Streamed && !is_listing && matches!(code, Some(400 | 422)) =>
            {
                Self::Page
            }
            // The watcher handles 410 as an event of a watch, not as the response to its start.
            watcher::Error::WatchStartFailed(_) if code == Some(410) => Self::Restart,
            _ if status.is_some_and(is_ahead) => Self::Restart,
            // The object of an unreadable event is out of date.
            watcher::Error::WatchFailed(kube::Error::SerdeError(_)) => Self::Restart,
            _ if is_listing => Self::Restart,
            _ => Self::Resume,
        }
    }
}
