//! What can go wrong in the engine.

/// Errors of the engine; each carries what did not fit.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The batch has another number of sets than the program.
    #[error("the program takes {expected} sets, the batch has {found}")]
    SetCount {
        /// Sets of the program.
        expected: usize,
        /// Sets of the batch.
        found: usize,
    },
    /// A set's rows have another width than the program expects.
    #[error("set {set} has rows of width {found}, the model takes {expected}")]
    SetWidth {
        /// Index of the set.
        set: usize,
        /// Width of the program's input.
        expected: usize,
        /// Width of the batch's rows.
        found: usize,
    },
    /// In a dimension-equivariant program all sets of a batch must share one width.
    #[error(
        "set {set} has rows of width {found}, not {expected} as set 0; this model wants the same dimensions for all sets"
    )]
    UnequalWidths {
        /// Index of the set.
        set: usize,
        /// Width that goes with set 0.
        expected: usize,
        /// Width of this set.
        found: usize,
    },
    /// A set of an example has no elements.
    #[error("set {set} of example {example} is empty")]
    EmptySet {
        /// Index of the set.
        set: usize,
        /// Index of the example.
        example: usize,
    },
    /// Offsets that do not rise from zero to the number of rows.
    #[error("offsets of set {set} do not describe its {rows} rows: {reason}")]
    Offsets {
        /// Index of the set.
        set: usize,
        /// Rows the data has.
        rows: usize,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// The batch has no examples.
    #[error("the batch has no examples")]
    EmptyBatch,
    /// Products on tile units were asked for.
    #[error("this processor has no tile unit for bf16 products (AMX), or the system does not let us use it")]
    NoAmx,
    /// The working memory would not fit the address space or the machine.
    #[error("a batch of this size needs {bytes} bytes of working memory, which this machine does not have")]
    TooLarge {
        /// Bytes wanted (saturating).
        bytes: u64,
    },
    /// A gradient or target of the wrong length was handed in.
    #[error("{what} has {found} values, expected {expected}")]
    Length {
        /// What was handed in.
        what: &'static str,
        /// Values expected.
        expected: usize,
        /// Values found.
        found: usize,
    },
    /// Rows of logits that are not as wide as there are classes.
    #[error("{predictions} predicted numbers are no rows of {classes} classes")]
    Classes {
        /// Classes of the loss.
        classes: usize,
        /// Numbers predicted.
        predictions: usize,
    },
    /// A target that is no class.
    #[error("target {index} is {found}, not the index of one of {classes} classes")]
    NoClass {
        /// Which target.
        index: usize,
        /// What it is.
        found: f64,
        /// How many classes there are.
        classes: usize,
    },
    /// The GPU cannot be used.
    #[error("CUDA: {0}")]
    Device(String),
    /// The GPU's memory is too small.
    #[error(
        "CUDA: {what} needs {wanted} bytes of device memory, {free} are free; lower the batch size, the set sizes or the model's widths"
    )]
    DeviceMemory {
        /// What it is for.
        what: &'static str,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free.
        free: u64,
    },
}
