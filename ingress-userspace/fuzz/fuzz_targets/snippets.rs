//! Text of nginx snippets, in each place. The target checks that nothing panics, and that the values that come out are read
//! by the annotations they are for.
#![no_main]

use ingress_cli::check::snippet::{Conversion, Facts, Place, convert};
use ingress_model::{HeaderEdits, RequestRules};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str)| {
    let (location, server) = input;
    let service = Some(("s".into(), "80".into()));
    let facts = Facts { namespace: "n".into(), name: "i".into(), service, ..Facts::default() };
    let snippets = [(Place::Location, location), (Place::Server, server), (Place::Auth, location)];
    let Conversion { annotations, rest, .. } = convert(snippets, &facts);
    for (key, value) in &annotations {
        match key.as_str() {
            "request-headers" | "response-headers" => drop(HeaderEdits::parse(value).expect("a list that is read")),
            "deny-paths" => drop(RequestRules::deny_paths(value).expect("a list that is read")),
            "redirect-rules" => drop(RequestRules::redirects(value).expect("a list that is read")),
            _ => assert!(!value.contains('\n'), "{key}"),
        }
    }
    assert!(rest.iter().all(|remark| remark.line > 0));
});
