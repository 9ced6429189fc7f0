//! Changes of an open page, as server-sent events: the content of the page each second, unless it is still the same.
//!
//! An event `page` has the JSON document `{"at": …, "html": …}`. `at` is the time of the values as Unix time in milliseconds.
//! `html` is the content, left out if it is that of the event before. The script compares it with the page that is
//! shown. A page that shows only the configuration is not made again before that changes.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, Response, header};
use serde_json::json;

use super::{PageKind, Refresh, Target};
use crate::daemon::admin::{AdminSource, body::AdminBody, stream::EventStream};

/// Interval at which pages are made again in any case, because they show numbers of days.
const DATED: Duration = Duration::from_secs(3600);

/// Facts that decide about the content of a page that shows only the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Revision {
    generation: u64,
    /// Generation of the newest change. It is written last, after the problems.
    last_change: Option<u64>,
    problems: usize,
    hour: u64,
}

/// Returns whether a request asks for events instead of the page.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).is_some_and(|accept| accept == "text/event-stream")
}

pub(super) fn response(events: EventStream) -> Response<AdminBody> {
    let mut response = Response::new(AdminBody::Events(Box::new(events)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// Returns a function that makes the next event of a page.
pub(super) fn events(
    source: Arc<dyn AdminSource>,
    kind: &'static PageKind,
    target: Target,
) -> impl FnMut() -> String + Send + 'static {
    let (mut shown, mut revision) = (String::new(), None);
    move || {
        let at = now_millis();
        let next = Some(Revision::of(&*source, at));
        if kind.refresh == Refresh::WithConfiguration && std::mem::replace(&mut revision, next) == next {
            return event(&json!({ "at": at }));
        }
        let page = (kind.page)(&*source, &target).unwrap_or_else(|error| error.page());
        let html = page.main.into_string();
        if html == shown {
            return event(&json!({ "at": at }));
        }
        let text = event(&json!({ "at": at, "html": html }));
        shown = html;
        text
    }
}

fn event(data: &serde_json::Value) -> String {
    format!("event: page\ndata: {data}\n\n")
}

/// Returns the Unix time in milliseconds.
pub(super) fn now_millis() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Revision {
    fn of(source: &dyn AdminSource, at: u64) -> Self {
        Self {
            generation: source.control().generation,
            last_change: source.changes().first().map(|change| change.generation),
            problems: source.problems().len(),
            hour: at / 1000 / DATED.as_secs(),
        }
    }
}
