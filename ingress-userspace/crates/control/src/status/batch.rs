//! Sends writes of statuses, several at a time, and tells failures of one object from those of the server or of the
//! role. It does not decide which statuses are written.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};

use super::{
    WriteResult,
    access::{RequestFailure, RetryLog},
    budget::{CONCURRENT, WriteBudget},
    handle::StatusCounters,
};

/// Writes of one batch that may be forbidden before the rest is given up for now.
pub(super) const REFUSED_MAX: usize = 8;

/// Sends all writes, each with a place of `budget`. Once the configuration begins to churn, the rest is left for the next
/// plan. `note` receives those that succeeded, and those that failed because of their object alone, which are not to be
/// sent again as they are before some time has passed. Returns the failure because of which the rest was given up, or which
/// all writes met.
pub(super) async fn send_all<'w, W, T>(
    writes: Vec<BoxFuture<'w, (W, Result<T, RequestFailure>)>>,
    budget: &'w WriteBudget,
    stats: &StatusCounters,
    retry_log: &mut RetryLog,
    mut note: impl FnMut(W, Result<T, RequestFailure>) + Send,
) -> Option<RequestFailure> {
    let round = budget.round();
    let permitted = |write: BoxFuture<'w, _>| {
        let permitted = async move {
            // The plan was made in quiet, and is old before all of it could be sent.
            if budget.round() < round {
                return None;
            }
            let _place = budget.place().await;
            Some(write.await)
        };
        permitted.boxed()
    };
    let mut writes = stream::iter(writes.into_iter().map(permitted).collect::<Vec<_>>()).buffer_unordered(CONCURRENT);
    let (mut refusal, mut refused, mut succeeded) = (None, 0, false);
    while let Some(sent) = writes.next().await {
        let Some((write, result)) = sent else { continue };
        stats.count_status(result.as_ref().err().map_or(WriteResult::Written, RequestFailure::result));
        match result {
            Ok(answer) => {
                retry_log.succeeded();
                succeeded = true;
                note(write, Ok(answer));
            }
            Err(failure) if failure.is_particular() => note(write, Err(failure)),
            // Policies of a namespace answer with 403, too. Only if no write succeeds is the role the likely cause.
            Err(RequestFailure::Forbidden(message)) if refused < REFUSED_MAX => {
                refused += 1;
                note(write, Err(RequestFailure::Forbidden(message.clone())));
                refusal = Some(RequestFailure::Forbidden(message));
            }
            // The rest would fail as well; requests in progress are dropped with the stream.
            Err(failure) => return Some(failure),
        }
    }
    refusal.filter(|_| !succeeded)
}
