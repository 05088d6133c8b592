//! Tables of foreign functions, each resolved at load: a missing symbol is an error with its name, never a panic.
//!
//! cudarc supplies the types and constants; docs/inside/processes.md says why its loader is not used.

/// Declares a table of function pointers and `load`, which resolves all of them in one library and keeps it mapped.
macro_rules! symbols {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $symbol:literal ($($arg:ty),* $(,)?);)* }) => {
        $(#[$meta])*
        pub(in crate::engine) struct $name {
            $(pub(in crate::engine) $field: unsafe extern "C" fn($($arg),*) -> u32,)*
            /// Keeps the code behind the pointers mapped.
            pub(in crate::engine) library: $crate::engine::libraries::Found,
        }

        impl $name {
            pub(in crate::engine) fn load(
                library: $crate::engine::libraries::Found,
            ) -> Result<Self, $crate::engine::libraries::LibraryError> {
                Ok(Self {
                    // SAFETY: the signature is the one the vendor's header gives for this symbol.
                    $($field: unsafe { library.symbol($symbol)? },)*
                    library,
                })
            }
        }
    };
}
pub(in crate::engine) use symbols;
