//! Search: domains, constraints, the pruning report, strategies, budgets, and the winner by paired timing. Knows neither matrix nor GPU.
