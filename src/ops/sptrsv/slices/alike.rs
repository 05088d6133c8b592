//! Which other rewritings give the same equations.
//!
//! With a higher cost of a window, or a higher limit of terms, all that was substituted is substituted as well; and what was refused for
//! another reason than this one stays refused. So equations are the same for a range of either parameter: it begins at the least value
//! with which each substitution still pays or fits, and has no end if nothing was refused for the sake of that parameter.

use super::rewrite::Rewrite;

/// The range of a rewriting's parameters for which its equations are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alike {
    /// Least cost of a window, nanoseconds, and least limit of terms for which everything is substituted.
    window_ns: f64,
    terms: usize,
    /// Whether a level was refused because of what it costs, and because of an equation's length.
    by_cost: bool,
    by_length: bool,
}

impl Alike {
    /// A level was substituted, which needs at least these values.
    pub fn joined(&mut self, window_ns: f64, terms: usize) {
        self.window_ns = self.window_ns.max(window_ns);
        self.terms = self.terms.max(terms);
    }

    pub fn refused_by_cost(&mut self) {
        self.by_cost = true;
    }

    pub fn refused_by_length(&mut self) {
        self.by_length = true;
    }

    /// Whether what `own` made of a system is what the other would make of it.
    pub fn covers(&self, own: Rewrite, other: Rewrite) -> bool {
        // Costs are compared after sums in another order than theirs.
        let least_ns = self.window_ns * (1.0 + 1e-9);
        // Without a cost of windows nothing is substituted, even where it would cost nothing.
        let substitutes = (own.window_ns > 0) == (other.window_ns > 0);
        let cost = other.window_ns == own.window_ns
            || f64::from(other.window_ns) >= least_ns
                && (other.window_ns < own.window_ns || !self.by_cost);
        let length = other.terms == own.terms
            || other.terms as usize >= self.terms && (other.terms < own.terms || !self.by_length);
        other.refine == own.refine && substitutes && cost && length
    }
}
