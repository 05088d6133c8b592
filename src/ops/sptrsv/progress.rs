//! Proof of forward progress: parents precede their children in execution order.
