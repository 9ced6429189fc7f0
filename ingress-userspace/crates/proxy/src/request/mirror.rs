//! Request mirroring: sends copies of a request to further upstreams and discards the responses. The request itself
//! neither waits for its mirrors nor fails with them. A mirror that falls behind its backlog is cut off and counted.

use std::{
    borrow::Cow,
    rc::Rc,
    sync::{LazyLock, atomic::Ordering::Relaxed},
};

use http_body::{Body, SizeHint};

use ingress_model::{
    Mirror, Retry, Template, UpstreamKey, request_path,
    route::{Subject, filter::Edits, template::render},
};

use crate::{
    http::target::target,
    request::{
        body_copy::{self, CopiedBody},
        context::RequestContext,
        request_body::RequestBody,
    },
    server::worker::Worker,
    upstream::{
        ExchangeLimits,
        balance::Choice,
        subrequest::{self, OwnMessage, Plan, SubrequestError, discard},
    },
};

/// Requests that one worker mirrors concurrently. The bound keeps a hanging mirror from taking more memory and
/// connections.
const RUNNING_MAX: u32 = 256;

/// A single endpoint is enough for a copy. A mirror may get it twice, because no client waits for its response.
static RETRY: LazyLock<Retry> = LazyLock::new(|| Retry { tries: 1, non_idempotent: true, ..Retry::DEFAULT });

/// Counts one mirrored request of a worker while it runs.
struct Running(Rc<Worker>);

/// Sends a copy of the request of `context` to `mirror`, concurrently with the request itself. `edits` are the changes
/// made for pods.
pub(crate) fn start(mirror: &Mirror, context: &RequestContext<'_>, edits: &Edits<'_>, body: &mut RequestBody) {
    let RequestContext { conn, snapshot, forwarding, subject, .. } = *context;
    let target = match &mirror.target {
        Some(template) => own_target(template, subject).map(Cow::Owned),
        // It was checked for the pod.
        None => Some(Cow::Borrowed(edits.target.as_deref().unwrap_or(subject.target))),
    };
    let Some((target, running)) = target.and_then(|target| Some((target, Running::of(&conn.worker)?))) else {
        conn.worker.shared.stats.mirrors_cut.fetch_add(1, Relaxed);
        return;
    };
    let question = Subject { target: &target, ..*subject };
    let host = mirror.host.as_ref().or(edits.host.as_deref()).map(Cow::Borrowed);
    let edits = Edits { target: None, host, found: edits.found.clone(), headers: edits.headers.clone() };
    let mut written = Vec::new();
    context.head(&question, &edits).write(&mut written);
    let length = if mirror.body { body.size_hint() } else { SizeHint::with_exact(0) };
    let (copy, copied) = body_copy::pair(length);
    if mirror.body && !body.is_end_stream() {
        body.copy_to(copy);
    } else {
        copy.end();
    }
    let (key, limits, method) = (mirror.upstream.clone(), snapshot.limits(forwarding), subject.method.clone());
    // The worker's runtime owns the task. Each wait of the exchange has a limit, and the worker does not wait for the
    // task.
    tokio::task::spawn_local(async move {
        let message = OwnMessage { method: &method, text: &written, is_last: false };
        if let Err(error) = send(&running.0, &key, limits, message, copied).await {
            tracing::debug!(mirror = %key, error = &error as &dyn std::error::Error, "a request was not mirrored");
            running.0.shared.stats.mirrors_cut.fetch_add(1, Relaxed);
        }
    });
}

/// Returns the target that a mirror's template makes of a request, or `None` if the client's part of it leads to another
/// path than the rule's.
fn own_target(template: &Template, subject: &Subject<'_>) -> Option<String> {
    let rendered = render(template, subject, None);
    // nginx accepts `/$request_uri`, too.
    let rendered = rendered.strip_prefix('/').filter(|rest| rest.starts_with('/')).unwrap_or(&rendered);
    let target = target(rendered);
    let path = target.split_once('?').map_or(&*target, |(path, _)| path);
    let is_normal = request_path::normalise(path).ok().as_deref() == Some(path);
    is_normal.then_some(target)
}

/// Performs one exchange and discards the response.
async fn send(
    worker: &Worker,
    key: &UpstreamKey,
    limits: ExchangeLimits,
    message: OwnMessage<'_>,
    body: CopiedBody,
) -> Result<(), SubrequestError> {
    let snapshot = worker.snapshot();
    let upstream =
        snapshot.upstream_id(key).and_then(|id| snapshot.upstream(id)).ok_or(SubrequestError::NoEndpoints)?;
    // There is no annotation for a PROXY header to a mirror.
    let plan = Plan {
        choice: Choice::Next,
        retry: &RETRY,
        limits,
        proxy_header: None,
        is_judged: true,
        is_timed: false,
        try_timeout: None,
    };
    let (outcome, _served) =
        subrequest::send(worker.own_connections(), upstream, &plan, &message, &mut Some(body)).await?;
    discard(outcome.into_response()?.into_body()).await;
    Ok(())
}

// === impl Running ===

impl Running {
    fn of(worker: &Rc<Worker>) -> Option<Self> {
        let running = worker.mirrors.get();
        (running < RUNNING_MAX).then(|| {
            worker.mirrors.set(running + 1);
            Self(Rc::clone(worker))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.mirrors.set(self.0.mirrors.get() - 1);
    }
}
