//! HTTPRoutes.

use super::{
    attach::{attach, hostnames, reaching},
    backend, forwarding, matches,
    report::Flaw,
    route::{MadeRoute, RouteRules},
    rules::{ReadRules, Rules, read_each},
};
use crate::{
    change::ObjectId,
    gateway::route::{HttpMatch, HttpRoute, HttpRule, Route as _},
    translate::{Context, features::Globals},
};

/// Makes an HTTPRoute; `None` if it refers to no Gateway of this controller.
pub(crate) fn make(
    id: &ObjectId,
    route: &HttpRoute,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Option<MadeRoute> {
    let names = hostnames(&route.spec.hostnames);
    let found = attach(id, &route.spec.parent_refs, reaching(&names), context);
    if found.is_empty() {
        return None;
    }
    let ReadRules { requests, flaw, unresolved } =
        read_each(id, None, &found, |rules| read(&route.spec.rules, rules, globals, context));
    let services = backend::services(id, route.backends());
    let flaw = names.err().or(flaw);
    Some(MadeRoute::new(id, &route.metadata, found, flaw, unresolved, RouteRules::Requests(requests), services))
}

/// Reads all rules, even if one has a flaw.
fn read(
    written: &[HttpRule],
    rules: &mut Rules<'_>,
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Result<(), Flaw> {
    let all = [HttpRule::default()];
    let written = if written.is_empty() { &all } else { written };
    let mut flaw = None;
    for (index, rule) in written.iter().enumerate() {
        let HttpRule { name: _, matches, filters, backend_refs, timeouts, retry } = rule;
        let all = [HttpMatch::default()];
        let matches = if matches.is_empty() { &all } else { &**matches };
        let demands = matches.iter().map(|demand| matches::read(demand, &mut rules.expressions)).collect();
        let forwarding = forwarding::read(timeouts, retry.as_ref(), &globals.forwarding);
        if let Err(found) = rules.add(index, demands, filters, backend_refs, forwarding, context) {
            flaw.get_or_insert(found);
        }
    }
    flaw.map_or(Ok(()), Err)
}
