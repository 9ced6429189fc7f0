//! Regular expressions matched together, in one pass over the path and with bounded work. Rules are unknown here.
//!
//! A lazy DFA creates its states on demand. A path that meets no existing state costs, for each of its bytes, as much
//! as all states of the NFA. The cost of each byte is therefore counted, and a search ends when its
//! [`WorkShare`] of the request's work is used up.

use std::{collections::HashMap, fmt};

use regex_automata::{
    Anchored, Input, MatchKind,
    hybrid::{
        LazyStateID,
        dfa::{Cache, DFA},
    },
    nfa::thompson::{self, WhichCaptures, pikevm::PikeVM},
    util::pool::Pool,
};
use regex_syntax::hir::Hir;

use super::hashing::{Hashing, hashing};

/// A set of expressions; the first one takes precedence.
pub(super) struct Automaton {
    nfa: thompson::NFA,
    /// `None` if only the NFA could be built.
    lazy: Option<Lazy>,
}

struct Lazy {
    dfa: DFA,
    /// Scratch memory for each thread that matches at the same time.
    scratches: Pool<Scratch, Box<dyn Fn() -> Scratch + Send + Sync>>,
}

/// DFA states created by one thread.
struct Scratch {
    cache: Cache,
    /// Memory of each state.
    sizes: HashMap<LazyStateID, usize, Hashing>,
    /// Transitions from matching states. The cache does not return them without creating a state.
    after_match: HashMap<(LazyStateID, u8), LazyStateID, Hashing>,
}

/// Remaining work of a request for path matching: a share for each namespace of its host. From the eighth namespace on,
/// all use one share together.
#[derive(Clone, Copy, Debug)]
pub struct Work([WorkShare; SHARES]);

/// Remaining work with the expressions of one namespace, in bytes of DFA states created or left. The creation of one
/// byte takes 5 to 15 ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkShare(u32);

/// The search needs more work than is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

enum Stop {
    Exhausted,
    /// The DFA cannot decide, for example at a word boundary next to non-ASCII text.
    Undecided,
}

/// Number of namespaces of a host that have a share of the work for themselves.
const SHARES: usize = 8;
/// Maximum number of entries in [`Scratch::after_match`].
const REMEMBERED_MAX: usize = 65_536;

// === impl Work ===

impl Work {
    #[must_use]
    pub const fn of_request() -> Self {
        Self([WorkShare(WorkShare::FULL); SHARES])
    }

    /// Returns the share of the namespace with this number, in order of its first appearance on the host.
    pub(super) fn share(&mut self, number: usize) -> &mut WorkShare {
        let Self(shares) = self;
        &mut shares[number.min(SHARES - 1)]
    }

    #[cfg(test)]
    pub(super) fn is_used_up(&self) -> bool {
        self.0.iter().all(|WorkShare(left)| *left == 0)
    }
}

// === impl WorkShare ===

impl WorkShare {
    /// A cold path with 1,000 expressions such as `/a-7/[0-9]+` takes a tenth of it.
    const FULL: u32 = 128 * 1024;

    #[cfg(test)]
    pub(super) const fn full() -> Self {
        Self(Self::FULL)
    }

    fn take(&mut self, work: usize) -> Result<(), Exhausted> {
        let left = u32::try_from(work).ok().and_then(|work| self.0.checked_sub(work));
        self.0 = left.unwrap_or(0);
        left.map(drop).ok_or(Exhausted)
    }
}

// === impl Automaton ===

impl Automaton {
    /// Compiles the expressions. Returns `None` above 2^31 states, which budgets prevent. A thread uses about `memory`
    /// bytes for states.
    pub(super) fn compile(hirs: &[&Hir], memory: usize) -> Option<Self> {
        // The size of each expression was checked when it was parsed.
        let config = thompson::Config::new().nfa_size_limit(None).which_captures(WhichCaptures::None);
        let nfa = thompson::Compiler::new().configure(config).build_many_from_hir(hirs).ok()?;
        let config = DFA::config()
            .match_kind(MatchKind::LeftmostFirst)
            .unicode_word_boundary(true)
            .skip_cache_capacity_check(true)
            .cache_capacity(memory);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa.clone()).ok();
        Some(Self { nfa, lazy: dfa.map(Lazy::new) })
    }

    /// Returns the first expression that matches at the beginning of `path`.
    pub(super) fn find(&self, path: &str, work: &mut WorkShare) -> Result<Option<usize>, Exhausted> {
        let found = self.lazy.as_ref().map(|Lazy { dfa, scratches }| scratches.get().find(dfa, path, work));
        match found {
            Some(Ok(found)) => Ok(found),
            Some(Err(Stop::Exhausted)) => Err(Exhausted),
            Some(Err(Stop::Undecided)) | None => self.simulate(path, work),
        }
    }

    /// Same as [`Self::find`], but without DFA states.
    fn simulate(&self, path: &str, work: &mut WorkShare) -> Result<Option<usize>, Exhausted> {
        work.take(self.nfa.states().len().saturating_mul(path.len() + 1))?;
        let Ok(machine) = PikeVM::builder().build_from_nfa(self.nfa.clone()) else { return Ok(None) };
        let input = Input::new(path).anchored(Anchored::Yes);
        let found = machine.search_slots(&mut machine.create_cache(), &input, &mut []);
        Ok(found.map(|pattern| pattern.as_usize()))
    }
}

impl fmt::Debug for Automaton {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Automaton({} states)", self.nfa.states().len())
    }
}

impl Lazy {
    fn new(dfa: DFA) -> Self {
        let own = dfa.clone();
        let scratch = move || Scratch {
            cache: own.create_cache(),
            sizes: HashMap::with_hasher(hashing()),
            after_match: HashMap::with_hasher(hashing()),
        };
        Self { dfa, scratches: Pool::new(Box::new(scratch)) }
    }
}

// === impl Scratch ===

impl Scratch {
    /// Finds the first matching expression. All matches begin at the start of the path; among them, a lazy DFA with
    /// [`MatchKind::LeftmostFirst`] prefers the first expression, and ends when no preferred one can match any more.
    fn find(&mut self, dfa: &DFA, path: &str, work: &mut WorkShare) -> Result<Option<usize>, Stop> {
        let start = dfa.start_state_forward(&mut self.cache, &Input::new(path).anchored(Anchored::Yes));
        let mut state = start.map_err(|_cannot| Stop::Undecided)?;
        let mut found = None;
        for &byte in path.as_bytes() {
            let known = if state.is_tagged() {
                self.after_match.get(&(state, byte)).copied()
            } else {
                Some(dfa.next_state_untagged(&self.cache, state, byte)).filter(|next| !next.is_unknown())
            };
            state = match known {
                Some(next) => next,
                None => self.step(dfa, state, byte, work)?,
            };
            if state.is_match() {
                found = Some(dfa.match_pattern(&self.cache, state, 0).as_usize());
            } else if state.is_dead() {
                return Ok(found);
            } else if state.is_quit() {
                return Err(Stop::Undecided);
            }
        }
        let end = dfa.next_eoi_state(&mut self.cache, state).map_err(|_full| Stop::Undecided)?;
        Ok(if end.is_match() { Some(dfa.match_pattern(&self.cache, end, 0).as_usize()) } else { found })
    }

    /// Creates the state after `byte`, and charges its cost.
    #[cold]
    fn step(&mut self, dfa: &DFA, state: LazyStateID, byte: u8, work: &mut WorkShare) -> Result<LazyStateID, Stop> {
        let (memory, clears) = (self.cache.memory_usage(), self.cache.clear_count());
        let next = dfa.next_state(&mut self.cache, state, byte).map_err(|_full| Stop::Undecided)?;
        let grown = self.cache.memory_usage().saturating_sub(memory);
        if self.cache.clear_count() != clears {
            // After a clear, the ids refer to other states.
            self.sizes.clear();
            self.after_match.clear();
        } else if state.is_tagged() {
            if self.after_match.len() >= REMEMBERED_MAX {
                self.after_match.clear();
            }
            self.after_match.insert((state, byte), next);
        }
        if grown > 0 {
            self.sizes.insert(next, grown);
        }
        let size = |state| self.sizes.get(&state).copied().unwrap_or(0);
        work.take(size(state) + size(next)).map_err(|Exhausted| Stop::Exhausted)?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use regex_automata::meta::Regex;
    use regex_syntax::ParserBuilder;

    use super::*;

    const MEMORY: usize = 4 << 20;

    fn hirs(texts: &[String]) -> Vec<Hir> {
        let parse = |text: &String| ParserBuilder::new().case_insensitive(true).build().parse(text).expect("valid");
        texts.iter().map(parse).collect()
    }

    fn compile(texts: &[String]) -> Automaton {
        Automaton::compile(&hirs(texts).iter().collect::<Vec<_>>(), MEMORY).expect("within bounds")
    }

    fn find(automaton: &Automaton, path: &str) -> Result<Option<usize>, Exhausted> {
        automaton.find(path, &mut WorkShare::full())
    }

    fn texts(count: usize, text: impl Fn(usize) -> String) -> Vec<String> {
        (0..count).map(text).collect()
    }

    /// Returns a pseudo-random path of `length` bytes, each `a` or `b`.
    fn coins(length: usize) -> String {
        let mut seed = 1_u64;
        let coin = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if seed >> 63 == 0 { 'a' } else { 'b' }
        };
        (0..length).map(coin).collect()
    }

    #[test]
    fn matching_stops_after_bounded_work() {
        for (name, texts) in [
            ("counted", texts(40, |number| format!("/(a?b?){{250}}{number}"))),
            ("exponential", texts(40, |number| format!("/(a|b)*a(a|b){{{}}}{number}", 100 + number))),
            // The last one matches everywhere, so all states are matching ones.
            (
                "matching",
                texts(
                    41,
                    |number| if number < 40 { format!("/(a|b)*a(a|b){{{}}}x", 60 + number) } else { "/.*".into() },
                ),
            ),
        ] {
            let automaton = compile(&texts);
            // The warm-up creates the states that all paths share.
            let _warm = find(&automaton, "/a");
            for path in [coins(8190), "ab".repeat(4095), "a".repeat(8190)] {
                let path = format!("/{path}");
                for attempt in 0..3 {
                    let (begun, mut work) = (Instant::now(), WorkShare::full());
                    let found = automaton.find(&path, &mut work);
                    let took = begun.elapsed();
                    assert!(found.is_ok() || work.0 == 0, "{name}, {attempt}");
                    // The limit holds for an unoptimised build on a busy machine; without the bound, the search takes
                    // seconds.
                    assert!(took.as_millis() < 300, "{name}, {attempt}: {took:?}");
                }
            }
            assert_eq!(find(&automaton, &format!("/{}", coins(8190))), Err(Exhausted), "{name}");
            assert!(find(&automaton, "/c").is_ok(), "{name}: others are matched as ever");
        }
    }

    #[test]
    fn light_expressions_stay_far_below_the_work_limit() {
        for count in [1, 1_000, 2_000] {
            let automaton = compile(&texts(count, |number| format!("/a-{number}/[0-9]+")));
            let mut work = WorkShare::full();
            assert_eq!(
                automaton.find(&format!("/a-{}/{}", count - 1, "7".repeat(100)), &mut work),
                Ok(Some(count - 1))
            );
            assert!(work.0 > WorkShare::FULL / 2, "{count}: {work:?}");
            let left = work.0;
            assert_eq!(automaton.find(&format!("/a-{}/{}", count - 1, "7".repeat(90)), &mut work), Ok(Some(count - 1)));
            assert_eq!(left, work.0, "{count}: what is made is there for the next");
        }
    }

    #[test]
    fn the_automaton_agrees_with_the_regex_library() {
        let texts: Vec<_> = [
            "/a.*z",
            "/a(b|bc)",
            "/ab",
            r"/w\b",
            "/ü+$",
            r"/\bx",
            "/(?:|c)d",
            "/[^/]+/e$",
            "/f{2,3}(g|$)",
            "/a$|/B",
            "",
        ]
        .map(str::to_owned)
        .into();
        let automaton = compile(&texts);
        let oracle = Regex::builder().build_many_from_hir(&hirs(&texts)).expect("valid");
        let pieces = ["", "/", "a", "b", "bc", "z", "w", "ü", "x", "cd", "e", "/e", "ff", "g", "W", "é", "B", " "];
        for one in pieces {
            for two in pieces {
                for three in pieces {
                    for path in [format!("/{one}{two}{three}"), format!("{one}{two}{three}")] {
                        let expect = oracle.search_half(&Input::new(&path).anchored(Anchored::Yes));
                        let expect = expect.map(|found| found.pattern().as_usize());
                        assert_eq!(find(&automaton, &path), Ok(expect), "{path}");
                    }
                }
            }
        }
    }
}
