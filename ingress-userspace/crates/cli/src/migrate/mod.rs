//! `migrate plan` and `migrate values`: the way from ingress-nginx to this controller, written for one cluster. They change
//! nothing.
//!
//! ```text
//! check ──> plan ──> situation, steps, commands
//!             │
//!             └─ values: values of ingress-nginx' chart ──> values of ours, and a verdict on each
//! ```
//!
//! `migrate shift` moves clients; it needs the kernel part, and is in the node binary.

mod arguments;
mod plan;
mod values;

pub use arguments::{PlanArgs, PlanFormat, ValuesArgs, ValuesFormat};
pub use plan::plan;
pub use values::values;
pub(crate) use values::without_source;

/// Help text of `migrate plan` behind the options.
pub const PLAN_HELP: &str = "\
The command reads what `check` reads, and writes the steps for this cluster: the Ingresses that need work, the class, the
webhook, how clients reach ingress-nginx, the commands with their names filled in, and the way back from each step. It
runs none of them.

Examples:
  xdp-ingress migrate plan -A
  xdp-ingress migrate plan -A --deployment ingress-nginx/ingress-nginx-controller -o markdown > plan.md
  xdp-ingress migrate plan --from-dir ./manifests --values nginx-values.yaml

Exit codes: 0 every Ingress is ready; 1 failure, with the reason on standard error; 2 wrong usage; 3 findings, see --fail-on.";

/// Help text of `migrate values` behind the options.
pub const VALUES_HELP: &str = "\
The command reads values of ingress-nginx' chart, and writes those of this controller's chart. Values without effect here are
left out. Comments name what is left out or differs.

Examples:
  helm get values ingress-nginx --namespace ingress-nginx --output yaml > nginx-values.yaml
  xdp-ingress migrate values nginx-values.yaml > xdp-values.yaml
  xdp-ingress migrate values nginx-values.yaml -o wide
  xdp-ingress migrate values nginx-values.yaml -o markdown --all

Exit codes: 0 nothing is lost; 1 failure, with the reason on standard error; 2 wrong usage; 3 an effect of a value is lost.";
